"""Tables of a run: ensembles with their training, attacks with every parameter, warnings with advice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmark.cells.cell import Cell
from benchmark.evaluations.transfer import Transfer
from benchmark.findings.checks import CHECKS
from benchmark.findings.results import Results
from benchmark.reports.page.widgets import Field, Heading, Table, Warned, attack_field, without_constant_columns
from defenses import specs


def code_of(results: Results) -> dict[str, str]:
    """The commits of the code that finished the cells, if stored; a resumed run can have several."""
    commits = results.commits
    words = [f"{commit or 'not recorded'} ({count} cell{'s' * (count != 1)})" for commit, count in commits.items()]
    return {"commit": ", ".join(words)} if any(commits) else {}


class WarningGroup(NamedTuple):
    """All warnings of one kind."""

    kind: str
    rule: str
    """The rule of the check; empty for cells without a result."""
    advice: str
    table: Table


def warnings(found: list[Warned]) -> list[WarningGroup]:
    """The warnings grouped by kind, each with its advice, its cell and its observation."""
    groups: dict[tuple[str, str], list[Warned]] = {}
    for one in found:
        groups.setdefault((one.kind, one.advice), []).append(one)
    columns = [Heading("where", number=False, heads=True), Heading("what was seen", number=False)]
    return [
        WarningGroup(
            kind,
            CHECKS[kind].rule if kind in CHECKS else "",
            advice,
            Table(f"Warnings: {kind}", columns, [[Field(one.where), Field(one.words)] for one in group]),
        )
        for (kind, advice), group in groups.items()
    ]


def ensembles(cells: Iterable[Cell]) -> Table:
    """The ensembles and their training; a checkpoint from outside has no record of its training."""
    columns = [
        Heading("defense", number=False, heads=True),
        Heading("dataset", number=False),
        Heading("spec", number=False),
        Heading("members"),
        Heading("network", number=False),
        Heading("training", number=False),
        Heading("seed"),
        Heading("weights, sha256", number=False),
    ]
    rows = dict.fromkeys(
        (
            cell.ensemble.defense,
            cell.images.dataset,
            cell.ensemble.spec,
            str(cell.ensemble.members),
            cell.ensemble.network,
            cell.ensemble.training or "trained elsewhere",
            str(cell.conditions.seed),
            f"{cell.ensemble.weights[:16]}…",
        )
        for cell in cells
    )
    table = Table("Ensembles and how each was trained", columns, [[Field(text) for text in row] for row in rows])
    return without_constant_columns(table)


def attacks(cells: Iterable[Cell]) -> Table:
    """Every attack with every parameter, its library, and its number of images."""
    columns = [
        Heading("attack", number=False, heads=True),
        Heading("evaluation", number=False),
        Heading("tiers", number=False),
        Heading("library", number=False),
        Heading("settings", number=False),
        Heading("images", number=False),
        Heading("dataset", number=False),
        Heading("batch"),
        Heading("device", number=False),
    ]
    found: dict[tuple[str, ...], dict[str, dict[str, None]]] = {}
    for cell in cells:
        if not cell.task.attacks:
            continue
        key = (*_attack_words(cell), cell.images.dataset, str(cell.conditions.batch_size), cell.conditions.device)
        rest = found.setdefault(key, {"tiers": {}, "images": {}})
        rest["tiers"][cell.task.written().tier] = None
        rest["images"][str(cell.images.samples)] = None
    rows = [
        [
            attack_field(attack, parameters),
            Field(evaluation),
            Field(", ".join(rest["tiers"])),
            Field(library),
            Field(settings),
            Field(", ".join(rest["images"])),
            Field(dataset),
            Field(batch),
            Field(device),
        ]
        for (attack, parameters, evaluation, library, settings, dataset, batch, device), rest in found.items()
    ]
    caption = "Attacks: library and version, every parameter, and the number of test images"
    return without_constant_columns(Table(caption, columns, rows))


def _attack_words(cell: Cell) -> tuple[str, str, str, str, str]:
    """Name, parameters, evaluation, library and settings, except settings that differ between cells of one attack."""
    task, written = cell.task, cell.task.written()
    hidden = ("source", "targeted", "surrogate")
    settings = ", ".join(
        f"{key} {_setting(value)}" for key, value in sorted(written.settings.items()) if key not in hidden
    )
    parameters = task.untargeted.parameters if isinstance(task, Transfer) else task.parameters
    library = f"{task.library} {written.library_version}".strip()
    return task.name, parameters, task.evaluation, library, settings


def _setting(value: Any) -> str:
    """A value as in a spec: 8/255 and not 0.0313725490196078."""
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return specs.value_text(value) if isinstance(value, float) else "default" if value is None else str(value)
