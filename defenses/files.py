"""Atomic writes, and checksums that detect a changed file."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from defenses.errors import BadInput, RunFailed


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; if the block ends without an error, the temporary file replaces ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise RunFailed(
            f"could not write {path}: {error.strerror or error}; free some space, or choose another folder with --out"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # an error of the clean-up must not hide the first error
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes atomically.

    Callers serialise to memory first: a library that writes the file itself reports a full disk by an unclear error.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, with the same line endings on every system."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let a library write a file, atomically."""
    with replacing(path) as temporary:
        write(temporary)


SEAL = b"adp-benchmark sha256 "


def sealed(data: bytes) -> bytes:
    """The data, after a first line with its checksum."""
    return SEAL + hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(content: bytes) -> bytes:
    """The data of a sealed file; ValueError if its checksum does not match. Data without a seal is not changed."""
    if not content.startswith(SEAL):
        return content
    line, _, data = content.removeprefix(SEAL).partition(b"\n")
    if line.decode("ascii", "replace") != hashlib.sha256(data).hexdigest():
        raise ValueError("its content does not match its checksum")
    return data


def writable_folder(path: Path) -> Path:
    """Create the folder and make sure that files can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"cannot write in {path}: {error.strerror or error}; choose another folder with --out"
        ) from error
    return path
