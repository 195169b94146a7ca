"""Attack the product and print a table of what was lost, wrong or let in: ``python -m tests.torture [GROUP…]``.

Every group runs in a process of its own, forked from this one: a crash of one is a line in its row. A few of each run
side by side; otherwise one group follows the other, so that its seconds are its own.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tests.torture import damage, disk, hostile, inputs, kills, load
from tests.torture.attempts import Setting, Tally
from tests.torture.material import install_preset, train_checkpoints

GROUPS: dict[str, Callable[[Setting, Tally], None]] = {
    "kills": kills.attack,
    "damage": damage.attack,
    "inputs": inputs.attack,
    "hostile": hostile.attack,
    "disk": disk.attack,
    "load": load.attack,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Attack the product.")
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--few", action="store_true", help="A few of each, in seconds.")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        install_preset(Path(folder) / "presets")
        train_checkpoints(Path(folder) / "trained")
        begun = []
        for name in asked.groups or GROUPS:
            place = Path(folder) / name
            place.mkdir()
            setting = Setting(place, Path(folder) / "trained", Random(f"{asked.seed} {name}"), asked.few)
            begun.append(_Group(name, setting))
            if not asked.few:
                begun[-1].wait()
        tallies = [group.wait() for group in begun]
    print(_table(tallies))
    return 0 if all(tally.clean for tally in tallies) else 1


def _import_everything() -> None:
    """Here, once: the processes that are forked and killed spend their time on what they were asked."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("api", "findings.crosscheck", "run.comparing", "run.reverification", "run.runner"):
        importlib.import_module(f"benchmark.{name}")
    for name in ("foolbox", "torch._dynamo", "torchattacks"):
        importlib.import_module(name)


class _Group:
    """A group at work in a process."""

    def __init__(self, name: str, setting: Setting) -> None:
        context = multiprocessing.get_context("fork")
        self.name = name
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_attack, args=(name, setting, sender))
        self.process.start()
        sender.close()

    @functools.cache  # noqa: B019
    def wait(self) -> Tally:
        """How it ended, which is said at once."""
        try:
            tally: Tally = self.receiver.recv()
        except EOFError:
            self.process.join()
            tally = Tally(self.name, 1, wrong=[f"the process of the group ended with code {self.process.exitcode}"])
        self.process.join()
        print(_row(tally), file=sys.stderr, flush=True)
        return tally


def _attack(name: str, setting: Setting, sender: Connection) -> None:
    tally, began = Tally(name), time.monotonic()
    try:
        GROUPS[name](setting, tally)
    except Exception:
        tally.wrong.append(traceback.format_exc())
    tally.seconds = time.monotonic() - began
    sender.send(tally)


def _row(tally: Tally) -> str:
    counts = f"{tally.tried:7}{len(tally.lost):6}{len(tally.wrong):7}{len(tally.entered):5}{tally.seconds:9.0f}"
    return f"{tally.group:10}{counts}"


def _table(tallies: list[Tally]) -> str:
    lines = [f"{'group':10}{'tried':>7}{'lost':>6}{'wrong':>7}{'in':>5}{'seconds':>9}", *map(_row, tallies)]
    for tally in tallies:
        for kind in ("lost", "wrong", "entered", "skipped"):
            lines += [f"{tally.group}, {kind}: {words}" for words in getattr(tally, kind)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
