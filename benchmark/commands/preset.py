"""``adp-bench preset show``: print a preset of the project as a TOML file to edit."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Print a preset as a file to edit.", no_args_is_help=True)


@app.callback()
def presets() -> None:
    """Print a preset as a file to edit."""


@app.command()
def show(name: Annotated[str, typer.Argument(help="Preset; `adp-bench list presets` shows the names.")]) -> None:
    """Print a preset as TOML. Save it to a file, edit it, and run the file."""
    from benchmark.plan.presets import preset_text

    typer.echo(preset_text(name), nl=False)
