"""Run a preset: ensembles, then cells, each kept the moment it is done; what is done already is not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, count

from benchmark import datasets
from benchmark.cells import Cell, cell_from
from benchmark.datasets.catalogue import DATASETS
from benchmark.devices import present
from benchmark.display import RunDisplay
from benchmark.ensembles import Trained, find_or_train, load_outside
from benchmark.executors import Executor, Material
from benchmark.executors.local import Local
from benchmark.grid import Grid, load_preset, preset_names
from benchmark.hardware import commit, describe_machine
from benchmark.ledger import Ledger
from benchmark.planning import Request, left_out, order_cells, plan_cells
from benchmark.reports import write_report
from benchmark.store import Store
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint, versions
from defenses.errors import BadInput, RunFailed

SURROGATE_SEED = 1000
"""Added to the seed of the defenses for the surrogate of black-box attacks."""


@dataclass(frozen=True, eq=False)
class Work:
    """The cells of one ensemble."""

    grid: Grid
    data: datasets.Dataset
    trained: Trained
    surrogate: Trained | None
    cells: list[Cell]


FindEnsemble = Callable[[str, Grid, int], Trained]
"""The ensemble of a defense spec, in a grid, with a seed."""


def run(
    request: Request,
    display: RunDisplay,
    executor: Executor | None = None,
    finish: Callable[[Store], None] = lambda store: None,
) -> Store:
    """Run every cell that is not there yet, then ``finish``, then write tables and report."""
    store = Store(request.out)
    check(request)
    store.open(request.preset.name)
    where = present(request.device).type

    def find(spec: str, grid: Grid, seed: int) -> Trained:
        return find_or_train(spec, grid.dataset, grid.network, grid.members, grid.recipe, seed, where, display.say)

    work = assemble(request, store, find)
    cells = [cell for part in work for cell in part.cells]
    surrogates = {part.surrogate.provenance.weights_sha256: part.surrogate for part in work if part.surrogate}
    outdated = _write_manifest(store, request, cells, surrogates)
    open_cells = [cell for cell in cells if not store.has(cell, request.keep_images)]
    display.start(open_cells, cells)
    for line in (*request.remarks, *left_out(request), *outdated):
        display.say(line)
    for cell in filter(store.has, cells):
        store.tidy(cell)  # a run that was killed may have left its progress behind
    ledger = Ledger(store, display, request.keep_images, request.refusals)
    batches = ledger.batches(_open_work(store, request, work))
    with closing((executor or Local()).run(batches, display)) as outcomes:
        for outcome in outcomes:
            ledger.take(outcome)
    try:
        finish(store)
    finally:  # what was measured is not lost
        display.say("writing tables and figures")
        display.finish(store, write_report(store, display.writing))
    if ledger.failed:
        words = f"{len(ledger.failed)} of {len(cells)} cells failed"
        raise RunFailed(f"{words}; {store.folder / 'table.csv'} says which and why")
    return store


def assemble(request: Request, store: Store, find: FindEnsemble) -> list[Work]:
    """Every ensemble of a request with its cells, each cell once."""
    labels = {entry["defense"]: entry["spec"] for entry in store.planned()}
    cells: list[Cell] = []
    work = []
    for grid in request.preset.grids:
        data = datasets.load(grid.dataset)
        for seed in request.seeds:
            for spec in grid.defenses:
                trained = find(spec, grid, seed)
                names = chain((trained.label, trained.spec), (f"{trained.label} ({n})" for n in count(2)))
                label = next(name for name in names if labels.get(name, trained.spec) == trained.spec)
                labels[label] = trained.spec  # two models of one name have a column each
                trained = replace(trained, label=label)
                surrogate = _surrogate(request, grid, seed, find)
                if surrogate and surrogate.provenance.weights_sha256 == trained.provenance.weights_sha256:
                    raise BadInput(f"{trained.label} cannot be its own surrogate; choose another --surrogate, or none")
                fresh = plan_cells(grid, trained, request, seed, data.checksum, surrogate)
                planned = [cell for cell in fresh if cell not in cells]
                cells += planned
                work.append(Work(grid, data, trained, surrogate, planned))
    return work


def _surrogate(request: Request, grid: Grid, seed: int, find: FindEnsemble) -> Trained | None:
    """What black-box attacks are made on: a baseline by an attacker who knows all but the weights, unless told."""
    if grid.blackbox is None:
        return None
    if request.surrogate is None:
        return find("baseline", grid, seed + SURROGATE_SEED)
    return find(request.surrogate, grid, seed)


def _open_work(store: Store, request: Request, work: list[Work]) -> Iterator[tuple[Material, list[Cell]]]:
    """What is not done yet, with what it takes to do it."""
    for part in work:
        cells = [cell for cell in part.cells if not store.has(cell, request.keep_images)]
        if cells:
            material = Material(
                ensemble=part.trained.ensemble,
                surrogate=part.surrogate.ensemble if part.surrogate else None,
                test=part.data.test.subset(slice(0, max(cell.samples for cell in cells))),
                batch_size=part.grid.batch_size,
                device=request.device,
                keep_images=request.keep_images,
                acceleration=request.acceleration,
                spec=part.trained.spec,
            )
            yield material, cells


def check(request: Request) -> None:
    """Everything that can be refused before the first minute of work."""
    for seed in request.seeds:
        if not 0 <= seed < 2**31:
            raise BadInput(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    for grid in request.preset.grids:
        about = DATASETS.get(grid.dataset)
        for spec in (*grid.defenses, *([request.surrogate] if request.surrogate and grid.blackbox else [])):
            if is_checkpoint(spec):
                load_outside(spec, grid.dataset)
            else:
                parse_defense(spec).defense.check(grid.members, about.classes)
        if request.surrogate and grid.blackbox and request.surrogate in grid.defenses:
            raise BadInput(f"{request.surrogate} cannot be its own surrogate; choose another --surrogate, or none")
        if isinstance(request.samples, int) and request.samples > about.sizes[1]:
            raise BadInput(f"samples is {request.samples}; {grid.dataset} has {about.sizes[1]} test images")


def _write_manifest(store: Store, request: Request, cells: list[Cell], surrogates: dict[str, Trained]) -> list[str]:
    """Add what is asked now to what was asked before; new samples, weights or batches replace older ones.

    An ensemble has one set of weights in a folder, and so has the surrogate: what was measured with others goes, also
    where it is not asked for now. A line for each ensemble that this concerns.
    """
    asked = [cell.asked() for cell in cells]
    places = {cell.place for cell in cells}
    weights = {_ensemble(cell): cell.weights for cell in cells}
    made_on = {(cell.dataset, cell.seed): cell.settings["surrogate"] for cell in cells if "surrogate" in cell.settings}
    kept, outdated = [], Counter[str]()
    for entry in store.planned():
        cell = cell_from(entry)
        surrogate = cell.settings.get("surrogate")
        if cell.place in places:
            continue
        if weights.get(_ensemble(cell), cell.weights) != cell.weights:
            outdated[f"{cell.defense} with other weights"] += 1
        elif surrogate and made_on.get((cell.dataset, cell.seed), surrogate) != surrogate:
            outdated[f"{cell.defense} from another surrogate"] += 1
        else:
            kept.append(entry)
    commands = list(dict.fromkeys([*store.commands(), request.command]))
    name = request.preset.name
    whole = load_preset(name) if name in preset_names() else request.preset  # what was narrowed keeps its order
    store.write_manifest(
        {
            "preset": request.preset.name,
            "title": request.preset.title,
            "commands": commands,
            "cells": order_cells([*kept, *asked], whole),
            "surrogates": store.surrogates()
            | {weights: f"{other.label}: {other.training}" for weights, other in surrogates.items()},
            "versions": versions(),
            "commit": commit(),
            "machine": describe_machine(),
        }
    )
    return [
        f"no longer in the tables, run again to have them: {n} cell{'s' * (n != 1)} of {what}"
        for what, n in outdated.items()
    ]


def _ensemble(cell: Cell) -> tuple[str, str, int]:
    return cell.dataset, cell.defense, cell.seed
