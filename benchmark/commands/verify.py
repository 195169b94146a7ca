"""``adp-bench verify``: check the saved adversarial images of a run or a certificate; no attack is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch
from defenses.errors import BadInput, NotVerified


def verify(
    what: Annotated[Path, typer.Argument(metavar="DIR|CERTIFICATE", help="Folder of a run, or a certificate.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Attacked model; for a certificate also a defense spec. May be repeated.  "
            "[default: found by the hash of its weights]"
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Your own data.  [default: the registered dataset named in the file]"),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow TorchScript and torch.export models, which can run code when loaded.")
    ] = False,
) -> None:
    """Check saved adversarial images. Each must lie in [0, 1] and in the bound, and the same weights misclassify it."""
    from benchmark.claims.certificate import is_certificate

    load_torch()
    if what.is_dir():
        _verify_run(what, model or [], dataset, trust)
    elif is_certificate(what):
        _verify_certificate(what, model or [], dataset, trust)
    else:
        raise BadInput(
            f"{what} is neither a run folder nor a certificate; give the folder of a run, or a .parquet file"
        )


def _verify_run(folder: Path, models: list[str], dataset: str | None, trust: bool) -> None:
    from benchmark.cells.store import Store
    from benchmark.datasets.lookup import find, named
    from benchmark.ensembles.finding import load_outside
    from benchmark.run.reverification import check_kept

    store = Store(folder)
    kept = [cell for cell in store.asked() if store.has(cell) and store.images_path(cell).is_file()]
    if not kept:
        raise BadInput(f"{folder} contains no adversarial images; run the preset again with --keep-images")
    if dataset is not None:
        find(dataset)  # from now on, `named` finds it
    about = [named(name) for name in dict.fromkeys(cell.images.dataset for cell in kept)]
    given = [load_outside(spec, entry, trust) for spec in models for entry in about]
    wrong = 0
    for cell in kept:
        count, complaints = check_kept(store, cell, given)
        verdict = f"all {count} images fool the ensemble, as recorded" if not complaints else "; ".join(complaints)
        typer.echo(visible(f"{cell.images.dataset} · {cell.title}: {verdict}"))
        wrong += bool(complaints)
    if wrong:
        raise NotVerified(f"{wrong} of {len(kept)} cells did not verify; their lines give the reasons")


def _verify_certificate(path: Path, models: list[str], dataset: str | None, trust: bool) -> None:
    from benchmark import datasets
    from benchmark.claims.certificate import read_statement
    from benchmark.claims.checking import check
    from benchmark.run.reverification import model_of, trained_with

    stated = read_statement(path)
    if dataset is None and stated.dataset not in datasets.names():  # never load data that only a certificate names
        raise BadInput(
            f"{path} uses the dataset {stated.dataset!r}, which is not registered; give the data with --dataset"
        )
    name = dataset or stated.dataset
    if len(models) > 1:
        raise BadInput(f"a certificate covers one model, but --model was given {len(models)} times; give it once")
    trained = (
        model_of(models[0], datasets.find(name), trust, stated.weights)
        if models
        else trained_with(stated.weights, stated.model)
    )
    found = check(path, trained, datasets.load(name))
    typer.echo(visible(f"claim: {stated.claim}; model: {stated.model}"))
    if found.complaints:
        raise NotVerified(f"{path}: {'; '.join(found.complaints)}")
    typer.echo(visible(f"verified: {found.sentence}"))
