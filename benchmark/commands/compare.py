"""``adp-bench compare``: a new defense against a reference, on the same images."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.cells.store import Store

Many = list[str] | None


def compare(
    candidate: Annotated[str, typer.Argument(help="A defense, file.py:name, or a checkpoint.")],
    against: Annotated[list[str], typer.Option(help="The defense to compare with: any of the same.")],
    dataset: Annotated[str | None, typer.Option(help="Dataset; its preset is taken.  [default: digits]")] = None,
    preset: Annotated[str | None, typer.Option(help="Preset whose attacks are run.  [default: by dataset]")] = None,
    attack: Annotated[Many, typer.Option(help="Only these attacks. May be repeated.")] = None,
    tier: Annotated[Many, typer.Option(help="Only this tier. May be repeated.")] = None,
    samples: Annotated[str | None, typer.Option(metavar="N|all", help="First N test images, or all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and of attacks.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    trust: Annotated[
        bool, typer.Option("--trust", help="Load models that can run code when loaded: TorchScript, torch.export.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder.  [default: under results/runs]")] = None,
) -> None:
    """Run what is missing of two defenses on the same images, and say what may be concluded."""
    reference, *others = against
    if others:
        raise BadInput(f"a comparison has one reference, and {len(against)} were given; compare with each in turn")
    if dataset is not None and preset is not None:
        raise BadInput("say where to compare by --dataset or by --preset, one of them")
    from dataclasses import replace

    from benchmark.commands.run import read_samples
    from benchmark.datasets.catalogue import DATASETS
    from benchmark.evaluations.clean import CleanSection
    from benchmark.findings.comparison import comparison_of
    from benchmark.findings.results import read_results
    from benchmark.machine.devices import find_device, set_threads
    from benchmark.plan.grid import Wish, narrow
    from benchmark.plan.presets import load_preset
    from benchmark.plan.run_request import Request
    from benchmark.reports.figures.drawing import slug
    from benchmark.run.comparing import canonical, keep_record, label_in, measure_costs
    from benchmark.run.display import RunDisplay
    from benchmark.run.runner import run as run_request
    from defenses.registry import did_you_mean

    name = preset or DATASETS.get(dataset or "digits").preset
    if not name:
        known = [entry.name for entry in map(DATASETS.get, DATASETS.names()) if entry.preset]
        raise BadInput(
            f"no preset compares on {dataset!r}; {did_you_mean(str(dataset), known)}, or name one with --preset"
        )
    if canonical(candidate) == canonical(reference):
        raise BadInput(f"{candidate} cannot be compared with itself; choose another --against")
    asked = () if dataset or preset else ("comparing on digits; --dataset or --preset asks for another",)
    wish = Wish(tiers=tuple(tier or []), defenses=(candidate, reference), attacks=tuple(attack or []))
    chosen = narrow(load_preset(name), wish)
    grids = [
        replace(grid, sections=(CleanSection(), *(section for section in grid.sections if section.compared)))
        for grid in chosen.grids
    ]
    set_threads(threads, [DATASETS.get(grid.dataset).threads for grid in chosen.grids])
    request = Request(
        preset=replace(chosen, name=f"compare {name}", title=f"{candidate} against {reference}", grids=tuple(grids)),
        samples=read_samples(samples),
        seeds=(seed,),
        device=find_device(device),
        out=out or Path("results/runs") / slug("compare", name, Path(candidate).name, "against", Path(reference).name),
        command=shlex.join(["adp-bench", *sys.argv[1:]]),
        trust=trust,
        remarks=asked,
    )
    display = RunDisplay()

    def keep(store: Store) -> None:
        first, second = (label_in(store, spec) for spec in (candidate, reference))
        keep_record(store, first, second, measure_costs(request, [candidate, reference], [first, second]))

    try:
        store = run_request(request, display, finish=keep)
    finally:
        display.stop()
    found = comparison_of(read_results(store))
    assert found is not None
    typer.echo(visible(found.sentence))
    typer.echo(visible(store.folder / "comparison.md"))
