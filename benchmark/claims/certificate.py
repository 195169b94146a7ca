"""Certificates: adversarial images in one file, which anybody with the model and the data can check in seconds.

A certificate is a Parquet file. Each adversarial image is a row with its index in the test set, its label and its
pixels. The metadata contain the claim, the result, and a checksum over everything. Pixels are kept as the bits that
differ from the clean image, which compresses them without rounding; so a reader needs the same data. Nothing in the
file is trusted: labels and clean images come from the data, predictions come from the reader's model, and the sentence
is computed again from the checked values.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmark.attacks.bounds import NORMS, Bound, read_bound
from defenses.errors import BadInput, NotVerified
from defenses.files import write_bytes

KEY, CHECKSUM, VERSION = b"adp-benchmark-certificate", b"sha256", 1
COLUMNS = {"index": pa.int64(), "label": pa.int64(), "pixels": pa.binary()}
LARGEST = 512 * 2**20
"""Largest size of a certificate in bytes, packed and unpacked; a larger file is not read."""
SCALAR = 1e-6
"""For L0, a change of a scalar up to this value does not count, because rounding may explain it."""
UNREADABLE = (OSError, pa.ArrowException, MemoryError, OverflowError, ValueError, KeyError, TypeError, RecursionError)
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Statement:
    """The statement of a certificate. It is untrusted: each field is checked, or shown as a quotation."""

    claim: str
    claimed: float
    """Accuracy, between 0 and 1."""
    bound: str
    dataset: str
    data: str
    """Checksum of the data."""
    weights: str
    """sha256 of the weights."""
    model: str
    tried: tuple[int, ...]
    """Indices of all test images that were attacked or found misclassified."""
    misclassified: tuple[int, ...]
    """Indices of the test images that the model misclassifies without an attack; a subset of ``tried``."""
    broken_by: dict[str, int]
    """Attack to the number of images that it fooled first."""
    sentence: str
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Certificate:
    """A statement and the adversarial images that prove it."""

    statement: Statement
    index: NDArray[np.int64]
    """Rows of the test set."""
    labels: NDArray[np.int64]
    images: Pixels


def write_certificate(path: Path, certificate: Certificate, clean: Pixels) -> None:
    """Write a certificate; ``clean`` are the clean images of its rows."""
    pixels = [_packed(*pair) for pair in zip(certificate.images, clean, strict=True)]
    columns = {"index": certificate.index, "label": certificate.labels, "pixels": pixels}
    table = pa.table(columns, schema=pa.schema(COLUMNS))
    described = json.dumps({"version": VERSION, **asdict(certificate.statement)})
    table = table.replace_schema_metadata({KEY: described, CHECKSUM: _checksum(table, described)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19, use_dictionary=False)
    write_bytes(path, buffer.getvalue())


def is_certificate(path: Path) -> bool:
    """Whether the metadata of a file call it a certificate."""
    try:
        return path.is_file() and KEY in (_schema(path).metadata or {})
    except UNREADABLE:
        return False


def read_statement(path: Path) -> Statement:
    """The statement of a certificate, without its images; do not trust it before `read_certificate`."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path} has {path.stat().st_size:,} bytes; a certificate has at most {LARGEST:,}")
        return _statement(path, (_schema(path).metadata or {})[KEY])
    except BadInput:
        raise
    except UNREADABLE as error:
        raise BadInput(
            f"{path} is not a certificate, or is damaged ({type(error).__name__}); get the file again"
        ) from None


def read_certificate(path: Path, clean: Pixels) -> Certificate:
    """Read a whole certificate; ``clean`` are all clean images of the test set."""
    read_statement(path)  # refuses a file that is too large
    try:
        with path.open("rb") as file:
            parquet = pq.ParquetFile(file)
            unpacked = sum(
                parquet.metadata.row_group(group).total_byte_size for group in range(parquet.metadata.num_row_groups)
            )
            if unpacked > LARGEST or parquet.metadata.num_rows > len(clean):
                raise BadInput(f"{path} is larger than a certificate of {len(clean)} images can be")
            table = parquet.read()
        metadata = table.schema.metadata
        table = table.select(list(COLUMNS)).cast(pa.schema(COLUMNS))
        if metadata.get(CHECKSUM, b"").decode() != _checksum(table, metadata[KEY].decode()):
            raise NotVerified(f"{path} was changed after it was written: its content does not match its checksum")
        statement = _statement(path, metadata[KEY])
        index = table["index"].to_numpy()
        if len(index) and not (index.min() >= 0 and index.max() < len(clean)):
            raise BadInput(
                f"{path} refers to images beyond the {len(clean)} images of the test set; "
                "run adp-bench verify --dataset with its data"
            )
        if len(np.unique(index)) < len(index):
            raise BadInput(f"{path} contains the same image twice")
        found = [_unpacked(bits, clean[row]) for bits, row in zip(table["pixels"].to_pylist(), index, strict=True)]
    except BadInput:
        raise
    except UNREADABLE as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}); get the file again") from None
    images = np.stack(found) if found else np.empty((0, *clean.shape[1:]), dtype=np.float32)
    return Certificate(statement, index, table["label"].to_numpy(), images)


def distances(clean: Pixels, images: Pixels, bound: Bound) -> NDArray[np.float64]:
    """Distances of images from their clean images in the bound's norm, in float64."""
    difference = np.abs(images.astype(np.float64) - clean.astype(np.float64)).reshape(
        len(images), math.prod(images.shape[1:])
    )
    measures = {
        "linf": lambda: difference.max(1, initial=0.0),
        "l2": lambda: np.sqrt((difference**2).sum(1)),
        "l1": lambda: difference.sum(1),
        "l0": lambda: (difference > SCALAR).sum(1).astype(np.float64),
    }
    assert set(measures) == set(NORMS)
    return np.asarray(measures[bound.norm]())


def _checksum(table: pa.Table, described: str) -> str:
    """sha256 of the statement and of every value in every row."""
    digest = hashlib.sha256(described.encode())
    for name in ("index", "label"):
        digest.update(np.ascontiguousarray(table[name].to_numpy()).tobytes())
    for pixels in table["pixels"].to_pylist():
        digest.update(pixels)
    return digest.hexdigest()


def _packed(image: Pixels, clean: Pixels) -> bytes:
    """The bits in which two images differ, grouped by byte significance, which compresses better."""
    bits = np.ascontiguousarray(image).view(np.uint32) ^ np.ascontiguousarray(clean).view(np.uint32)
    return bits.reshape(-1).view(np.uint8).reshape(-1, 4).T.tobytes()


def _unpacked(packed: bytes, clean: Pixels) -> Pixels:
    if len(packed) != clean.nbytes:
        raise ValueError("the size of an image differs from the data")
    bits = np.ascontiguousarray(np.frombuffer(packed, dtype=np.uint8).reshape(4, -1).T).view(np.uint32)
    return (bits.reshape(clean.shape) ^ np.ascontiguousarray(clean).view(np.uint32)).view(np.float32)


def _statement(path: Path, text: bytes) -> Statement:
    """Parse a statement and check the type of every field: the file is untrusted."""
    described: dict[str, Any] = json.loads(text)
    if described.pop("version") != VERSION:
        raise BadInput(f"{path} is a certificate of another version; check it with a newer adp-bench")
    for name in ("claim", "bound", "dataset", "data", "weights", "model", "sentence"):
        if not isinstance(described[name], str):
            raise TypeError(name)
    claimed = described["claimed"]
    if not isinstance(claimed, (int, float)) or not 0 <= claimed <= 1:
        raise ValueError("claimed")
    if described["bound"]:
        read_bound(described["bound"])
    for name in ("tried", "misclassified"):
        rows = described[name] = tuple(described[name])
        if not all(type(row) is int and row >= 0 for row in rows) or len(set(rows)) < len(rows):
            raise ValueError(name)
    for name, kind in (("broken_by", int), ("versions", str)):
        if not all(type(value) is kind and isinstance(key, str) for key, value in described[name].items()):
            raise TypeError(name)
    return Statement(**described)


def _schema(path: Path) -> pa.Schema:
    with path.open("rb") as file:
        return pq.read_schema(file)
