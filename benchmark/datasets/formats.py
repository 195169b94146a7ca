"""Read the official file formats into arrays; nothing is unpickled."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from defenses.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8] | NDArray[np.float32]
    Arrays = tuple[Pixels, NDArray[np.uint8] | NDArray[np.int64]]  # pixels (N, C, H, W), labels (N,)

CIFAR_PIXELS = 3 * 32 * 32
CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))


def read_idx(data: bytes) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: two zero bytes, type 8, number of axes, big-endian sizes, values."""
    import numpy as np

    axes = data[3] if len(data) >= 4 else 0
    start = 4 + 4 * axes
    if data[:3] != b"\x00\x00\x08" or len(data) < start:
        raise BadInput(f"not an idx file of unsigned bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    shape = struct.unpack(f">{axes}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise BadInput(
            f"the idx file declares {math.prod(shape)} values of shape {shape} but contains {len(data) - start}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()  # torch needs writable arrays


def read_cifar(batches: Sequence[bytes], label_bytes: int) -> Arrays:
    """CIFAR's binary records: the label bytes (the last one is the class), then 3,072 bytes channel first."""
    import numpy as np

    size = label_bytes + CIFAR_PIXELS
    for batch in batches:
        if not batch or len(batch) % size:
            raise BadInput(f"a CIFAR file of {len(batch)} bytes is not a whole number of {size}-byte records")
    records = [np.frombuffer(batch, np.uint8).reshape(-1, size) for batch in batches]
    pixels = np.concatenate([record[:, label_bytes:] for record in records]).reshape(-1, 3, 32, 32)
    return pixels, np.concatenate([record[:, label_bytes - 1] for record in records])


def cifar_from_sheet(sheet: Path, labels: Sequence[int]) -> bytes:
    """CIFAR-10 binary records from a picture; row i of the picture is the 1,024 RGB pixels of image i."""
    import numpy as np
    from PIL import Image

    with Image.open(sheet) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    if pixels.shape != (len(labels), 1024, 3):
        raise ValueError(f"{sheet.name} has shape {pixels.shape}, expected {(len(labels), 1024, 3)}")
    channel_first = pixels.transpose(0, 2, 1).reshape(len(labels), CIFAR_PIXELS)
    return np.column_stack([np.asarray(labels, np.uint8), channel_first]).tobytes()


def idx_splits(contents: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """Train and test from the four idx files of MNIST or Fashion-MNIST."""
    train, test = (
        (read_idx(contents[f"{split}-images-idx3-ubyte"])[:, None], read_idx(contents[f"{split}-labels-idx1-ubyte"]))
        for split in ("train", "t10k")
    )
    return train, test


def cifar10_splits(contents: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """Train (five batches in order) and test of CIFAR-10."""
    return read_cifar([contents[name] for name in CIFAR10_TRAIN], 1), read_cifar([contents["test_batch.bin"]], 1)


def cifar100_splits(contents: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """Train and test of CIFAR-100 with the fine label, which follows the coarse label in each record."""
    return read_cifar([contents["train.bin"]], 2), read_cifar([contents["test.bin"]], 2)


def digits_splits(contents: Mapping[str, bytes]) -> tuple[Arrays, Arrays]:
    """scikit-learn's 1,797 scans in their order: the first 1,437 for training, the last 360 for testing."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.uint8)
    return (pixels[:1437], labels[:1437]), (pixels[1437:], labels[1437:])
