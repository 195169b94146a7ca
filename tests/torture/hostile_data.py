"""Hostile data in place of ``data.npz`` and folders of images: nothing in them runs, none is unpacked without end."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 1), dtype=np.uint8)
LABELS = np.arange(12) % 3
GOOD: dict[str, Any] = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS}
CHANGES: dict[str, dict[str, Any]] = {
    "NaN": {"x_test": np.full((12, 8, 8, 1), np.nan)},
    "infinity": {"x_train": np.full((12, 8, 8, 1), np.inf)},
    "a range of its own": {"x_test": IMAGES * 1e30},
    "no images": {"x_test": IMAGES[:0], "y_test": LABELS[:0]},
    "no pixels": {"x_test": IMAGES[:, :0], "x_train": IMAGES[:, :0]},
    "five dimensions": {"x_test": IMAGES[None]},
    "text": {"x_test": np.array(["a"] * 12)},
    "complex numbers": {"x_test": IMAGES * 1j},
    "dates": {"y_test": np.array(["2020-01-01"] * 12, "datetime64[D]")},
    "named fields": {"y_test": np.zeros(12, [("a", "i4"), ("b", "f4")])},
    "fewer labels": {"y_test": LABELS[:5]},
    "labels in two columns": {"y_test": np.stack([LABELS] * 2, 1)},
    "a label of -1": {"y_test": LABELS - 1},
    "a label of a billion": {"y_train": LABELS * 10**9},
    "a label without end": {"y_train": LABELS.astype(np.uint64) * (2**62)},
    "labels between": {"y_train": LABELS + 0.5},
    "another size in test": {"x_test": IMAGES[:, :4]},
    "names that are commands": {"class_names": np.array(["\x1b[2J", "=cmd|x", r"\input{x}"])},
    "two names": {"class_names": np.array(["a", "b"])},
}


def files(marker: Path, bomb: object) -> dict[str, Callable[[Path], object]]:
    """How to write each hostile npz file or folder, by its name and what is wrong with it."""
    found: dict[str, Callable[[Path], object]] = {}
    for number, (words, change) in enumerate(CHANGES.items()):
        found[f"a{number}.npz {words}"] = lambda path, change=change: np.savez(path, **GOOD | change)
    objects = np.array([bomb] * 12, dtype=object)
    for number, key in enumerate(GOOD):
        found[f"b{number}.npz pickle in {key}"] = lambda path, key=key: np.savez(path, **GOOD | {key: objects})
    code = f"__import__('os').system('touch {marker}')"
    return found | {
        "c0.npz plain pickle": lambda path: path.write_bytes(pickle.dumps(bomb)),
        "c1.npz zip bomb": lambda path: _packed(path, _header("(100000, 100, 1000, 1)"), 10_000),
        "c2.npz zip bomb that lies": lambda path: _packed(path, _header("(12, 8, 8, 1)"), 100),
        "c3.npz more than there is": lambda path: _packed(path, _header("(1099511627776, 1099511627776)"), 0),
        "c4.npz negative shape": lambda path: _packed(path, _header("(-1, 8, 8, 1)"), 0),
        "c5.npz code in a header": lambda path: _packed(path, _header(code), 0),
        "c6.npz deep header": lambda path: _packed(path, _header("(" * 3000), 0),
        "c7.npz header without end": lambda path: _packed(path, b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", 100),
        "c8.npz other names": lambda path: np.savez(path, images=IMAGES, labels=LABELS),
        "c9.npz paths": lambda path: _zip(path, {f"../../{marker.name}": b"x", "x_test.npy": b"x"}),
        "d0.npz half of it": _half,
        "d1.npz nothing": lambda path: path.write_bytes(b""),
        "d2.npz pipe": os.mkfifo,
        "d3.npz link to a device": lambda path: path.symlink_to("/dev/zero"),
        "d4.npz link to itself": lambda path: path.symlink_to(path.name),
        "e0 folder with nothing": lambda path: path.mkdir(),
        "e1 folder with pickles": lambda path: _folder(path, pickle.dumps(bomb)),
        "e2 folder with a page of PostScript": lambda path: _folder(path, b"%!PS-Adobe-3.0 EPSF-3.0\n(x) run\n"),
        "e3 folder with a picture without end": lambda path: _folder(path, _png(2**31 - 1, 2**31 - 1)),
        "e4 folder with a large picture": lambda path: _folder(path, _png(60_000, 60_000)),
        "e5 folder with half a picture": lambda path: _folder(path, _png(8, 8)[:-20]),
        "e6 folder with a secret": lambda path: _folder(path, None),
        "e7 folder with names": lambda path: _folder(path, _picture(), "=cmd|x\x1b[2J"),
        "e8 folder in a folder": lambda path: (path / "test" / "a" / "b.png").mkdir(parents=True),
    }


def _header(shape: str) -> bytes:
    """The beginning of an array of bytes, with any text for its shape."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def _packed(path: Path, header: bytes, megabytes: int) -> None:
    """A file whose test images begin so and go on with zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in ("x_train", "y_train", "y_test"):
            content = io.BytesIO()
            np.save(content, GOOD[key])
            archive.writestr(f"{key}.npy", content.getvalue())
        with archive.open("x_test.npy", "w", force_zip64=True) as file:
            file.write(header)
            for _ in range(megabytes):
                file.write(bytes(1_000_000))


def _zip(path: Path, entries: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def _half(path: Path) -> None:
    np.savez(path, **GOOD)
    path.write_bytes(path.read_bytes()[:1500])


def _picture() -> bytes:
    content = io.BytesIO()
    Image.fromarray(IMAGES[0, :, :, 0]).save(content, "PNG")
    return content.getvalue()


def _png(width: int, height: int) -> bytes:
    """A grey picture of that size by its header, and one row of it."""

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(bytes(1000))) + part(b"IEND", b"")


def _folder(path: Path, content: bytes | None, name: str = "a") -> None:
    """Two classes in both parts, each with one picture of that content; without any, a link to a file of the system."""
    for part in ("train", "test"):
        for place in (path / part / name, path / part / "other"):
            place.mkdir(parents=True)
            picture = place / "1.png"
            _ = picture.symlink_to("/etc/passwd") if content is None else picture.write_bytes(content)
