"""Official files on disk: find, check and fetch them; a failed fetch installs nothing."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

from benchmark.datasets.catalogue import Entry
from benchmark.datasets.progress import Display
from benchmark.datasets.sources import Order, SourceFailed
from defenses.errors import BadInput, RunFailed

ALREADY_THERE = "files already in the data folder"
_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_DAMAGED = (EOFError, ValueError, SyntaxError, LookupError, TypeError, AttributeError, zlib.error, tarfile.TarError)
_SOURCE_TROUBLE = (SourceFailed, OSError, *_DAMAGED)


def data_folder() -> Path:
    """``ADP_BENCH_DATA`` if it is set, else the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("ADP_BENCH_DATA")
    try:
        return Path(chosen).expanduser() if chosen else user_cache_path("adp-benchmark", appauthor=False)
    except RuntimeError as error:  # no such user, or no home folder
        raise BadInput(
            f"cannot find the data folder {chosen or ''} ({error}); set ADP_BENCH_DATA to a folder"
        ) from None


def missing(entry: Entry) -> list[str]:
    """Files that are not on disk."""
    folder = data_folder() / entry.folder
    return [file for file in entry.files if not (folder / file).is_file()]


def checked(entry: Entry, file: str) -> bytes:
    """The content of one installed file; BadInput if it does not match its official checksum."""
    path = data_folder() / entry.folder / file
    remedy = f"run: adp-bench data fetch {entry.name}"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{entry.name} is incomplete: {path} is missing; {remedy}") from None
    except OSError as error:
        raise BadInput(f"{entry.name}: cannot read {path} ({error.strerror}); {remedy}") from None
    if not _matches(content, entry.files[file]):
        algorithm = entry.files[file].partition(":")[0]
        raise BadInput(f"{entry.name}: {path} is damaged (its {algorithm} differs from the official one); {remedy}")
    return content


def fetch(entry: Entry, progress: bool) -> str:
    """Install missing and damaged files from the first source that has them; return the name of that source.

    Files are prepared in a temporary folder inside the data folder, under a lock, and moved into place at the end.
    """
    from filelock import FileLock, Timeout

    data = data_folder()
    try:
        data.mkdir(parents=True, exist_ok=True)
        with Display(progress) as display:
            lock = FileLock(data / f".{entry.name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                display.step(f"another process is fetching {entry.name}; waiting for it")
                lock.acquire()
            try:
                return _fetch_alone(entry, data, display)
            finally:
                lock.release()
    except OSError as error:
        reason = error.strerror or error
        if error.errno in _DISK_TROUBLE:
            raise RunFailed(
                f"{entry.name} was not installed: {reason} in {data}; free some space, "
                "or set ADP_BENCH_DATA to another folder"
            ) from None
        raise BadInput(
            f"cannot write to the data folder {data} ({reason}); set ADP_BENCH_DATA to a writable folder"
        ) from None


def _fetch_alone(entry: Entry, data: Path, display: Display) -> str:
    for leftover in data.glob(f".fetch-{entry.name}-*"):  # of a killed fetch: this process holds the lock now
        shutil.rmtree(leftover)
    wanted = tuple(file for file in entry.files if not _installed(entry, file))
    if not wanted:
        return ALREADY_THERE
    tried = []
    for source in entry.sources:
        with tempfile.TemporaryDirectory(prefix=f".fetch-{entry.name}-", dir=data) as temporary:
            limit = 2 * max(entry.sizes) * math.prod(entry.shape) + (1 << 20)
            deliver, scratch = Path(temporary) / "deliver", Path(temporary) / "scratch"
            order = Order(wanted, deliver, scratch, data, entry.folder, limit)
            order.deliver.mkdir()
            order.scratch.mkdir()
            try:
                source.deliver(order, display)
                display.step(f"checking {entry.name}")
                for file in wanted:
                    if not _matches((order.deliver / file).read_bytes(), entry.files[file]):
                        raise SourceFailed(f"{file} does not match its official checksum")
            except _SOURCE_TROUBLE as error:
                if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
                    raise
                tried.append(f"{source.label}: {' '.join(str(error).split())}")
                continue
            _move_into_place(order)
            return source.label
    raise RunFailed(
        f"{entry.name} could not be downloaded (tried {'; '.join(tried)}); "
        "check the connection and try again, or put the official "
        f"{' and '.join(f'{entry.folder}/{file}' for file in wanted)} into {data}"
    )


def _installed(entry: Entry, file: str) -> bool:
    try:
        checked(entry, file)
    except BadInput:
        return False
    return True


def _move_into_place(order: Order) -> None:
    """Move the files into place: a new folder by one rename, or one file at a time in an existing folder."""
    place = order.data / order.folder
    if not place.exists():
        order.deliver.rename(place)
        return
    for file in order.files:
        os.replace(order.deliver / file, place / file)


def _matches(content: bytes, digest: str) -> bool:
    algorithm, _, expected = digest.partition(":")
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == expected
