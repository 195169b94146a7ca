"""``adp-bench crosscheck``: one attack at one setting through every library that has it, on the same images."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import RunFailed


def crosscheck(
    dataset: Annotated[str, typer.Option(help="Dataset, see `adp-bench list datasets`.")] = "digits",
    defense: Annotated[str, typer.Option(help="The ensemble to attack: a spec or a checkpoint.")] = "baseline",
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Only these attacks: a name, or a spec without a library. May be repeated."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="First N test images.  [default: by attack]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of training and of attacks.")] = 0,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load models that can run code when loaded: TorchScript, torch.export.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder.  [default: results/runs/crosscheck]")] = None,
) -> None:
    """Run every attack that several libraries have through each of them, and say where they differ."""
    from benchmark.cells.store import Store
    from benchmark.datasets.catalogue import DATASETS
    from benchmark.findings.crosscheck import crosscheck_table, summary
    from benchmark.findings.results import read_results
    from benchmark.machine.devices import find_device, set_threads
    from benchmark.plan.libraries import NAME, crosscheck_preset, remarks
    from benchmark.plan.run_request import Request
    from benchmark.run.display import RunDisplay
    from benchmark.run.runner import run as run_request

    chosen = crosscheck_preset(dataset, defense, attack or [], samples)
    set_threads(threads, [DATASETS.get(dataset).threads])
    request = Request(
        preset=chosen,
        samples=samples,
        seeds=(seed,),
        device=find_device(device),
        out=out or Path("results/runs") / NAME,
        command=shlex.join(["adp-bench", *sys.argv[1:]]),
        trust=trust,
        refusals=True,
        remarks=() if attack else remarks(dataset, samples),
    )
    display = RunDisplay()
    failed = None
    try:
        run_request(request, display)
    except RunFailed as error:
        failed = error
    finally:
        display.stop()
    typer.echo(visible(summary(crosscheck_table(read_results(Store(request.out))))))
    typer.echo(visible(request.out / "crosscheck.md"))
    if failed:
        raise failed
