"""``adp-bench data``: get the datasets, check them again, and say where they are."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput, RunFailed

app = typer.Typer(help="Get the datasets, check them again, and say where they are.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets; all of them if none is named.")]


@app.command()
def fetch(names: Names = None) -> None:
    """Install datasets, or repair them: original host first, then package mirrors; checksums decide."""
    from benchmark import datasets

    failed = []
    for name in _known(names):
        try:
            typer.echo(visible(f"{name}: complete, from {datasets.fetch(name)}"))
        except RunFailed as error:  # the other datasets may still arrive
            failed.append(str(error))
    if failed:
        raise RunFailed("; ".join(failed))


@app.command()
def verify(names: Names = None) -> None:
    """Check every byte against the official checksums; without names, whatever is on disk."""
    from benchmark import datasets

    present = {str(row["name"]) for row in datasets.describe() if row["present"]}
    damaged = []
    for name in _known(names):
        if not names and name not in present:
            typer.echo(f"{name}: not on disk")
            continue
        try:
            typer.echo(f"{name}: good, sha256 of the content {datasets.verify(name)}")
        except BadInput as error:  # say which of the others are good
            damaged.append(str(error))
    if damaged:
        raise BadInput("; ".join(damaged))


@app.command()
def where(names: Names = None) -> None:
    """Print the data folder, or the folder of each named dataset."""
    from benchmark import datasets

    if not names:
        typer.echo(visible(datasets.data_folder()))
    for name in _known(names) if names else []:
        typer.echo(visible(datasets.where(name) or f"{name} is part of a library and has no folder"))


def _known(names: list[str] | None) -> list[str]:
    """The names in the order given, once each; an unknown one is BadInput before anything is done."""
    from benchmark import datasets

    for name in names or []:
        datasets.where(name)
    return list(dict.fromkeys(names or datasets.names()))
