"""Read ``data.npz`` without unpickling, after its headers show that it fits into memory."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.datasets.splits import KEYS, NAMES
from defenses.errors import BadInput, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHARE = 0.5
"""Largest share of this machine's memory for the arrays of a file."""
RATIO = 1100
"""Largest accepted compression. Deflate makes data at most 1,032 times smaller, so a larger ratio is false."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The known arrays of an npz file."""
    import numpy as np

    if not path.is_file():  # reading a pipe would wait
        raise BadInput(f"no file {path}; give the path of an .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            kept = [key for key in (*KEYS, NAMES) if f"{key}.npy" in archive.namelist()]
            if not kept:
                held = ", ".join(name.removesuffix(".npy") for name in archive.namelist()[:10]) or "nothing"
                raise BadInput(f"{path} contains {held}; it must contain {', '.join(KEYS)}")
            check_size(str(path), sum(_announced(archive, key, path) for key in kept))
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in kept}
    except BadInput:
        raise
    except Exception as error:  # zipfile, zlib and numpy's header reader raise different errors
        raise BadInput(
            f"{path} cannot be read as an .npz file: {first_line(error)}; save it with numpy.savez"
        ) from None


def _announced(archive: zipfile.ZipFile, key: str, path: Path) -> int:
    """Size of an array in bytes by its header; the size of the archive's entry must agree."""
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(f"{key} of {path} has a compression that numpy does not use; save it with numpy.savez")
    if info.file_size > RATIO * info.compress_size + 1024:
        raise BadInput(
            f"{key} of {path} declares {info.file_size} bytes in {info.compress_size} compressed ones, "
            "which is impossible; save it with numpy.savez"
        )
    with archive.open(info) as content:
        shape, dtype = _header(content)
        begun = content.tell()
    if dtype.hasobject:
        raise BadInput(f"{key} of {path} contains Python objects, which are never unpickled; save numbers")
    size = math.prod(shape) * dtype.itemsize
    if size != info.file_size - begun:
        raise BadInput(
            f"{key} of {path} declares shape {shape} but contains {info.file_size - begun} bytes; "
            "save it with numpy.savez"
        )
    return size


def _header(content: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from numpy.lib import format as npy

    version = npy.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise BadInput(f"an array has format {version}, which is for named fields; save plain arrays")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(content)
    return shape, dtype


def check_size(where: str, size: int) -> None:
    """Refuse data that need more than half of this machine's memory."""
    room = int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if size > room:
        raise BadInput(
            f"{where} needs {size:,} bytes; the limit is half of this machine's memory, {room:,}; use fewer images"
        )
