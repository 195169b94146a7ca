"""A folder with ``train/CLASS/`` and ``test/CLASS/`` of images, read into arrays."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.datasets.npz import check_size
from defenses.errors import BadInput, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

SPLITS = ("train", "test")
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
"""File name ending to the only decoder that may open such a file."""
MODES = {"1": "L", "P": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA"}
"""Mode of an image file to the mode of its array: 1, 2, 3 or 4 channels of bytes."""
IGNORED = {"thumbs.db", "desktop.ini"}


def read_folder(folder: Path) -> dict[str, Any]:
    """Read a folder into arrays with the keys of an npz file; classes are numbered in alphabetical order."""
    files = {split: _files(folder / split) for split in SPLITS}
    if not files["test"]:
        raise BadInput(f"{folder} has no images in test/CLASS/; put them into {folder}/test/CLASS/*.png")
    names = sorted({path.parent.name for paths in files.values() for path in paths})
    first = files["test"][0]
    size, mode = _look(first)
    check_size(str(folder), sum(map(len, files.values())) * size[0] * size[1] * len(mode))
    found: dict[str, Any] = {"class_names": names}
    for split, paths in files.items():
        if paths:
            found[f"x_{split}"] = _pixels(paths, first, size, mode)
            found[f"y_{split}"] = _labels(paths, names)
    return found


def _files(split: Path) -> list[Path]:
    """The image files of a split, class by class, sorted by name."""
    found = []
    for place in sorted(split.iterdir()) if split.is_dir() else []:
        if place.name.startswith(".") or place.name.lower() in IGNORED:
            continue
        if not place.is_dir():
            raise BadInput(f"{place} is not a folder; use one folder per class, {split}/CLASS/*.png")
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or path.name.lower() in IGNORED:
                continue
            if path.suffix.lower() not in FORMATS or not path.is_file():
                raise BadInput(f"{path} is not an image; use {', '.join(FORMATS)}")
            found.append(path)
    return found


def _pixels(paths: list[Path], first: Path, size: tuple[int, int], mode: str) -> NDArray[np.uint8]:
    import numpy as np

    pixels = np.empty((len(paths), size[1], size[0], len(mode)), np.uint8)
    for place, path in enumerate(paths):
        here, own = _look(path)
        if here != size:
            raise BadInput(
                f"{path} has {here[0]}×{here[1]} pixels and {first} {size[0]}×{size[1]}; make all images the same size"
            )
        if own != mode:
            raise BadInput(f"{path} has mode {own} and {first} has mode {mode}; save all images with the same channels")
        with _opened(path) as picture:
            try:
                pixels[place] = np.asarray(picture.convert(mode)).reshape(pixels.shape[1:])
            except (OSError, ValueError, SyntaxError) as error:
                raise BadInput(f"{path} cannot be read: {first_line(error)}; save the image again") from None
    return pixels


def _labels(paths: list[Path], names: list[str]) -> NDArray[np.int64]:
    import numpy as np

    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[path.parent.name] for path in paths], np.int64)


def _look(path: Path) -> tuple[tuple[int, int], str]:
    """Size and channels from the file's header, without decoding the image."""
    with _opened(path) as picture:
        if picture.mode not in MODES:
            raise BadInput(f"{path} has pixels of mode {picture.mode}; save it with 8 bits per channel")
        return picture.size, MODES[picture.mode]


def _opened(path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(path, formats=[FORMATS[path.suffix.lower()]])
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise BadInput(f"{path} is too large: {first_line(error)}; resize the image") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise BadInput(
            f"{path} is not a {FORMATS[path.suffix.lower()]} image: {first_line(error)}; save the image again"
        ) from None
