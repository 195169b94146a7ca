"""The cost of a run: its cells with gradients and seconds, and the ensembles to train first; nothing is run."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace

import torch

from benchmark.cells.store import Store
from benchmark.datasets import installation
from benchmark.datasets.lookup import find as find_dataset
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, find, training_seconds
from benchmark.harness.acceleration import accelerated
from benchmark.harness.prepared import prepared
from benchmark.machine.clock import clock
from benchmark.machine.devices import present
from benchmark.plan.costs import gradients, work
from benchmark.plan.grid import Grid
from benchmark.plan.planning import assemble, check, left_out
from benchmark.plan.run_request import Request
from defenses.catalogue import parse_defense
from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble

MEASURED = 500
"""Largest batch for measuring the speed: larger batches are hardly faster, and may not fit into memory."""


@dataclass(frozen=True)
class Training:
    """An ensemble that is not trained yet."""

    label: str
    dataset: str
    seed: int
    seconds: float


def forecast(request: Request) -> str:
    """The plan of a run as text; the speeds are measured on this machine."""
    check(request)
    for grid in request.preset.grids:
        if installation.missing(find_dataset(grid.dataset)):
            raise BadInput(f"--plan needs the dataset; run adp-bench data fetch {grid.dataset}")
    device = present(request.device)
    missing: dict[EnsembleRequest, Training] = {}

    def look(wanted: EnsembleRequest) -> Trained:
        trained = find(wanted)
        if trained is None:
            trained = _untrained(wanted)
            seconds = _training(replace(wanted, seed=0), str(device))
            missing[wanted] = Training(trained.label, wanted.dataset, wanted.seed, seconds)
        return trained

    store = Store(request.out)
    parts = assemble(request, store.asked(), look)
    speeds: dict[tuple[str, str, int], float] = {}
    rows: list[tuple[str, ...]] = []
    total = seconds = 0.0
    done = unknown = 0
    for part in parts:
        origin = part.trained.provenance
        place = (part.grid.dataset, origin.network, origin.members)
        for cell in part.cells:
            if store.has(cell, request.keep_images):
                done += 1
                continue
            if place not in speeds:
                speeds[place] = gradients_per_second(part.trained.ensemble, part.grid, device, request.acceleration)
            seed = f"seed {cell.conditions.seed}" if len(request.seeds) > 1 else ""
            if not all(named.attack.cost_known for named in cell.task.attacks):
                unknown += 1
                rows.append((cell.images.dataset, cell.title, seed, f"{cell.images.samples}", *["unknown"] * 3))
                continue
            whole = work(cell, part.cells)
            each = gradients(cell) if whole else 0
            total += whole
            seconds += whole / speeds[place]
            numbers = (f"{cell.images.samples}", f"{each:,.0f}", f"{whole:,.0f}", clock(whole / speeds[place]))
            rows.append((cell.images.dataset, cell.title, seed, *numbers))
    lines = _aligned([("dataset", "cell", "", "images", "gradients each", "in all", "time"), *rows])
    lines += ["", *left_out(request)]
    if missing:
        lines += ["", "to train first:"]
        trainings = missing.values()
        lines += _aligned(
            [(f"  {one.label}", one.dataset, f"seed {one.seed}", clock(one.seconds)) for one in trainings]
        )
    lines.append("")
    for (dataset, network, members), speed in speeds.items():
        where = f"CPU, threads: {torch.get_num_threads()}" if device.type == "cpu" else f"one device, {device.type}"
        lines.append(f"measured here: {members} × {network} on {dataset}: {speed:,.0f} gradients/s ({where})")
    if request.device != device:
        lines.append("this machine has no GPU: the times are for its CPU")
    training = sum(one.seconds for one in missing.values())
    finished = f", {done} more are already done" if done else ""
    lines += [
        f"{len(rows)} cells to run{finished}: {total:,.0f} gradients of one image, {clock(seconds)}; "
        f"training: {len(missing)} ensemble{'s' * (len(missing) != 1)}, {clock(training)}; "
        f"in total {clock(seconds + training)}",
        "this is an upper bound: some attacks stop early, and tier strong skips images that are already fooled",
    ]
    if unknown:
        lines.append(f"not included: {unknown} cells of attacks with unknown cost")
    return "\n".join(lines)


def gradients_per_second(ensemble: Ensemble, grid: Grid, device: torch.device, acceleration: str) -> float:
    """Speed of the ensemble in gradients of one image per second; the best of three batches."""
    shape = find_dataset(grid.dataset).shape
    size = min(grid.batch_size, MEASURED)
    images = torch.rand(size, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    times = []
    with prepared(ensemble.to(device)):
        model = accelerated(ensemble, images, acceleration)
        for _ in range(3):
            began = time.perf_counter()
            point = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(point).amax(-1).sum(), point)
            gradient.sum().item()  # waits until a GPU has finished
            times.append(time.perf_counter() - began)
    return size / min(times)


@functools.cache
def _training(wanted: EnsembleRequest, device: str) -> float:
    return training_seconds(wanted, device)


def _untrained(wanted: EnsembleRequest) -> Trained:
    """A placeholder for an ensemble that is not trained yet, with the same cells and the same speed."""
    named, about = parse_defense(wanted.defense), wanted.about
    ensemble = build_ensemble(wanted.canonical_network, wanted.members, about.shape, about.classes)
    provenance = Provenance(
        defense=named.text,
        dataset=about.name,
        network=wanted.canonical_network,
        members=wanted.members,
        shape=about.shape,
        classes=about.classes,
        recipe=wanted.chosen_recipe.as_dict(),
        seed=wanted.seed,
        weights_sha256=f"not trained yet: {named.text}, seed {wanted.seed}",
    )
    return Trained(named.label, named.text, ensemble, provenance)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Align the columns of a table: numbers (they begin with a digit) to the right, text to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [column[-1][:1].isdigit() for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
