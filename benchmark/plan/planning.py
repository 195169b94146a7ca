"""From a request to cells: what exactly will be run of which ensembles, before anything is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from benchmark import datasets
from benchmark.attacks import NamedAttack
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, load_outside
from benchmark.evaluations import TASKS
from benchmark.evaluations.blackbox import BlackBoxSection
from benchmark.evaluations.task import Setting
from benchmark.evaluations.worst_case import WorstCase, WorstCaseSection, remark
from benchmark.harness.tiers import TIERS
from benchmark.plan.grid import Grid
from benchmark.plan.presets import Preset
from benchmark.plan.published import published_accuracy
from benchmark.plan.run_request import Request, whole
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.errors import BadInput

SURROGATE_SEED = 1000
"""Added to the seed of the defenses for the surrogate of black-box attacks."""

FindEnsemble = Callable[[EnsembleRequest], Trained]


@dataclass(frozen=True, eq=False)
class Work:
    """The cells of one ensemble."""

    grid: Grid
    data: datasets.Dataset
    trained: Trained
    surrogate: Trained | None
    cells: list[Cell]


def check(request: Request) -> None:
    """Everything that can be refused before the first minute of work."""
    for seed in request.seeds:
        if not 0 <= seed < 2**31:
            raise BadInput(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    for grid in request.preset.grids:
        about = DATASETS.get(grid.dataset)
        surrogate = request.surrogate if grid.section(BlackBoxSection) else None
        for spec in (*grid.defenses, *([surrogate] if surrogate else [])):
            if is_checkpoint(spec):
                load_outside(spec, grid.dataset, request.trust)
            else:
                parse_defense(spec).defense.check(grid.members, about.classes)
        if surrogate in grid.defenses:
            raise BadInput(f"{surrogate} cannot be its own surrogate; choose another --surrogate, or none")
        for section in grid.sections:
            for named in section.attacks:
                named.check_classes(about.classes)
        if isinstance(request.samples, int) and request.samples > about.sizes[1]:
            raise BadInput(f"samples is {request.samples}; {grid.dataset} has {about.sizes[1]} test images")


def assemble(request: Request, asked: list[Cell], find: FindEnsemble) -> list[Work]:
    """Every ensemble of a request with its cells, each cell once; ``asked`` are the cells of the folder so far."""
    labels = {cell.ensemble.defense: cell.ensemble.spec for cell in asked}
    cells: dict[Cell, None] = {}
    work = []
    for grid in request.preset.grids:
        data = datasets.load(grid.dataset)
        for seed in request.seeds:
            for spec in grid.defenses:
                trained = find(grid.ensemble(spec, seed, request.trust))
                names = chain((trained.label, trained.spec), (f"{trained.label} ({n})" for n in count(2)))
                label = next(name for name in names if labels.get(name, trained.spec) == trained.spec)
                labels[label] = trained.spec  # two models of one name have a column each
                trained = replace(trained, label=label)
                surrogate = _surrogate(request, grid, seed, find)
                if surrogate and surrogate.provenance.weights_sha256 == trained.provenance.weights_sha256:
                    raise BadInput(f"{trained.label} cannot be its own surrogate; choose another --surrogate, or none")
                planned = plan_cells(grid, trained, request, seed, data.checksum, surrogate)
                fresh = [cell for cell in planned if cell not in cells]
                cells |= dict.fromkeys(fresh)
                work.append(Work(grid, data, trained, surrogate, fresh))
    return work


def _surrogate(request: Request, grid: Grid, seed: int, find: FindEnsemble) -> Trained | None:
    """What black-box attacks are made on: a baseline by an attacker who knows all but the weights, unless told."""
    if grid.section(BlackBoxSection) is None:
        return None
    if request.surrogate is None:
        return find(grid.ensemble("baseline", seed + SURROGATE_SEED))
    return find(grid.ensemble(request.surrogate, seed, request.trust))


def plan_cells(
    grid: Grid, trained: Trained, request: Request, seed: int, checksum: str, surrogate: Trained | None = None
) -> list[Cell]:
    """The cells of one ensemble, section by section."""
    origin = trained.provenance
    facts = EnsembleFacts(
        trained.label, trained.spec, origin.members, origin.network, trained.training, origin.weights_sha256
    )
    conditions = Conditions(seed, grid.batch_size, request.device.type, request.acceleration)
    about = DATASETS.get(grid.dataset)
    size = about.sizes[1]
    in_paper = "" if is_checkpoint(trained.spec) else parse_defense(trained.spec).label  # whatever its column is called

    def published(named: NamedAttack | None, classifier: str) -> float | None:
        return published_accuracy(grid.dataset, origin.members, named, classifier, in_paper)

    setting = Setting(
        members=origin.members,
        classes=about.classes,
        tiers=grid.tiers,
        rows=grid.rows,
        images=lambda amount: request.images(amount, size),
        test_size=size,
        published=published,
        surrogate=surrogate.provenance.weights_sha256 if surrogate else None,
    )
    cells = []
    for section in grid.sections:
        for planned in section.plan(setting):
            images = TestImages(grid.dataset, checksum, planned.samples)
            here = replace(conditions, batch_size=planned.samples) if planned.whole else conditions
            cells.append(Cell(facts, planned.task, images, here, planned.published))
    return cells


def left_out(request: Request) -> list[str]:
    """What a CPU run leaves out of the full sample counts, and attacks without enough classes, in words."""
    lines = []
    for grid in request.preset.grids:
        about = DATASETS.get(grid.dataset)
        size = about.sizes[1]
        lines += [f"{grid.dataset}: {words}" for words in _remarks(grid, about.classes)]
        short: dict[tuple[int, int], list[str]] = {}
        for section in grid.sections:
            if isinstance(section, WorstCaseSection) and not grid.strong_bounds:
                continue
            for name, amount in section.amounts:
                chosen, full = request.images(amount, size), whole(amount, size)
                names = short.setdefault((chosen, full), [])
                if chosen < full and name not in names:
                    names.append(name)
        for (chosen, full), names in short.items():
            if names:
                which = f"{grid.dataset}: {', '.join(names)}"
                lines.append(f"{which} on the first {chosen} images instead of {full} (--samples all)")
    return lines


def _remarks(grid: Grid, classes: int) -> Iterator[str]:
    """What attacks leave out with so few classes, each once."""
    strong = grid.section(WorstCaseSection)
    suites = [remark(strong.suite, classes)] if strong and grid.strong_bounds else []
    attacks = [named.remark(classes) for section in grid.sections for named in section.attacks]
    yield from filter(None, dict.fromkeys([*suites, *attacks]))


def order_cells(cells: list[Cell], preset: Preset) -> list[Cell]:
    """By dataset, evaluation, attack, parameters, defense and tier: in the preset's order, then as they appeared."""
    ranks: dict[str, dict[Any, int]] = {}

    def rank(name: str, value: Any) -> int:
        places = ranks.setdefault(name, {})
        return places.setdefault(value, len(places))

    attacks = [named for grid in preset.grids for section in grid.sections for named in section.attacks]
    for grid in preset.grids:
        rank("dataset", grid.dataset)
    for evaluation in TASKS:
        rank("evaluation", evaluation)
    for named in attacks:
        rank("attack", named.name)
        rank("row", (named.name, named.attack.parameters))
        rank("bound", named.bound)
    for tier in TIERS:
        rank("tier", tier)
    for spec in dict.fromkeys(spec for grid in preset.grids for spec in grid.defenses):
        if not is_checkpoint(spec):
            rank("defense", parse_defense(spec).label)

    def place(cell: Cell) -> list[int]:
        task = cell.task
        strong = isinstance(task, WorstCase)
        row = rank("bound", task.bound) if strong else rank("row", (task.name, task.parameters))
        return [
            rank("dataset", cell.images.dataset),
            rank("evaluation", task.evaluation),
            rank("attack", task.name),
            row,
            rank("defense", cell.ensemble.defense),
            rank("tier", task.group),
            rank("seed", cell.conditions.seed),
        ]

    places = [place(cell) for cell in cells]  # ranks are given in the order in which the cells appeared
    return [cell for _, cell in sorted(zip(places, cells, strict=True), key=lambda pair: pair[0])]
