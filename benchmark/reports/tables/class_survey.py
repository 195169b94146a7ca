"""library-attacks.md: every attack class of the libraries, whether it works, and the repairs of the harness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmark.attacks.library_facts import MENDED
from benchmark.cells.cell import Cell
from benchmark.findings.results import Results
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import line
from defenses.files import write_text
from defenses.specs import value_text

FILE = "library-attacks.md"
HEADS = ("class", "parameters", "outcome", "bound", "bound held", "what the harness mended", "accuracy", "seconds")


class ListedClass(NamedTuple):
    """A class of a library, and the reason if it was not tried."""

    library: str
    name: str
    left_out: str


def write_every_class(folder: Path, results: Results, classes: Sequence[ListedClass], command: str) -> str:
    """Write the file; return a summary, one line per library."""
    by_class = {(cell.task.library, cell.task.name): cell for cell in results.cells}
    summary = [_summary(library, results, classes, by_class) for library in _libraries(classes)]
    lines = ["# Attack classes of the libraries", "", *_introduction(results, command), ""]
    lines += [f"- {words}" for words in summary]
    for library in _libraries(classes):
        version = next((cell.task.attacks[0].version for key, cell in by_class.items() if key[0] == library), "")
        lines += [
            "",
            f"## {library} {version}".rstrip(),
            "",
            line(HEADS),
            line(["---"] * (len(HEADS) - 2) + ["---:"] * 2),
        ]
        for one in classes:
            if one.library == library:
                cell = by_class.get((library, one.name))
                lines.append(line([escaping.markdown(field) for field in _fields(one, cell, results)]))
    write_text(folder / FILE, "\n".join(lines) + "\n")
    return "\n".join(summary)


def _libraries(classes: Sequence[ListedClass]) -> list[str]:
    return list(dict.fromkeys(one.library for one in classes))


def _introduction(results: Results, command: str) -> list[str]:
    finished = results.finished
    on = {
        cell.images.dataset: (
            f"the first {cell.images.samples} test images of {cell.images.dataset} with "
            f"{cell.ensemble.members} × {cell.ensemble.network}, clean accuracy "
            f"{100 * _clean(results.records[cell]):.0f} %"
        )
        for cell in finished
    }
    return [
        f"Made by `{command}`. Every class was tried once, in tier strict, on {'; '.join(on.values())}.",
        "Parameters that are not named have the library's defaults. Steps are fewer where the defaults take long on a "
        "CPU; constants and step sizes are larger where the defaults move no image of this size. They were chosen so "
        "that each class does something: a number here says that a class works, not how strong it is.",
        "An image that left its bound or [0, 1] was projected back and judged again. Smallest perturbations have no "
        "bound to hold. Accuracy is what is left, in percent; seconds are for all images.",
    ]


def _summary(
    library: str, results: Results, classes: Sequence[ListedClass], by_class: dict[tuple[str, str], Cell]
) -> str:
    listed = [one for one in classes if one.library == library]
    tried = [by_class[library, one.name] for one in listed if (library, one.name) in by_class]
    finished = [cell for cell in tried if cell in results.records]
    working = [cell for cell in finished if (results.records[cell]["linf"] > 0).any()]
    left = [cell for cell in working if int(results.records[cell]["out_of_ball"].sum())]
    return (
        f"{library}: {len(listed)} classes listed, {len(tried)} tried, {len(working)} working, "
        f"{len(finished) - len(working)} moved no image; "
        f"{len(left)} left their bound, {len(listed) - len(tried)} were left out"
    )


def _fields(one: ListedClass, cell: Cell | None, results: Results) -> list[str]:
    if cell is None:
        return [one.name, "", f"left out: it {one.left_out}" if one.left_out else "not tried", *[""] * 5]
    parameters, note = cell.task.parameters, MENDED.get((one.library, one.name), "")
    if cell not in results.records:
        reason = results.failures.get(cell)
        return [one.name, parameters, f"fails: {reason}" if reason else "not run yet", "", "", note, "", ""]
    records, bound = results.records[cell], cell.task.bound
    attacked, out = int(records["attacked"].sum()), int(records["out_of_ball"].sum())
    held = "" if bound is None else "yes" if not out else f"no: {out} of {attacked} projected"
    counts = {"left [0, 1]": "out_of_box", "not finite": "not_finite"}
    mended = [f"{int(records[column].sum())} {words}" for words, column in counts.items() if records[column].any()]
    still = attacked - int((records["linf"] > 0).sum())
    outcome = "works" if still < attacked else "runs, but moves no image"
    return [
        one.name,
        parameters,
        outcome,
        "none" if bound is None else f"{bound.norm}:{value_text(bound.radius)}",
        held,
        "; ".join([*mended, *([note] if note else [])]),
        f"{100 * float(records['correct'].mean()):.0f}",
        f"{float(records['seconds'].sum()):.1f}",
    ]


def _clean(records: pd.DataFrame) -> float:
    return float((records["clean_prediction"] == records["label"]).mean())
