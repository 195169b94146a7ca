"""Run a request: ensembles, then cells, each kept the moment it is done; what is done already is not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, find_or_train
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.whitebox import LOOKED_AT
from benchmark.harness.subject import Material
from benchmark.machine.devices import present
from benchmark.machine.hardware import commit, describe_machine
from benchmark.plan.planning import Work, assemble, check, left_out, order_cells
from benchmark.plan.presets import load_preset, preset_names
from benchmark.plan.run_request import Request
from benchmark.reports import write_report
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Executor
from benchmark.run.executors.local import Local
from benchmark.run.ledger import Ledger
from defenses.checkpoints import versions
from defenses.errors import RunFailed


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
    with store.only_writer(display.say):
        return _run(request, store, display, executor or Local(), finish)


def _run(
    request: Request, store: Store, display: RunDisplay, executor: Executor, finish: Callable[[Store], None]
) -> Store:
    where = present(request.device).type

    def find(wanted: EnsembleRequest) -> Trained:
        return find_or_train(wanted, where, display.say)

    work = assemble(request, store.asked(), find)
    cells = [cell for part in work for cell in part.cells]
    surrogates = {part.surrogate.provenance.weights_sha256: part.surrogate for part in work if part.surrogate}
    outdated = _write_manifest(store, request, cells, surrogates)
    for part in work:
        first = part.data.test.images(slice(0, LOOKED_AT))
        store.write_clean_pictures(part.data.checksum, first.numpy())
    for line in store.set_aside_damaged(cells):
        display.say(line)
    open_cells = [cell for cell in cells if not store.has(cell, request.keep_images)]
    display.start(open_cells, cells)
    for line in (*request.remarks, *left_out(request), *outdated):
        display.say(line)
    for cell in filter(store.has, cells):
        store.tidy(cell)  # a run that was killed may have left its progress behind
    ledger = Ledger(store, display, request.keep_images, request.refusals)
    batches = ledger.batches(_open_work(store, request, work))
    with closing(executor.run(batches, display)) as outcomes:
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


def _open_work(store: Store, request: Request, work: list[Work]) -> Iterator[tuple[Material, list[Cell]]]:
    """What is not done yet, with what it takes to do it."""
    for part in work:
        cells = [cell for cell in part.cells if not store.has(cell, request.keep_images)]
        if cells:
            material = Material(
                ensemble=part.trained.ensemble,
                surrogate=part.surrogate.ensemble if part.surrogate else None,
                test=part.data.test.subset(slice(0, max(cell.images.samples for cell in cells))),
                batch_size=part.grid.batch_size,
                device=request.device,
                keep_images=request.keep_images,
                acceleration=request.acceleration,
                spec=part.trained.spec,
                trust=request.trust,
            )
            yield material, cells


def _write_manifest(store: Store, request: Request, cells: list[Cell], surrogates: dict[str, Trained]) -> list[str]:
    """Add what is asked now to what was asked before; new samples, weights or batches replace older ones.

    An ensemble has one set of weights in a folder, and so has the surrogate: what was measured with others goes, also
    where it is not asked for now. A line for each ensemble that this concerns.
    """
    places = {cell.place for cell in cells}
    weights = {cell.column: cell.ensemble.weights for cell in cells}
    made_on = {_attacker(cell): cell.task.surrogate for cell in cells if isinstance(cell.task, BlackBox)}
    kept, outdated = [], Counter[str]()
    for cell in store.asked():
        task, defense = cell.task, cell.ensemble.defense
        if cell.place in places:
            continue
        if weights.get(cell.column, cell.ensemble.weights) != cell.ensemble.weights:
            outdated[f"{defense} with other weights"] += 1
        elif isinstance(task, BlackBox) and made_on.get(_attacker(cell), task.surrogate) != task.surrogate:
            outdated[f"{defense} from another surrogate"] += 1
        else:
            kept.append(cell)
    name = request.preset.name
    preset = load_preset(name) if name in preset_names() else request.preset  # what was narrowed keeps its order
    told = {weights: f"{other.label}: {other.training}" for weights, other in surrogates.items()}
    store.write_manifest(
        order_cells([*kept, *cells], preset),
        {
            "preset": name,
            "title": request.preset.title,
            "commands": list(dict.fromkeys([*store.commands(), request.command])),
            "surrogates": store.surrogates() | told,
            "versions": versions(),
            "commit": commit(),
            "machine": describe_machine(),
        },
    )
    return [
        f"no longer in the tables, run again to have them: {n} cell{'s' * (n != 1)} of {what}"
        for what, n in outdated.items()
    ]


def _attacker(cell: Cell) -> tuple[str, int]:
    """Cells whose black-box images one attacker makes."""
    return cell.images.dataset, cell.conditions.seed
