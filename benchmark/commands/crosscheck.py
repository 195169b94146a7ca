"""``adp-bench crosscheck``: run one attack with the same settings and images in every library that has it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.commands import names
from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch
from defenses.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from benchmark.reports.tables.class_survey import ListedClass


def crosscheck(
    dataset: Annotated[
        str, typer.Option(autocompletion=names.datasets, help="Dataset name, data.npz, a folder, or file.py:function.")
    ] = "digits",
    defense: Annotated[
        str,
        typer.Option(
            metavar="[LABEL=]SPEC",
            autocompletion=names.defenses,
            help="Ensemble to attack: a spec or a checkpoint.",
        ),
    ] = "baseline",
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Attack: a name, a spec without a library, LIBRARY:CLASS(…) or file.py:name(…). May be repeated."
        ),
    ] = None,
    every_class: Annotated[
        bool,
        typer.Option(
            "--every-class", help="Run every attack class of the libraries once instead, on digits and CIFAR-10."
        ),
    ] = False,
    library: Annotated[
        list[str] | None,
        typer.Option(help="With --every-class: torchattacks, art or foolbox. May be repeated.  [default: all]"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Attack the first N test images.  [default: depends on the attack]"),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Training recipe of the ensemble.  [default: that of the dataset's preset]")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of training and of the attacks.")] = 0,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow TorchScript and torch.export models, which can run code when loaded.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder.  [default: results/runs/crosscheck]")] = None,
) -> None:
    """Run one attack in several libraries. Report the differences in accuracy, images and cost."""
    load_torch()
    from benchmark.cells.store import Store
    from benchmark.datasets.lookup import find
    from benchmark.findings.crosscheck import crosscheck_table, summary
    from benchmark.findings.results import read_results
    from benchmark.machine.devices import find_device, set_threads
    from benchmark.plan.every_class import every_class_preset
    from benchmark.plan.grid import Wish, narrow
    from benchmark.plan.libraries import crosscheck_preset, remarks
    from benchmark.plan.run_request import Request
    from benchmark.reports.tables.class_survey import FILE, write_every_class
    from benchmark.run.display import RunDisplay
    from benchmark.run.runner import run as run_request

    if every_class and (attack or dataset != "digits"):
        raise BadInput("--every-class chooses its own attacks and images; omit --attack and --dataset")
    if library and not every_class:
        raise BadInput("--library needs --every-class; to choose one class, use --attack 'LIBRARY:CLASS(…)'")
    libraries = library or []
    chosen = (
        every_class_preset(libraries, defense, samples)
        if every_class
        else crosscheck_preset(dataset, defense, attack or [], samples)
    )
    if recipe:
        chosen = narrow(chosen, Wish(recipe=recipe))
    set_threads(threads, [find(grid.dataset).threads for grid in chosen.grids])
    request = Request(
        preset=chosen,
        samples=samples,
        seeds=(seed,),
        device=find_device(device),
        out=out or Path("results/runs") / chosen.name,
        command=shlex.join(["adp-bench", *sys.argv[1:]]),
        trust=trust,
        refusals=True,
        remarks=() if attack or every_class else remarks(dataset, samples),
    )
    display = RunDisplay()
    failed = None
    try:
        run_request(request, display)
    except RunFailed as error:
        failed = error
    finally:
        display.stop()
    results = read_results(Store(request.out))
    if every_class:
        said = write_every_class(request.out, results, _listed(libraries), "adp-bench crosscheck --every-class")
        typer.echo(visible(said, keep="\n"))
        typer.echo(visible(request.out / FILE))
    else:
        typer.echo(visible(summary(crosscheck_table(results))))
        typer.echo(visible(request.out / "crosscheck.md"))
    if failed:
        raise failed


def _listed(libraries: list[str]) -> list[ListedClass]:
    from benchmark.attacks.library_attacks import library_classes
    from benchmark.attacks.library_facts import LIBRARIES
    from benchmark.reports.tables.class_survey import ListedClass

    found = (one for library in libraries or LIBRARIES for one in library_classes(library).values())
    return [ListedClass(one.library, one.name, one.left_out) for one in found]
