"""``adp-bench run``: run a preset; finished cells are not run again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands import names
from benchmark.commands.report import FIGURES
from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch
from defenses.errors import BadInput

Many = list[str] | None


def run(
    preset: Annotated[
        str,
        typer.Argument(
            autocompletion=names.presets, help="Preset, or a TOML file; `adp-bench list presets` shows the names."
        ),
    ],
    tier: Annotated[
        Many,
        typer.Option(autocompletion=names.tiers, help="Run only this tier: paper, strict or strong. May be repeated."),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N|all", help="Attack the first N test images; all: as many as the paper.")
    ] = None,
    defense: Annotated[
        Many,
        typer.Option(
            autocompletion=names.defenses,
            metavar="[LABEL=]SPEC",
            help="Replace the preset's defenses: a spec or a checkpoint. May be repeated.",
        ),
    ] = None,
    attack: Annotated[
        Many,
        typer.Option(
            autocompletion=names.attacks, help="Run only this attack: a name in the preset, or a spec. May be repeated."
        ),
    ] = None,
    dataset: Annotated[
        Many,
        typer.Option(
            autocompletion=names.datasets,
            help="Run only this dataset of the preset, or use your own data. May be repeated.",
        ),
    ] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(
            metavar="[LABEL=]SPEC|none",
            help="Surrogate model of black-box attacks.  [default: a baseline with another seed]",
        ),
    ] = None,
    network: Annotated[str, typer.Option(metavar="SPEC", help="Replace the preset's network.")] = "",
    members: Annotated[int | None, typer.Option(min=1, help="Replace the preset's number of members.")] = None,
    recipe: Annotated[str, typer.Option(help="Replace the preset's training recipe: fast, reference or paper.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of worker processes.  [default: cores ÷ threads]")
    ] = None,
    executor: Annotated[str, typer.Option(help="local, or ray for several machines.")] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the Ray cluster.  [default: this machine]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and of the attacks.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Run several seeds, and report mean and spread.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Number of images in an attack batch. Some attacks depend on it.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="±2",
            help="Attack batch by batch in a fixed random order, and stop when every interval is ±2 points or less.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="With --until: probability that an interval misses its accuracy.  [default: 0.05]"),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="2h", help="With --until: start no new batch after this attack time.")
    ] = None,
    keep_images: Annotated[
        bool,
        typer.Option(help="Save the successful adversarial images for `adp-bench verify`."),
    ] = False,
    acceleration: Annotated[
        str,
        typer.Option(
            help="Attack a faster copy of the ensemble (folded, compiled), or the ensemble itself (none). "
            "reduced: tier strong begins with a short pass in bfloat16."
        ),
    ] = "folded",
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow TorchScript and torch.export models, which can run code when loaded.")
    ] = False,
    accept_changed_defense: Annotated[
        bool,
        typer.Option(
            "--accept-changed-defense",
            help="Use an ensemble that was trained with another version of the defense's file.",
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder.  [default: results/runs/PRESET]")] = None,
    figures: Annotated[str, typer.Option(metavar="pdf", help=FIGURES)] = "",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the cells and the estimated time, and run nothing.")
    ] = False,
) -> None:
    """Run a preset. Run the same command again to resume; run it with other options to add results."""
    load_torch()
    from dataclasses import replace

    from benchmark.commands.stopping import IN_RANDOM_ORDER, read_narrow
    from benchmark.datasets.lookup import find, is_own
    from benchmark.harness.acceleration import check_mode
    from benchmark.machine.devices import set_threads
    from benchmark.plan.grid import Wish, narrow
    from benchmark.plan.labels import read_label
    from benchmark.plan.presets import SUFFIX, load_preset
    from benchmark.plan.run_request import Request
    from benchmark.reports.figures.drawing import check_kind, slug
    from benchmark.run.display import RunDisplay
    from benchmark.run.executors import open_executor
    from benchmark.run.runner import run as run_request
    from defenses.training.precision import require_bfloat16

    label, made_on = read_label(surrogate) if surrogate else ("", surrogate)
    wish = Wish(
        tiers=tuple(tier or []),
        defenses=tuple(defense or []),
        attacks=tuple(attack or []),
        datasets=tuple(dataset or []),
        batch_size=batch_size,
        network=network,
        members=members,
        recipe=recipe,
        surrogate=made_on,
    )
    stopping = read_narrow(until, alpha, budget)
    if stopping and executor != "local":
        raise BadInput(f"--until runs only on this machine; omit --executor {executor}")
    whole = load_preset(preset)
    chosen = narrow(whole, wish)
    set_threads(threads, [find(grid.dataset).threads for grid in chosen.grids])
    own = [find(name).name for name in wish.datasets if is_own(name)]
    if stopping:
        chosen = replace(chosen, name=f"{chosen.name} {IN_RANDOM_ORDER}")
        own.append(IN_RANDOM_ORDER)
    asked, numbers = read_samples(samples), read_seeds(seeds, seed)
    with open_executor(executor, ray_address, workers) as where:
        request = Request(
            preset=chosen,
            samples=asked,
            seeds=numbers,
            device=where.find_device(device),
            out=out or Path("results/runs") / "-".join([whole.name.removesuffix(SUFFIX), *map(slug, own)]),
            command=shlex.join(["adp-bench", *sys.argv[1:]]),
            trust=trust,
            accept_changed=accept_changed_defense,
            keep_images=keep_images,
            acceleration=check_mode(acceleration),
            figures=check_kind(figures),
            surrogate=None if made_on == "none" else made_on,
            surrogate_label=label,
            order=whole,
            until=stopping,
        )
        if plan:
            from benchmark.plan.forecast import forecast

            typer.echo(visible(forecast(request), keep="\n"))
            return
        if acceleration == "reduced" and executor == "local":
            require_bfloat16(request.device, "--acceleration folded")
        display = RunDisplay()
        try:
            run_request(request, display, where)
        finally:
            display.stop()


def read_samples(text: str | None) -> int | str | None:
    """The requested number of images, ``all``, or None."""
    if text is None or text == "all":
        return text
    if not text.isdecimal() or len(text) > 12 or int(text) < 1:
        raise BadInput(f"--samples is {text[:40]!r}; write a number of images, or all")
    return int(text)


def read_seeds(text: str | None, seed: int) -> tuple[int, ...]:
    """The distinct seeds of ``--seeds 0,1,2``; without that option, the seed of ``--seed``."""
    if text is None:
        return (seed,)
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 and int(part) < 2**31 for part in parts):
        raise BadInput(f"--seeds is {text[:40]!r}; write integers below {2**31}, separated by commas, such as 0,1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))
