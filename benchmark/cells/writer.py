"""One writer per folder: a second process names the first one and waits; a killed process releases the folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from defenses.errors import BadInput
from defenses.files import write_text

LOCK, HOLDER = ".lock", ".writer"


@contextmanager
def only_writer(folder: Path, say: Callable[[str], None] = lambda words: None) -> Iterator[None]:
    """Lock the folder while the block runs; before a wait, ``say`` gets the name of the other process."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{folder} is being written by {_holder(folder)}; waiting for it to end")
            lock.acquire()
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror or error}); choose another folder") from None
    try:
        write_text(folder / HOLDER, f"process {os.getpid()}: {shlex.join(['adp-bench', *sys.argv[1:]])}\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    """The process that locks a folder, as it describes itself."""
    try:
        return (folder / HOLDER).read_text(encoding="utf-8", errors="replace").strip() or "another process"
    except OSError:
        return "another process"
