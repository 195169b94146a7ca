"""Run a request: ensembles first, then cells; each result is stored at once, and finished cells are not run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

from benchmark.cells.cell import Cell, TestImages
from benchmark.cells.store import Store
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, find_or_train
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.whitebox import LOOKED_AT
from benchmark.harness.subject import Material
from benchmark.machine.devices import present
from benchmark.machine.hardware import commit, describe_machine
from benchmark.plan.planning import Work, assemble, check, left_out, missing, order_cells
from benchmark.plan.run_request import Request
from benchmark.reports import write_report
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Executor
from benchmark.run.executors.local import Local
from benchmark.run.ledger import Ledger
from benchmark.run.looks import Looks
from benchmark.run.materials import material_of, taken
from defenses.checkpoints import versions
from defenses.errors import RunFailed


def run(
    request: Request,
    display: RunDisplay,
    executor: Executor | None = None,
    finish: Callable[[Store, list[Work]], None] = lambda store, work: None,
) -> Store:
    """Run every unfinished cell, then ``finish``, then write tables and report."""
    store = Store(request.out)
    check(request)
    store.open(request.preset.name)
    with store.only_writer(display.say):
        return _run(request, store, display, executor or Local(), finish)


def _run(
    request: Request,
    store: Store,
    display: RunDisplay,
    executor: Executor,
    finish: Callable[[Store, list[Work]], None],
) -> Store:
    where = str(present(request.device))

    def find(wanted: EnsembleRequest) -> Trained:
        return find_or_train(wanted, where, display.say)

    executor.train(missing(request), present(request.device), display)
    work = assemble(request, store.asked(), find)
    looks = Looks(store, request, work, request.until) if request.until else None
    if looks:
        work = looks.so_far()
    cells = [cell for part in work for cell in part.cells]
    surrogates = {part.surrogate.provenance.identity: part.surrogate for part in work if part.surrogate}
    names = {part.data.name: list(part.data.class_names) for part in work if part.data.class_names}
    outdated = _write_manifest(store, request, cells, surrogates, names)
    for part in work:
        shown = TestImages(part.data.name, part.data.checksum, LOOKED_AT, request.taken)
        store.write_clean_pictures(shown, taken(part, request, LOOKED_AT).images().numpy())
    for line in store.set_aside_damaged(cells):
        display.say(line)
    if looks:
        looks.keep()
        looks.go(display)
        work = looks.so_far()
        cells = [cell for part in work for cell in part.cells]
        _write_manifest(store, request, cells, surrogates, names)
    open_cells = [cell for cell in cells if not store.has(cell, request.keep_images)]
    display.start(open_cells, cells)
    for line in (*request.remarks, *left_out(request), *outdated):
        display.say(line)
    for cell in filter(store.has, cells):
        store.tidy(cell)  # a killed run may have left progress files
    ledger = Ledger(store, display, request.keep_images, request.refusals)
    batches = ledger.batches(_open_work(store, request, work))
    with closing(executor.run(batches, display)) as outcomes:
        for outcome in outcomes:
            ledger.take(outcome)
    try:
        finish(store, work)
    finally:  # the report is written even if `finish` fails
        display.say("writing tables and figures")
        display.finish(store, write_report(store, display.writing, request.figures))
    if ledger.failed:
        words = f"{len(ledger.failed)} of {len(cells)} cells failed"
        raise RunFailed(f"{words}; {store.folder / 'table.csv'} lists them with the reasons")
    return store


def _open_work(store: Store, request: Request, work: list[Work]) -> Iterator[tuple[Material, list[Cell]]]:
    """The unfinished cells of each ensemble, with their material."""
    for part in work:
        cells = [cell for cell in part.cells if not store.has(cell, request.keep_images)]
        if cells:
            yield material_of(part, request, max(cell.images.samples for cell in cells)), cells


def _write_manifest(
    store: Store,
    request: Request,
    cells: list[Cell],
    surrogates: dict[str, Trained],
    class_names: dict[str, list[str]],
) -> list[str]:
    """Add the requested cells to the manifest; new samples, weights or batches replace older ones.

    In one folder, an ensemble and the surrogate each have one set of weights, and a dataset has one content. Cells with
    other weights or other content are removed, even if they are not part of this request; the result is a message for
    each ensemble concerned. An ensemble with a new label keeps its numbers under the new label.
    """
    names = {_ensemble(cell): cell.ensemble.defense for cell in cells}
    places = {cell.place for cell in cells}
    weights = {cell.column: cell.ensemble.weights for cell in cells}
    contents = {cell.images.dataset: cell.images.checksum for cell in cells}
    made_on = {_attacker(cell): cell.task.surrogate for cell in cells if isinstance(cell.task, BlackBox)}
    kept, outdated = [], Counter[str]()
    for before in store.asked():
        cell = before.named(names.get(_ensemble(before), before.ensemble.defense))
        store.rename(before, cell)
        task, defense = cell.task, cell.ensemble.defense
        if cell.place in places:
            continue
        if contents.get(cell.images.dataset, cell.images.checksum) != cell.images.checksum:
            outdated[f"{defense} on an older version of {cell.images.dataset}"] += 1
        elif weights.get(cell.column, cell.ensemble.weights) != cell.ensemble.weights:
            outdated[f"{defense} with other weights"] += 1
        elif isinstance(task, BlackBox) and made_on.get(_attacker(cell), task.surrogate) != task.surrogate:
            outdated[f"{defense} from another surrogate"] += 1
        else:
            kept.append(cell)
    told = {weights: f"{other.label}: {other.training}" for weights, other in surrogates.items()}
    store.write_manifest(
        order_cells([*kept, *cells], request.order or request.preset),
        {
            "preset": request.preset.name,
            "title": request.preset.title,
            "commands": list(dict.fromkeys([*store.commands(), request.command])),
            "surrogates": store.surrogates() | told,
            "class_names": store.class_names() | class_names,
            "versions": versions(),
            "commit": commit(),
            "machine": describe_machine(),
        },
    )
    return [
        f"removed from the tables: {n} cell{'s' * (n != 1)} of {what}; run the earlier command again to add them"
        for what, n in outdated.items()
    ]


def _ensemble(cell: Cell) -> tuple[str, str, str]:
    """A key for one ensemble on one dataset, independent of its label."""
    return cell.images.dataset, cell.ensemble.spec, cell.ensemble.weights


def _attacker(cell: Cell) -> tuple[str, int]:
    """A key for cells that share one black-box attacker."""
    return cell.images.dataset, cell.conditions.seed
