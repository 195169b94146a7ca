"""Tables of what was run: ensembles and how each was trained, attacks with every parameter, warnings with advice."""

from __future__ import annotations

from collections.abc import Iterable

from benchmark.cells.cell import Cell
from benchmark.evaluations.transfer import Transfer
from benchmark.findings.results import Results
from benchmark.reports.page.widgets import Field, Heading, Table, Warned, attack_field


def code_of(results: Results) -> dict[str, str]:
    """Which commits of the code finished the cells, where they say so; a run may have been resumed."""
    commits = results.commits
    words = [f"{commit or 'not recorded'} ({count} cell{'s' * (count != 1)})" for commit, count in commits.items()]
    return {"commit": ", ".join(words)} if any(commits) else {}


def warnings(found: list[Warned]) -> Table | None:
    """Every warning: where it was raised, what was seen and what to do about it."""
    names = ("warning", "where", "what was seen", "what to do")
    columns = [Heading(name, number=False, heads=name == "warning") for name in names]
    rows = [[Field(one.kind), Field(one.where), Field(one.words), Field(one.advice)] for one in found]
    return Table("Warnings and what to do about them", columns, rows) if rows else None


def ensembles(cells: Iterable[Cell]) -> Table:
    """What was trained, and how; a checkpoint from outside says nothing of its training."""
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
    return Table("Ensembles and how each was trained", columns, [[Field(text) for text in row] for row in rows])


def attacks(cells: Iterable[Cell]) -> Table:
    """Every attack with every parameter, the library that ran it, and on how many images."""
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
    return Table("Attacks: library and version, every parameter, and the number of test images", columns, rows)


def _attack_words(cell: Cell) -> tuple[str, str, str, str, str]:
    """Name, parameters, evaluation, library and every setting; what tells cells of one attack apart is left out."""
    task, written = cell.task, cell.task.written()
    hidden = ("source", "targeted", "surrogate")
    settings = ", ".join(f"{key} {value}" for key, value in sorted(written.settings.items()) if key not in hidden)
    parameters = task.untargeted.parameters if isinstance(task, Transfer) else task.parameters
    library = f"{task.library} {written.library_version}".strip()
    return task.name, parameters, task.evaluation, library, settings
