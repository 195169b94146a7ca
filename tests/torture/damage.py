"""Damaged files: a command refuses them in one line or measures anew; no other number reaches a table."""

from __future__ import annotations

import functools
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmark.cells.store import Store
from benchmark.evaluations.whitebox import WhiteBox
from defenses.checkpoints import FILE_NAME, read_provenance
from defenses.specs import number
from defenses.training.state import STATE_NAME
from tests.torture.attempts import Answer, Setting, Tally, Victim, alone, call
from tests.torture.material import FILES, QUICK, RUN, Host, installed, table

FULL = [*RUN, "--keep-images", "--out", "full"]
HALF = [*RUN[:4], "--attack", "fgsm", "--attack", "pgd(eps=0.1,steps=4)", "--tier", "strict", "--out", "half"]
DUEL = ["compare", "small", "--against", "other", "--preset", "torture", "--attack", "fgsm", "--threads", "1"]
DUEL += ["--tier", "strict", "--samples", "8", "--out", "duel"]
ENSEMBLE = "results/ensembles/digits/mine"
TRAINED = ["train", "baseline", *QUICK, "--epochs", "3", "--out", ENSEMBLE]
STOPPED = ["train", "baseline", *QUICK, "--epochs", "3", "--out", "stopped"]


@dataclass(frozen=True)
class Field:
    """Files of one kind, the commands that meet them, and what must be true at the end."""

    files: Callable[[Path], list[Path]]
    first: list[list[str]]
    """One of these is tried on the damaged copy."""
    then: list[str]
    """Then this one, which may repair it."""
    wrong: Callable[[Path, int | None], str]
    """After a command with that exit code: what is not as it should be, in words."""
    incomplete: Callable[[Path], str] = lambda folder: ""
    """After the last command, where it ended well: what is missing, in words."""


def attack(setting: Setting, tally: Tally) -> None:
    base = setting.folder / "base"
    setting.copy_checkpoints(base)
    with Host(Path("data")):
        _build(base)
        fields = _fields(base)
        for number in range(setting.amount(320, 6)):
            field = fields[number % len(fields)]
            copy = setting.folder / "copy"
            shutil.copytree(base, copy)
            try:
                _try(field, copy, base, setting, tally)
            finally:
                shutil.rmtree(copy)


def _build(base: Path) -> None:
    """Every kind of file that the product reads, none of them damaged."""
    for words in (FULL, HALF, DUEL, TRAINED, ["data", "fetch", "toy"]):
        if alone(words, base, base / "log"):
            raise RuntimeError(f"{words}: {(base / 'log').read_text()}")
    _stop_a_training(base)
    store = Store(base / "half")
    fgsm, pgd = (cell for cell in store.asked() if isinstance(cell.task, WhiteBox))
    store.write_failure(fgsm, "ValueError: planted")
    records = store.read(pgd)
    for path in (store.path(fgsm), store.path(pgd)):
        path.unlink()
    for first in (0, 8):
        store.write_batch(pgd, first, records.iloc[first : first + 4])


def _stop_a_training(base: Path) -> None:
    """Leave the state after the first epoch."""
    while not (base / "stopped" / STATE_NAME).is_file() or (base / "stopped" / FILE_NAME).is_file():
        shutil.rmtree(base / "stopped", ignore_errors=True)
        victim = Victim(STOPPED, base, base / "log")
        while not (base / "stopped" / STATE_NAME).is_file():
            time.sleep(0.001)
        victim.kill(signal.SIGKILL)
        victim.wait()


def _fields(base: Path) -> list[Field]:
    full, half, duel = (table(base / name) for name in ("full", "half", "duel"))
    ours = read_provenance(base / ENSEMBLE / FILE_NAME).weights_sha256

    def rows(name: str, wanted: pd.DataFrame, path: Path, code: int | None) -> str:
        return _other_numbers(path / name, wanted)

    def whole(name: str, wanted: pd.DataFrame) -> Callable[[Path], str]:
        return lambda path: "" if _rows(table(path / name)) == _rows(wanted) else "rows are missing"

    def weights(folder: str, path: Path, code: int | None) -> str:
        place = path / folder / FILE_NAME
        return "" if code or read_provenance(place).weights_sha256 == ours else "other weights"

    def data(path: Path, code: int | None) -> str:
        return "" if code or installed(path / "data") == FILES else "other data"

    run = [["report", "full"], ["verify", "full"], ["verify", "full"], ["report", "full"]]
    listed = [["list", "checkpoints"], [*RUN, "--defense", ENSEMBLE, "--plan"], ["verify", "full", "--model", "small"]]
    return [
        Field(_under("full"), run, FULL, functools.partial(rows, "full", full), whole("full", full)),
        Field(_under("half"), [["report", "half"]], HALF, functools.partial(rows, "half", half), whole("half", half)),
        Field(_under("full"), run, FULL, functools.partial(rows, "full", full), whole("full", full)),
        Field(_under("duel"), [["report", "duel"]], DUEL, functools.partial(rows, "duel", duel), whole("duel", duel)),
        Field(_under(ENSEMBLE), listed, TRAINED, functools.partial(weights, ENSEMBLE)),
        Field(_under("stopped"), [["list", "checkpoints"]], STOPPED, functools.partial(weights, "stopped")),
        Field(_under("data/toy"), [["data", "verify", "toy"], ["data", "verify"]], ["data", "fetch", "toy"], data),
        Field(
            _manifests,
            [["report", "full"], ["report", "half"]],
            FULL,
            functools.partial(rows, "full", full),
            whole("full", full),
        ),
        Field(
            _manifests,
            [["report", "duel"], ["verify", "full"]],
            HALF,
            functools.partial(rows, "half", half),
            whole("half", half),
        ),
        Field(_under("small"), listed, FULL, functools.partial(rows, "full", full), whole("full", full)),
    ]


def _manifests(folder: Path) -> list[Path]:
    return [folder / name / "manifest.json" for name in ("full", "half", "duel")]


def _under(name: str) -> Callable[[Path], list[Path]]:
    """The files of a folder that a command reads: those it only writes are left out."""

    def files(folder: Path) -> list[Path]:
        found = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        read = {".json", ".parquet", ".safetensors", ".pictures", ".failed", ".pt", ""}
        return [path for path in found if path.suffix in read and path.name[0] != "."]

    return files


def _try(field: Field, copy: Path, base: Path, setting: Setting, tally: Tally) -> None:
    target = setting.draws.choice(field.files(copy))
    kind = setting.draws.choice(list(DAMAGES))
    DAMAGES[kind](target, base, setting)
    tally.tried += 1
    for words in (setting.draws.choice(field.first), field.then):
        answer = call(words, copy)
        told = f"{kind} of {target.relative_to(copy)}, {' '.join(words[:2])}"
        fault = _fault(answer)
        if not fault and (words is field.then or words[0] == "report"):
            fault = field.wrong(copy, answer.code)
        if not fault and words is field.then and answer.code == 0:
            fault = field.incomplete(copy)
        if fault:
            tally.wrong.append(f"{told}: {fault}")


def _fault(answer: Answer) -> str:
    if answer.traceback:
        return f"traceback: {answer.last}"
    return "" if answer.code in (0, 1, 2, 3) else f"exit code {answer.code}: {answer.last}"


def _other_numbers(folder: Path, wanted: pd.DataFrame) -> str:
    """Rows of a table that no undamaged one has; those of cells that are not finished have no numbers."""
    if not (folder / "table.csv").is_file():
        return ""
    others = _rows(table(folder)) - _rows(wanted)
    return f"another row: {others.pop()}" if others else ""


def _rows(found: pd.DataFrame) -> set[tuple[object, ...]]:
    """The rows without flags, which also speak of other cells; 0 and 0.0 are the same."""
    plain = found[found["samples"] != "0"].drop(columns="flags")
    return {
        tuple(number(value) if value and value[0].isdigit() else value for value in row) for row in plain.to_numpy()
    }


# --- ways to damage a file ---


def _truncated(path: Path, base: Path, setting: Setting) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: setting.draws.randrange(len(content) or 1)])


def _flipped(path: Path, base: Path, setting: Setting) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(setting.draws.randint(1, 4) if content else 0):
        content[setting.draws.randrange(len(content))] ^= 1 << setting.draws.randrange(8)
    path.write_bytes(content)


def _zeroed(path: Path, base: Path, setting: Setting) -> None:
    content = bytearray(path.read_bytes())
    first = setting.draws.randrange(len(content) or 1)
    content[first : first + 64] = bytes(len(content[first : first + 64]))
    path.write_bytes(content)


def _random(path: Path, base: Path, setting: Setting) -> None:
    path.write_bytes(setting.draws.randbytes(setting.draws.randrange(3000)))


def _empty(path: Path, base: Path, setting: Setting) -> None:
    path.write_bytes(b"")


def _json(path: Path, base: Path, setting: Setting) -> None:
    text = setting.draws.choice(['{"a": 1}', "[]", "null", "[" * 50_000, '{"cells": [{}], "preset": 3}', "NaN"])
    path.write_text(text)


def _other(path: Path, base: Path, setting: Setting) -> None:
    """The content of any other file."""
    files = sorted(path for path in base.rglob("*") if path.is_file())
    path.write_bytes(setting.draws.choice(files).read_bytes())


def _sibling(path: Path, base: Path, setting: Setting) -> None:
    """Two files of one kind change places."""
    files = sorted(other for other in path.parent.iterdir() if other.suffix == path.suffix and other.is_file())
    other = setting.draws.choice(files)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def _deleted(path: Path, base: Path, setting: Setting) -> None:
    path.unlink()


def _folder(path: Path, base: Path, setting: Setting) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


DAMAGES: dict[str, Callable[[Path, Path, Setting], None]] = {
    "truncation": _truncated,
    "flipped bits": _flipped,
    "more flipped bits": _flipped,
    "zeros": _zeroed,
    "random bytes": _random,
    "emptying": _empty,
    "replacement by JSON": _json,
    "replacement by another file": _other,
    "swap with a sibling": _sibling,
    "deletion": _deleted,
    "replacement by a folder": _folder,
}
