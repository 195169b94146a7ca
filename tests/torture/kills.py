"""Processes killed at random moments: the same command again must end as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from defenses.checkpoints import FILE_NAME, read_provenance
from tests.torture.attempts import Setting, Tally, Victim, alone
from tests.torture.material import FILES, RUN, TRAIN, Host, installed, table

Kept = dict[str, str | bytes]


@dataclass(frozen=True)
class Target:
    """Commands to disturb, all at once; what they must end with, and what a kill must not undo."""

    name: str
    commands: list[list[str]]
    result: Callable[[Path], object]
    kept: Callable[[Path], Kept] = lambda folder: {}
    prepare: Callable[[Path], None] = lambda folder: None


def attack(setting: Setting, tally: Tally) -> None:
    setting.copy_checkpoints(setting.folder)
    with Host(setting.folder / "data"):
        for target in _targets()[:: setting.amount(1, 3)]:
            _harass(target, setting, tally)


def _targets() -> list[Target]:
    long = ["--attack", "pgd(eps=0.1,steps=40)", "--tier", "strict", "--samples", "100"]
    short = [*RUN, "--samples", "8"]
    writers = [[*RUN[:4], "--attack", name, "--tier", "strict", "--out", "run"] for name in ("fgsm", "bim(eps=0.1)")]
    return [
        Target("data fetch", [["data", "fetch", "toy"]], _fetched, prepare=_no_data),
        Target("train", [["train", "adp-2-0.5", *TRAIN, "--epochs", "4", "--out", "run"]], _weights, _epochs),
        Target("run, short cells", [[*short, "--out", "run"]], _rows, _cells),
        Target("run, long cells", [[*RUN[:4], *long, "--out", "run"]], _rows, _cells),
        Target("run, two writers", writers, _rows, _cells),
        Target("report", [["report", "run"]], _rows, _cells, _copy_of_a_run),
    ]


def _harass(target: Target, setting: Setting, tally: Tally) -> None:
    folder, log = setting.folder, setting.folder / "log"
    shutil.rmtree(folder / "run", ignore_errors=True)
    log.unlink(missing_ok=True)
    target.prepare(folder)
    began = time.monotonic()
    codes = [alone(words, folder, log) for words in target.commands]
    lasts = time.monotonic() - began
    if any(codes):
        raise RuntimeError(f"{target.name} undisturbed ended with {codes}: {log.read_text()}")
    wanted, kills = target.result(folder), setting.amount(11, 1)
    done = tries = 0
    while done < kills and tries < 10 * kills:
        shutil.rmtree(folder / "run", ignore_errors=True)
        target.prepare(folder)
        kept: Kept = {}
        for _ in range(setting.draws.randint(1, 3)):
            done, tries = done + _kill(target, setting, tally, lasts), tries + 1
            gone = {name for name, content in kept.items() if not _still(content, target.kept(folder).get(name))}
            if gone:
                tally.lost.append(f"{target.name}: {', '.join(sorted(gone))}")
            kept = target.kept(folder)
        _finish(target, setting, tally, wanted, kept)


def _kill(target: Target, setting: Setting, tally: Tally, lasts: float) -> int:
    """Start the commands and end one of them, or all, at a random moment; 1 where that came in time."""
    folder, draws = setting.folder, setting.draws
    victims = [Victim(words, folder, folder / f"log{n}") for n, words in enumerate(target.commands)]
    time.sleep(draws.uniform(0, 0.9 * lasts))
    number = signal.SIGINT if draws.random() < 0.25 else signal.SIGKILL
    chosen = victims if draws.random() < 0.5 else victims[:1]
    for victim in chosen:
        victim.kill(number)
    codes = {victim: victim.wait() for victim in victims}
    allowed = {0, 130, -signal.SIGKILL}
    for victim, code in codes.items():
        if code not in allowed or "Traceback" in victim.said:
            tally.wrong.append(f"{target.name}, {number.name}: exit code {code}: {victim.said[-300:]}")
    in_time = any(codes[victim] in (130, -signal.SIGKILL) for victim in chosen)
    tally.tried += in_time
    for victim in victims:
        victim.log.unlink(missing_ok=True)
    return int(in_time)


def _finish(target: Target, setting: Setting, tally: Tally, wanted: object, kept: Kept) -> None:
    """The same commands again, undisturbed, must end with what an undisturbed run has."""
    folder, log = setting.folder, setting.folder / "log"
    log.unlink(missing_ok=True)
    codes = [alone(words, folder, log) for words in target.commands]
    after = target.kept(folder)
    gone = {name for name, content in kept.items() if not _still(content, after.get(name))}
    if any(codes):
        tally.lost.append(f"{target.name}: the same command again ended with {codes}: {log.read_text()[-300:]}")
    elif target.result(folder) != wanted:
        tally.wrong.append(f"{target.name}: another result than undisturbed: {target.result(folder)}")
    if gone:
        tally.lost.append(f"{target.name}: {', '.join(sorted(gone))}")
    left = [*folder.rglob("*.tmp"), *folder.rglob("*.damaged"), *folder.rglob(".fetch-*")]
    if left:
        tally.wrong.append(f"{target.name}: left behind {', '.join(path.name for path in left)}")


def _still(before: str | bytes, after: str | bytes | None) -> bool:
    """True where content is what it was; a text may have become longer."""
    return after.startswith(before) if isinstance(before, str) and isinstance(after, str) else before == after


def _no_data(folder: Path) -> None:
    shutil.rmtree(folder / "data", ignore_errors=True)


def _fetched(folder: Path) -> object:
    return installed(folder / "data") == FILES


def _weights(folder: Path) -> object:
    return read_provenance(folder / "run" / FILE_NAME).weights_sha256


def _epochs(folder: Path) -> Kept:
    path = folder / "run" / "history.csv"
    return {"epochs": path.read_text()} if path.is_file() else {}


def _rows(folder: Path) -> object:
    rows = table(folder / "run").to_csv(index=False).splitlines()
    return [rows[0], *sorted(rows[1:])]


def _cells(folder: Path) -> Kept:
    return {path.name: path.read_bytes() for path in (folder / "run").glob("cells/*.parquet")}


def _copy_of_a_run(folder: Path) -> None:
    whole = folder / "whole"
    if not whole.is_dir():
        alone([*RUN, "--samples", "8", "--out", "whole"], folder, folder / "log")
        for path in whole.glob("table.*"):
            path.unlink()
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.copytree(whole, folder / "run")
