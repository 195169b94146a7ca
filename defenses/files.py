"""Write a file whole or not at all, and notice when one that was sealed has changed."""

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
    """Give a temporary path beside ``path``; what is written there takes its place when the block ends well."""
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
        with contextlib.suppress(OSError):  # what went wrong before is the news
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes atomically; libraries serialise to memory first, for they hide a full disk in errors of their own."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, with the same line ends on every system."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let a library write a file, atomically."""
    with replacing(path) as temporary:
        write(temporary)


SEAL = b"adp-benchmark sha256 "


def sealed(data: bytes) -> bytes:
    """The data behind a line with its checksum."""
    return SEAL + hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(content: bytes) -> bytes:
    """The data of a sealed file; ValueError where it is not what was sealed. A file without a seal is as it is."""
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
