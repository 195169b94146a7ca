"""``adp-bench compare``: a new defense against one or more references, on the same images."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.commands import names
from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.cells.store import Store
    from benchmark.plan.planning import Work

Many = list[str] | None


def compare(
    candidate: Annotated[
        str,
        typer.Argument(
            metavar="[LABEL=]CANDIDATE",
            autocompletion=names.defenses,
            help="A defense, file.py:name, or a checkpoint.",
        ),
    ],
    against: Annotated[
        list[str],
        typer.Option(
            metavar="[LABEL=]SPEC", autocompletion=names.defenses, help="A defense to compare with. May be repeated."
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.datasets,
            help="Dataset name or your own data; it also selects the preset.  [default: digits]",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=names.presets, help="Preset or TOML file with the attacks to run.  [default: by dataset]"
        ),
    ] = None,
    attack: Annotated[
        Many, typer.Option(autocompletion=names.attacks, help="Run only this attack. May be repeated.")
    ] = None,
    tier: Annotated[Many, typer.Option(autocompletion=names.tiers, help="Run only this tier. May be repeated.")] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N|all", help="Attack the first N test images, or all.")
    ] = None,
    network: Annotated[str, typer.Option(metavar="SPEC", help="Replace the preset's network.")] = "",
    members: Annotated[int | None, typer.Option(min=1, help="Replace the preset's number of members.")] = None,
    recipe: Annotated[str, typer.Option(help="Replace the preset's training recipe: fast, reference or paper.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of training and of attacks.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Run several seeds, and test over trainings too.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="decided",
            help="Attack batch by batch in a fixed random order, and stop each row once it is decided.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="With --until: largest probability of any wrong decision.  [default: 0.05]"),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="With --until: two defenses within this many points are equal.  [default: 2]"),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="2h", help="With --until: start no new batch after this attack time.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of images in an attack batch. With --until, rows are tested after each batch."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of worker processes.  [default: cores ÷ threads]")
    ] = None,
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
    out: Annotated[Path | None, typer.Option(help="Output folder.  [default: under results/runs]")] = None,
) -> None:
    """Compare defenses on the same images. Run missing trainings and attacks, then test the differences."""
    load_torch()
    from dataclasses import replace

    from benchmark.commands.run import read_samples, read_seeds
    from benchmark.commands.stopping import IN_RANDOM_ORDER, read_decided
    from benchmark.datasets.catalogue import DATASETS
    from benchmark.datasets.lookup import find, is_own
    from benchmark.evaluations.clean import CleanSection
    from benchmark.findings.comparison import comparison_of
    from benchmark.findings.results import read_results
    from benchmark.machine.devices import find_device, set_threads
    from benchmark.plan.grid import Wish, narrow
    from benchmark.plan.labels import canonical, read_labels
    from benchmark.plan.presets import load_preset
    from benchmark.plan.run_request import Request
    from benchmark.reports.figures.drawing import slug
    from benchmark.run.comparing import keep_compared
    from benchmark.run.display import RunDisplay
    from benchmark.run.executors import open_executor
    from benchmark.run.runner import run as run_request
    from defenses.registry import did_you_mean

    numbers = read_seeds(seeds, seed)
    stopping = read_decided(until, alpha, margin, budget, len(numbers))
    own = dataset is not None and is_own(dataset)
    if dataset is not None and preset is not None and not own:
        raise BadInput("give --dataset or --preset, not both")
    name = preset or find(dataset or "digits").preset
    if not name:
        known = [name for name in DATASETS.names() if getattr(DATASETS.get(name), "preset", "")]
        raise BadInput(
            f"no preset compares on {dataset!r}; {did_you_mean(str(dataset), known)}, or name one with --preset"
        )
    specs, labels = read_labels([candidate, *against])
    for position, spec in enumerate(specs):
        if canonical(spec) in map(canonical, specs[:position]) or len(specs) == 1:
            raise BadInput(f"{spec} cannot be compared with itself; choose another --against")
    shown = [labels.get(spec, spec) for spec in specs]
    asked = () if dataset or preset else ("comparing on digits; choose other data with --dataset or --preset",)
    place = (dataset,) if own and dataset else ()
    wish = Wish(
        tiers=tuple(tier or []),
        defenses=(candidate, *against),
        attacks=tuple(attack or []),
        datasets=place,
        batch_size=batch_size,
        network=network,
        members=members,
        recipe=recipe,
    )
    chosen = narrow(load_preset(name), wish)
    grids = [
        replace(grid, sections=(CleanSection(), *(section for section in grid.sections if section.compared)))
        for grid in chosen.grids
    ]
    data = [find(spec).name for spec in place]
    ending = [IN_RANDOM_ORDER] if stopping else []
    files = [Path(spec).name for spec in specs]  # without labels, so that a new label finds the existing results
    set_threads(threads, [find(grid.dataset).threads for grid in chosen.grids])
    request = Request(
        preset=replace(
            chosen,
            name=" ".join(["compare", chosen.name, *ending]),
            title=f"{shown[0]} against {' and '.join(shown[1:])}",
            grids=tuple(grids),
        ),
        samples=read_samples(samples),
        seeds=numbers,
        device=find_device(device),
        out=out or Path("results/runs") / slug("compare", chosen.name, *data, files[0], "against", *files[1:], *ending),
        command=shlex.join(["adp-bench", *sys.argv[1:]]),
        trust=trust,
        accept_changed=accept_changed_defense,
        remarks=asked,
        until=stopping,
    )
    display = RunDisplay()

    def keep(store: Store, work: list[Work]) -> None:
        keep_compared(store, request, work, specs)

    try:
        with open_executor("local", workers=workers) as where:
            store = run_request(request, display, where, keep)
    finally:
        display.stop()
    found = comparison_of(read_results(store))
    assert found is not None
    for sentence in found.sentences:
        typer.echo(visible(sentence))
    typer.echo(visible(store.folder / "comparison.md"))
