"""What every attack on the product needs: a tally of how it ended, and commands in this process or in one to kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from benchmark.cli import run

ESCAPED = 70
"""Exit code of a process whose command raised something."""


@dataclass
class Tally:
    """How one group of attacks ended; ``lost``, ``wrong`` and ``entered`` must stay empty."""

    group: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """Work that was done and had to be done again, or never came back."""
    wrong: list[str] = field(default_factory=list)
    """Another number, another exit code, more than one line, or a traceback."""
    entered: list[str] = field(default_factory=list)
    """Foreign code that ran, foreign text that was not escaped, files where none belong."""
    skipped: list[str] = field(default_factory=list)
    """Attacks that this machine cannot do, with the reason."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return bool(self.tried) and not (self.lost or self.wrong or self.entered)


@dataclass(frozen=True)
class Setting:
    """What a group is given: an empty folder, small checkpoints, its own random numbers, and how much to try."""

    folder: Path
    trained: Path
    draws: Random
    few: bool

    def copy_checkpoints(self, folder: Path) -> None:
        """Put the checkpoints into a folder, which commands are then run in."""
        shutil.copytree(self.trained, folder, dirs_exist_ok=True)

    def amount(self, whole: int, few: int) -> int:
        return few if self.few else whole


@dataclass(frozen=True)
class Answer:
    """What a command did: its exit code, or the exception that escaped it, and what it printed."""

    code: int | None
    out: str
    err: str
    escaped: str = ""
    stopped: bool = False
    """It was still at work when its time was up."""

    @property
    def last(self) -> str:
        return (self.escaped or self.err).strip().splitlines()[-1][:300] if self.escaped or self.err.strip() else ""

    @property
    def traceback(self) -> bool:
        return bool(self.escaped) or "Traceback (most recent call last)" in self.err


def call(words: Sequence[str], folder: Path, seconds: float = 60) -> Answer:
    """Run a command here, with ``folder`` as working folder; whatever escapes it is caught and told."""
    code, escaped, late = None, "", []

    def stop(number: int, frame: FrameType | None) -> None:
        late.append(number)
        raise KeyboardInterrupt

    def ignored(found: sys.UnraisableHookArgs) -> None:
        if late and issubclass(found.exc_type, KeyboardInterrupt):  # Python drops it inside a finaliser: ask again
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            sys.__unraisablehook__(found)

    before = signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = ignored
    here = Path.cwd()
    os.chdir(folder)
    with _captured() as (out, err):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            code = run(list(words))
        except BaseException:
            escaped = traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sys.unraisablehook = sys.__unraisablehook__
            os.chdir(here)
    return Answer(code, _text(out), _text(err), escaped, bool(late))


@contextmanager
def _captured() -> Iterator[tuple[Path, Path]]:
    """Both streams into files, also what compiled code writes there."""
    with tempfile.TemporaryDirectory() as folder:
        paths = (Path(folder) / "out", Path(folder) / "err")
        sys.stdout.flush(), sys.stderr.flush()
        kept = [os.dup(1), os.dup(2)]
        for number, path in enumerate(paths, 1):
            _redirect(number, path)
        try:
            yield paths
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, saved in enumerate(kept, 1):
                os.dup2(saved, number)
                os.close(saved)
            for path in paths:
                _read[path] = path.read_text(encoding="utf-8", errors="replace")


_read: dict[Path, str] = {}


def _text(path: Path) -> str:
    return _read.pop(path)


def _redirect(number: int, path: Path) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, number)
    os.close(opened)


class Victim:
    """A command in a process of its own, forked from this one, which has imported everything already."""

    def __init__(self, words: Sequence[str], folder: Path, log: Path) -> None:
        self.log = log
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(words, folder)

    def _live(self, words: Sequence[str], folder: Path) -> None:
        code = ESCAPED
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(folder)
            _redirect(1, self.log)
            _redirect(2, self.log)
            code = run(list(words))
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 120) -> int:
        """Its exit code, negative for the signal that ended it; a process that hangs is killed and told."""
        while time.monotonic() < self.began + seconds:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        self.kill(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return ESCAPED

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def alone(words: Sequence[str], folder: Path, log: Path) -> int:
    """Run a command in a process of its own, undisturbed; its exit code."""
    return Victim(words, folder, log).wait()
