"""``adp-bench train``: train one ensemble; the same command again resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmark.machine.terminal import visible


def train(
    defense: Annotated[str, typer.Argument(help="Defense spec, such as adp-2-0.5 or my_defense.py:Mine.")],
    dataset: Annotated[str, typer.Option(help="Dataset name, see `adp-bench list datasets`.")],
    network: Annotated[
        str | None, typer.Option(help="Network spec.  [default: mini-resnet for digits, else resnet20]")
    ] = None,
    members: Annotated[int, typer.Option(help="Networks in the ensemble.")] = 3,
    recipe: Annotated[str, typer.Option(help="fast, or paper for the authors' long schedule.")] = "fast",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, the batches and the attacks.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder.  [default: under results/ensembles]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    train_images: Annotated[int | None, typer.Option(help="Train on the first so many images only.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, or bfloat16 where the processor is faster in it.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="simultaneous, independent or sequential (section 3.1).")] = None,
    freeze_patience: Annotated[
        int | None, typer.Option(help="Freeze a member that has not improved for so many epochs (Algorithm 1).")
    ] = None,
    validation: Annotated[int | None, typer.Option(help="Images to hold out of the training set.")] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Weights to keep: last, validation, or test-accuracy (as the authors did; it leaks the test set)."
        ),
    ] = None,
    start_from: Annotated[Path | None, typer.Option(help="Checkpoint of the same kind to start from.")] = None,
) -> None:
    """Train an ensemble with a defense; killed or stopped, the same command goes on where it was."""
    from benchmark.ensembles.ensemble_request import EnsembleRequest
    from benchmark.ensembles.folders import CHANGED, ENSEMBLES, locate
    from benchmark.ensembles.training import train_ensemble

    changes: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "train_images": train_images,
        "precision": precision,
        "strategy": strategy,
        "freeze_patience": freeze_patience,
        "validation": validation,
        "select": select,
    }
    request = EnsembleRequest(defense, dataset, network or "", members, recipe, seed)
    shipped = locate(request)
    exact = shipped and not shipped.is_relative_to(ENSEMBLES) and f"-{CHANGED}-" not in shipped.parent.name
    if shipped and exact and out is None and not any(changes.values()):
        where = visible(shipped.parent)
        typer.echo(f"{where} is an ensemble like this one and comes first in `adp-bench run`", err=True)
    train_ensemble(request, changes, out, device, threads, start_from)
