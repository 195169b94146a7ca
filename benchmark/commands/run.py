"""``adp-bench run``: run a preset, or what is missing of it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput

Many = list[str] | None


def run(
    preset: Annotated[str, typer.Argument(help="Preset name, see `adp-bench list presets`.")],
    tier: Annotated[Many, typer.Option(help="Only this tier: paper, strict or strong. May be repeated.")] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N|all", help="Attack the first N test images; all is the paper's number.")
    ] = None,
    defense: Annotated[
        Many, typer.Option(help="Instead of the preset's: a spec or a checkpoint. May be repeated.")
    ] = None,
    attack: Annotated[
        Many, typer.Option(help="Only these attacks: a name in the preset, or a spec. May be repeated.")
    ] = None,
    dataset: Annotated[Many, typer.Option(help="Only this dataset of the preset. May be repeated.")] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC|none",
            help="What black-box attacks are made on.  [default: a baseline of another seed]",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: Annotated[
        str, typer.Option(help="Where cells run: local, or ray for several GPUs or machines.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ray cluster.  [default: this machine's]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and of attacks.")] = 0,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,2", help="Several seeds: mean and spread.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images attacked at once; results may depend on it.")] = None,
    keep_images: Annotated[
        bool,
        typer.Option(help="Keep the adversarial images that fool an ensemble, for `adp-bench verify`."),
    ] = False,
    acceleration: Annotated[
        str,
        typer.Option(help="What is attacked: a fast copy (folded, compiled), or the ensemble as it is (none)."),
    ] = "folded",
    trust: Annotated[
        bool, typer.Option("--trust", help="Load models that can run code when loaded: TorchScript, torch.export.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder.  [default: results/runs/PRESET]")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be run, and what it would cost.")] = False,
) -> None:
    """Run a preset: the same command again does only what is missing, other options extend it."""
    from benchmark.datasets.catalogue import DATASETS
    from benchmark.harness.acceleration import check_mode
    from benchmark.machine.devices import set_threads
    from benchmark.plan.grid import Wish, narrow
    from benchmark.plan.presets import load_preset
    from benchmark.plan.run_request import Request
    from benchmark.run.display import RunDisplay
    from benchmark.run.executors import open_executor
    from benchmark.run.runner import run as run_request

    if batch_size is not None and batch_size < 1:
        raise BadInput(f"batch size is {batch_size}; it must be at least 1")
    wish = Wish(
        tiers=tuple(tier or []),
        defenses=tuple(defense or []),
        attacks=tuple(attack or []),
        datasets=tuple(dataset or []),
        batch_size=batch_size,
        surrogate=surrogate,
    )
    chosen = narrow(load_preset(preset), wish)
    set_threads(threads, [DATASETS.get(grid.dataset).threads for grid in chosen.grids])
    asked, numbers = read_samples(samples), _seeds(seeds) if seeds else (seed,)
    with open_executor(executor, ray_address) as where:
        request = Request(
            preset=chosen,
            samples=asked,
            seeds=numbers,
            device=where.find_device(device),
            out=out or Path("results/runs") / preset,
            command=shlex.join(["adp-bench", *sys.argv[1:]]),
            trust=trust,
            keep_images=keep_images,
            acceleration=check_mode(acceleration),
            surrogate=None if surrogate == "none" else surrogate,
        )
        if plan:
            from benchmark.plan.forecast import forecast

            typer.echo(visible(forecast(request), keep="\n"))
            return
        display = RunDisplay()
        try:
            run_request(request, display, where)
        finally:
            display.stop()


def read_samples(text: str | None) -> int | str | None:
    """The number of images asked for, ``all``, or None."""
    if text is None or text == "all":
        return text
    if not text.isdecimal() or len(text) > 12 or int(text) < 1:
        raise BadInput(f"samples is {text[:40]!r}; write a number of images, or all")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 for part in parts):
        raise BadInput(f"seeds is {text[:40]!r}; write whole numbers with commas, such as 0,1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))
