"""Planning: from a request to the ensembles and their cells, before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from benchmark import datasets
from benchmark.attacks import NamedAttack
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, load_outside
from benchmark.ensembles.folders import locate
from benchmark.ensembles.training import require_training_part
from benchmark.evaluations import TASKS
from benchmark.evaluations.blackbox import BlackBoxSection
from benchmark.evaluations.task import Setting
from benchmark.evaluations.worst_case import WorstCase, WorstCaseSection, remark
from benchmark.harness.acceleration import COPIES
from benchmark.harness.tiers import TIERS
from benchmark.plan.grid import USUAL_RECIPE, Grid
from benchmark.plan.labels import LabelledColumn, canonical
from benchmark.plan.presets import Preset
from benchmark.plan.published import published_accuracy
from benchmark.plan.run_request import Request, whole
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.errors import BadInput
from defenses.members.combination import parse_combination
from defenses.members.networks import canonical_network, check_network
from defenses.training.convergence import doubts
from defenses.user_functions import is_in_file

SURROGATE_SEED = 1000
"""Added to the seed of the defenses to get the seed of the default surrogate of black-box attacks."""

PAPER_NETWORK = "resnet20"
"""The network behind every number of the paper's tables."""

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
    """Refuse an invalid request before any work starts."""
    for seed in request.seeds:
        if not 0 <= seed < 2**31:
            raise BadInput(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    _check_columns(request)
    _check_names(request.preset)
    for grid in request.preset.grids:
        about = datasets.find(grid.dataset)
        check_network(grid.ensemble("baseline", 0).canonical_network, about.shape, about.classes)
        surrogate = request.surrogate if grid.section(BlackBoxSection) else None
        for spec in (*grid.defenses, *([surrogate] if surrogate else [])):
            if is_checkpoint(spec):
                load_outside(spec, about, request.trust, grid.network)
            else:
                parse_defense(spec).defense.check(grid.members, about.classes)
                require_training_part(about)
        if surrogate in grid.defenses:
            raise BadInput(f"{surrogate} cannot be its own surrogate; choose another --surrogate, or none")
        for section in grid.sections:
            for named in section.attacks:
                named.check_classes(about.classes)
        if isinstance(request.samples, int) and request.samples > about.sizes[1]:
            raise BadInput(
                f"samples is {request.samples}; {about.name} has only {about.sizes[1]} test images; choose fewer"
            )


def _check_names(preset: Preset) -> None:
    """Refuse two datasets with the same name: a table could not distinguish them."""
    found: dict[str, str] = {}
    for spec in dict.fromkeys(grid.dataset for grid in preset.grids):
        name = datasets.find(spec).name
        if name in found:
            raise BadInput(f"{found[name]} and {spec} have the same name, {name}; rename one of them")
        found[name] = spec


def _check_columns(request: Request) -> None:
    """Refuse labels that two ensembles share, and ensembles with two labels."""
    columns: list[LabelledColumn] = []
    for grid in request.preset.grids:
        for spec in grid.defenses:
            column = LabelledColumn.of(grid, spec)
            for other in columns:
                column.check_beside(other)
            columns.append(column)
    if request.surrogate_label in {column.label for column in columns}:
        raise BadInput(
            f"{request.surrogate_label!r} is the label of a defense in this run; give the surrogate another label"
        )


def assemble(request: Request, asked: list[Cell], find: FindEnsemble) -> list[Work]:
    """Every ensemble of a request with its cells, each cell once; ``asked`` are the cells already in the folder."""
    labels = {(cell.images.dataset, cell.ensemble.defense): cell.ensemble.spec for cell in asked}
    for grid in request.preset.grids:
        _check_labels(grid, labels)
    cells: dict[Cell, None] = {}
    work = []
    for grid in request.preset.grids:
        data = datasets.load(grid.dataset)
        for seed in request.seeds:
            for spec in grid.defenses:
                trained = find(grid.ensemble(spec, seed, request.trust, request.accept_changed))
                trained = replace(trained, label=_label(grid, spec, trained, labels))
                surrogate = _surrogate(request, grid, seed, find)
                if surrogate and surrogate.provenance.identity == trained.provenance.identity:
                    raise BadInput(f"{trained.label} cannot be its own surrogate; choose another --surrogate, or none")
                planned = plan_cells(grid, trained, request, seed, data.checksum, surrogate)
                fresh = [cell for cell in planned if cell not in cells]
                cells |= dict.fromkeys(fresh)
                work.append(Work(grid, data, trained, surrogate, fresh))
    return work


def _label(grid: Grid, spec: str, trained: Trained, labels: dict[tuple[str, str], str]) -> str:
    """The name of a column: the user's label, or the ensemble's own name; equal names are made different."""
    own = chain((trained.label, trained.spec), (f"{trained.label} ({n})" for n in count(2)))
    free = (name for name in own if labels.get((grid.dataset, name), trained.spec) == trained.spec)
    label = grid.labels.get(spec) or next(free)
    labels[grid.dataset, label] = trained.spec
    return label


def _check_labels(grid: Grid, taken: dict[tuple[str, str], str]) -> None:
    """Refuse a label that another defense has in the folder, unless the request gives that defense a new label."""
    asked = set(map(canonical, grid.defenses))
    for spec, label in grid.labels.items():
        holder = taken.get((grid.dataset, label), canonical(spec))
        if holder not in asked:
            raise BadInput(
                f"label {label!r} belongs to {holder} in this folder; give {spec} another label, or another --out"
            )


def missing(request: Request) -> list[EnsembleRequest]:
    """The ensembles of a request that are not trained yet, each once."""
    wanted: dict[EnsembleRequest, None] = {}
    for grid in request.preset.grids:
        for seed in request.seeds:
            asked = [grid.ensemble(spec, seed, request.trust, request.accept_changed) for spec in grid.defenses]
            wanted |= dict.fromkeys([*asked, *filter(None, [_surrogate_request(request, grid, seed)])])
    return [one for one in wanted if not is_checkpoint(one.defense) and locate(one) is None]


def _surrogate_request(request: Request, grid: Grid, seed: int) -> EnsembleRequest | None:
    """The surrogate of black-box attacks. With the default baseline, the attacker knows everything but the weights.

    If these baselines have not been trained, baselines of recipe `fast` take their place, if there is one for every
    seed of the request: all seeds meet the same kind of attacker.
    """
    if grid.section(BlackBoxSection) is None:
        return None
    if request.surrogate is None:
        usual = [grid.ensemble("baseline", one + SURROGATE_SEED) for one in request.seeds]
        shorter = [replace(one, recipe=USUAL_RECIPE) for one in usual]
        chosen = shorter if None in map(locate, usual) and None not in map(locate, shorter) else usual
        return chosen[request.seeds.index(seed)]
    return grid.ensemble(request.surrogate, seed, request.trust, request.accept_changed)


def _surrogate(request: Request, grid: Grid, seed: int, find: FindEnsemble) -> Trained | None:
    wanted = _surrogate_request(request, grid, seed)
    if wanted is None:
        return None
    found = find(wanted)
    return replace(found, label=request.surrogate_label or found.label) if request.surrogate else found


def plan_cells(
    grid: Grid, trained: Trained, request: Request, seed: int, checksum: str, surrogate: Trained | None = None
) -> list[Cell]:
    """The cells of one ensemble, section by section."""
    origin = trained.provenance
    facts = EnsembleFacts(
        trained.label,
        trained.spec,
        origin.members,
        origin.network,
        trained.training,
        origin.identity,
        doubts(origin),
    )
    conditions = Conditions(seed, grid.batch_size, request.device.type, COPIES[request.acceleration])
    about = datasets.find(grid.dataset)
    size = about.sizes[1]
    in_paper = "" if is_checkpoint(trained.spec) else parse_defense(trained.spec).label  # not the column's label

    def published(named: NamedAttack | None, classifier: str) -> float | None:
        if not in_paper or is_in_file(origin.network):  # never run a file that a checkpoint names
            return None
        if canonical_network(origin.network) != canonical_network(PAPER_NETWORK):
            return None
        return published_accuracy(about.name, origin.members, named, classifier, in_paper)

    setting = Setting(
        members=origin.members,
        classes=about.classes,
        tiers=grid.tiers,
        rows=grid.rows,
        images=lambda amount: request.images(amount, size),
        test_size=size,
        published=published,
        surrogate=surrogate.provenance.identity if surrogate else None,
        reduced=request.acceleration == "reduced",
        randomised=parse_combination(origin.combine).randomised,
    )
    cells = []
    for section in grid.sections:
        for planned in section.plan(setting):
            images = TestImages(about.name, checksum, planned.samples, request.taken)
            here = replace(conditions, batch_size=planned.samples) if planned.whole else conditions
            cells.append(Cell(facts, planned.task, images, here, planned.published))
    return cells


def left_out(request: Request) -> list[str]:
    """Messages about images that the run leaves out, and about attacks that need more classes."""
    lines = []
    for grid in request.preset.grids:
        about = datasets.find(grid.dataset)
        size = about.sizes[1]
        lines += [f"{about.name}: {words}" for words in _remarks(grid, about.classes)]
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
                which = f"{about.name}: {', '.join(names)}"
                lines.append(f"{which} on the first {chosen} of {full} images; use --samples all for all images")
    return lines


def _remarks(grid: Grid, classes: int) -> Iterator[str]:
    """Messages about attacks that need more classes, each once."""
    strong = grid.section(WorstCaseSection)
    suites = [remark(strong.suite, classes)] if strong and grid.strong_bounds else []
    attacks = [named.remark(classes) for section in grid.sections for named in section.attacks]
    yield from filter(None, dict.fromkeys([*suites, *attacks]))


def order_cells(cells: list[Cell], preset: Preset) -> list[Cell]:
    """Sort by dataset, evaluation, attack, parameters, defense and tier: the preset's order first, then appearance."""
    ranks: dict[str, dict[Any, int]] = {}

    def rank(name: str, value: Any) -> int:
        places = ranks.setdefault(name, {})
        return places.setdefault(value, len(places))

    attacks = [named for grid in preset.grids for section in grid.sections for named in section.attacks]
    for grid in preset.grids:
        rank("dataset", datasets.find(grid.dataset).name)
        for spec in grid.defenses:
            if spec in grid.labels or not is_checkpoint(spec):
                rank("defense", grid.labels.get(spec) or parse_defense(spec).label)
    for evaluation in TASKS:
        rank("evaluation", evaluation)
    for named in attacks:
        rank("attack", named.name)
        rank("row", (named.name, named.parameters))
        rank("bound", named.bound)
    for tier in TIERS:
        rank("tier", tier)

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

    places = [place(cell) for cell in cells]  # before sorting: ranks follow the order of appearance
    return [cell for _, cell in sorted(zip(places, cells, strict=True), key=lambda pair: pair[0])]
