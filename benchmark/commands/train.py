"""``adp-bench train``: train one ensemble; run the same command again to resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmark.commands import names
from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch


def train(
    defense: Annotated[
        str,
        typer.Argument(help="Defense spec, such as adp-2-0.5 or my_defense.py:Mine.", autocompletion=names.defenses),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            autocompletion=names.datasets,
            help="Dataset name, data.npz, a folder, or file.py:function.",
        ),
    ],
    network: Annotated[
        str | None, typer.Option(help="Network spec.  [default: mini-resnet for digits, else resnet20]")
    ] = None,
    members: Annotated[int, typer.Option(help="Number of networks in the ensemble.")] = 3,
    recipe: Annotated[
        str,
        typer.Option(help="fast, reference (40 epochs on full-size images), or paper (the authors' long schedule)."),
    ] = "fast",
    seed: Annotated[
        int, typer.Option(help="Seed of the initial weights, the batches and the attacks of adversarial training.")
    ] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Train one ensemble per seed, one after the other.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder; with --seeds, DIR/seed0, DIR/seed1, ….  [default: under results/ensembles]"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.  [default: the recipe's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size.  [default: the recipe's]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate.  [default: the recipe's]")] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="adam or sgd (Nesterov momentum 0.9).  [default: the recipe's]")
    ] = None,
    train_images: Annotated[int | None, typer.Option(help="Train only on the first N images.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, or bfloat16, which is faster on some processors.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="simultaneous, independent or sequential (section 3.1 of the paper).")
    ] = None,
    freeze_patience: Annotated[
        int | None, typer.Option(help="Freeze a member that has not improved for N epochs (Algorithm 1 of the paper).")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Number of training images to hold out for validation.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Epoch to keep: last, validation, or test-accuracy (the authors' choice; it leaks the test set)."
        ),
    ] = None,
    accept_changed_defense: Annotated[
        bool,
        typer.Option(
            "--accept-changed-defense", help="Resume a training that another version of the defense's file started."
        ),
    ] = False,
    log: Annotated[
        str, typer.Option(metavar="tensorboard|mlflow", help="Also write training curves for TensorBoard or MLflow.")
    ] = "",
    watch: Annotated[
        str,
        typer.Option(metavar="test|validation", help="Add the accuracy on 1000 images of this split to history.csv."),
    ] = "",
    start_from: Annotated[
        Path | None, typer.Option(help="Start from this checkpoint (same dataset, network and members).")
    ] = None,
) -> None:
    """Train an ensemble with a defense. Run the same command again to resume."""
    load_torch()
    from benchmark.commands.run import read_seeds
    from benchmark.ensembles.ensemble_request import EnsembleRequest
    from benchmark.ensembles.folders import CHANGED, ENSEMBLES, locate
    from benchmark.ensembles.training import train_ensemble

    changes: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "optimiser": optimiser,
        "train_images": train_images,
        "precision": precision,
        "strategy": strategy,
        "freeze_patience": freeze_patience,
        "validation": validation,
        "select": select,
    }
    for one in read_seeds(seeds, seed):
        request = EnsembleRequest(
            defense, dataset, network or "", members, recipe, one, accept_changed=accept_changed_defense
        )
        shipped = locate(request)
        exact = shipped and not shipped.is_relative_to(ENSEMBLES) and f"-{CHANGED}-" not in shipped.parent.name
        if shipped and exact and out is None and not any(changes.values()):
            where = visible(shipped.parent)
            typer.echo(f"{where} has the same settings; `adp-bench run` will use it, not the new ensemble", err=True)
        folder = out / f"seed{one}" if out and seeds else out
        train_ensemble(request, changes, folder, device, threads, start_from, log, watch)
