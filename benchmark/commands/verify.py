"""``adp-bench verify``: check the adversarial images that a run kept, against the ensemble they fooled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput, RunFailed


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    model: Annotated[
        list[str] | None, typer.Option(help="A model from outside that the run attacked. May be repeated.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load models that can run code when loaded: TorchScript, torch.export.")
    ] = False,
) -> None:
    """Load every kept adversarial image again: it must be in the box and the ball, and fool the same weights."""
    from benchmark.cells.store import Store
    from benchmark.ensembles.finding import load_outside
    from benchmark.run.reverification import check_kept

    store = Store(folder)
    kept = [cell for cell in store.asked() if store.has(cell) and store.images_path(cell).is_file()]
    if not kept:
        raise BadInput(f"{folder} keeps no adversarial images; run it again with --keep-images")
    datasets = dict.fromkeys(cell.images.dataset for cell in kept)
    given = [load_outside(spec, dataset, trust) for spec in model or [] for dataset in datasets]
    wrong = 0
    for cell in kept:
        count, complaints = check_kept(store, cell, given)
        verdict = f"{count} images fool it as recorded" if not complaints else "; ".join(complaints)
        typer.echo(visible(f"{cell.images.dataset} · {cell.title}: {verdict}"))
        wrong += bool(complaints)
    if wrong:
        raise RunFailed(f"{wrong} of {len(kept)} cells did not verify")
