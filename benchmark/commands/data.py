"""``adp-bench data``: download the datasets, check them, and print their folders."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput, RunFailed

app = typer.Typer(help="Download, check and locate datasets.", no_args_is_help=True)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Datasets, or your own data.  [default: all datasets]"),
]


@app.command()
def fetch(names: Names = None) -> None:
    """Download or repair datasets, from the original host or from a mirror, and check their checksums."""
    failed = []
    for name in _known(names):
        try:
            typer.echo(visible(f"{name}: {_arrived(name)}"))
        except RunFailed as error:  # the other datasets may still arrive
            failed.append(str(error))
    if failed:
        raise RunFailed("; ".join(failed))


@app.command()
def verify(names: Names = None) -> None:
    """Check the installed datasets against the official checksums."""
    from benchmark import datasets

    present = {str(row["name"]) for row in datasets.describe() if row["present"]}
    damaged = []
    for name in _known(names):
        if not names and name not in present:
            typer.echo(f"{name}: not on disk")
            continue
        try:
            typer.echo(visible(f"{name}: good{_content(name)}, sha256 of the content {datasets.verify(name)}"))
        except BadInput as error:  # the other datasets are still checked
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


def _arrived(name: str) -> str:
    from benchmark import datasets

    source = datasets.fetch(name)
    return "your own data, nothing to download" if datasets.is_own(name) else f"complete, from {source}"


def _content(name: str) -> str:
    """Describe the content of the user's own data; empty for a registered dataset."""
    from benchmark import datasets

    entry = datasets.find(name)
    if not entry.own:
        return ""
    parts = [
        f"{entry.sizes[0]} training and {entry.sizes[1]} test images of {'×'.join(map(str, entry.shape))}",
        f"{entry.classes} classes" + (f" ({', '.join(entry.class_names)})" if entry.class_names else ""),
        *entry.remarks,
    ]
    return f": {'; '.join(parts)}"


def _known(names: list[str] | None) -> list[str]:
    """The given names without duplicates, or all names; an unknown name raises BadInput before any work."""
    from benchmark import datasets

    for name in names or []:
        datasets.where(name)
    return list(dict.fromkeys(names or datasets.names()))
