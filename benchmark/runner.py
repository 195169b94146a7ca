"""Run a preset: ensembles, then cells, each kept the moment it is done; what is done already is not done again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmark import datasets
from benchmark.acceleration import accelerated
from benchmark.attacks import library_version
from benchmark.cells import Cell, cell_from
from benchmark.datasets.catalogue import DATASETS
from benchmark.display import RunDisplay
from benchmark.ensembles import Trained, find_or_train, is_checkpoint, load_outside
from benchmark.evaluation import attack_batch
from benchmark.grid import Grid, PlannedAttack, Preset
from benchmark.hardware import describe_machine
from benchmark.models import predict, prepared
from benchmark.published import published_accuracy
from benchmark.reports import write_report
from benchmark.reports.tables import summarise
from benchmark.store import Store
from defenses import specs
from defenses.catalogue import parse_defense
from defenses.checkpoints import versions
from defenses.ensemble import predict_logits
from defenses.errors import BadInput, RunFailed

CLEAN = "clean"
"""The tier of cells without an attack."""


@dataclass(frozen=True)
class Request:
    """What the user asked of a preset."""

    preset: Preset
    samples: int | str | None
    """A number of images, ``all`` for the paper's, or None for what suits the device."""
    seeds: tuple[int, ...]
    device: torch.device
    out: Path
    command: str


def run(request: Request, display: RunDisplay) -> Store:
    """Run every cell that is not there yet, then write tables and report."""
    store = Store(request.out)
    _check(request)
    store.open(request.preset.name)
    cells: list[Cell] = []
    failures = 0
    work: list[tuple[Grid, Trained, list[Cell]]] = []
    labels = {entry["defense"]: entry["spec"] for entry in store.planned()}
    for grid in request.preset.grids:
        for seed in request.seeds:
            for spec in grid.defenses:
                trained = find_or_train(
                    spec, grid.dataset, grid.network, grid.members, grid.recipe, seed, request.device.type, display.say
                )
                if labels.setdefault(trained.label, trained.spec) != trained.spec:  # two files of one name
                    trained = replace(trained, label=trained.spec)
                planned = [cell for cell in plan_cells(grid, trained, request, seed) if cell not in cells]
                cells += planned
                work.append((grid, trained, planned))
    _write_manifest(store, request, cells)
    display.start([cell for cell in cells if not store.has(cell)], len(cells))
    for line in left_out(request):
        display.say(line)
    for cell in filter(store.has, cells):
        store.tidy(cell)  # a run that was killed may have left its progress behind
    for grid, trained, planned in work:
        open_cells = [cell for cell in planned if not store.has(cell)]
        if open_cells:
            failures += _run_cells(store, grid, trained, open_cells, request, display)
    write_report(store)
    display.finish(store)
    if failures:
        raise RunFailed(f"{failures} of {len(cells)} cells failed; {store.folder / 'table.csv'} says which and why")
    return store


def _check(request: Request) -> None:
    """Everything that can be refused before the first minute of work."""
    for seed in request.seeds:
        if not 0 <= seed < 2**31:
            raise BadInput(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    for grid in request.preset.grids:
        about = DATASETS.get(grid.dataset)
        for spec in grid.defenses:
            if is_checkpoint(spec):
                load_outside(spec, grid.dataset)
            else:
                parse_defense(spec).defense.check(grid.members, about.classes)
        if isinstance(request.samples, int) and request.samples > about.sizes[1]:
            raise BadInput(f"samples is {request.samples}; {grid.dataset} has {about.sizes[1]} test images")


def plan_cells(grid: Grid, trained: Trained, request: Request, seed: int) -> list[Cell]:
    """The cells of one ensemble, attacks in the preset's order, tiers side by side."""
    size = DATASETS.get(grid.dataset).sizes[1]
    provenance = trained.provenance
    data = datasets.load(grid.dataset)
    base: dict[str, Any] = {
        "dataset": grid.dataset,
        "data_checksum": data.checksum,
        "defense": trained.label,
        "spec": trained.spec,
        "members": provenance.members,
        "network": provenance.network,
        "training": trained.training,
        "weights": provenance.weights_sha256,
        "seed": seed,
        "batch_size": grid.batch_size,
        "device": request.device.type,
    }
    cells = []
    for planned in grid.attacks:
        samples = choose_samples(planned, request, size)
        if planned.named is None:
            for classifier in [*(f"net{k + 1}" for k in range(provenance.members)), "ensemble"]:
                settings: dict[str, Any] = {"classifier": classifier}
                number = published_accuracy(grid.dataset, provenance.members, "none", settings, {}, trained.label)
                cells.append(
                    Cell(
                        **base, attack="none", parameters=f"classifier={classifier}", library="none",
                        library_version="", settings=settings, tier=CLEAN, samples=samples, published=number,
                    )
                )  # fmt: skip
            continue
        named = planned.named
        usual: dict[str, object] = {
            key: field.default
            for key, field in specs.parameters(type(named.attack)).items()
            if isinstance(field.default, (bool, int, float, str, type(None)))
        }
        settings = named.settings()
        number = published_accuracy(grid.dataset, provenance.members, named.name, settings, usual, trained.label)
        for tier in grid.tiers:
            cells.append(
                Cell(
                    **base, attack=named.name, parameters=named.parameters, library=named.library,
                    library_version=library_version(named.library), settings=settings, tier=tier, samples=samples,
                    published=number,
                )
            )  # fmt: skip
    return cells


def choose_samples(planned: PlannedAttack, request: Request, size: int) -> int:
    """How many of the first test images to attack."""
    if isinstance(request.samples, int):
        return request.samples
    everything = min(planned.paper_samples or size, size)
    if request.samples == "all" or request.device.type != "cpu":
        return everything
    return min(planned.samples or everything, everything)


def left_out(request: Request) -> list[str]:
    """What a CPU run leaves out of the full sample counts, in words."""
    lines = []
    for grid in request.preset.grids:
        size = DATASETS.get(grid.dataset).sizes[1]
        short: dict[tuple[int, int], list[str]] = {}
        for planned in grid.attacks:
            chosen, full = choose_samples(planned, request, size), min(planned.paper_samples or size, size)
            if chosen < full and planned.named:
                names = short.setdefault((chosen, full), [])
                if planned.named.name not in names:
                    names.append(planned.named.name)
        for (chosen, full), names in short.items():
            which = f"{grid.dataset}: {', '.join(names)}"
            lines.append(f"{which} on the first {chosen} images instead of {full} (--samples all)")
    return lines


def _write_manifest(store: Store, request: Request, cells: list[Cell]) -> None:
    """Add what is asked now to what was asked before; new samples, weights or batches replace older ones."""
    asked = [cell.asked() for cell in cells]
    places = {cell.place for cell in cells}
    kept = [entry for entry in store.planned() if cell_from(entry).place not in places]
    commands = list(dict.fromkeys([*store.commands(), request.command]))
    store.write_manifest(
        {
            "preset": request.preset.name,
            "title": request.preset.title,
            "commands": commands,
            "cells": order_cells([*kept, *asked]),
            "versions": versions(),
            "machine": describe_machine(),
        }
    )


def order_cells(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By dataset, attack, defense and tier, each in order of first appearance: whatever the history of the folder."""
    keys = ("dataset", "attack", "parameters", "defense", "tier", "seed")
    ranks: dict[str, dict[Any, int]] = {key: {} for key in keys}
    for cell in cells:
        for key in keys:
            ranks[key].setdefault(cell[key], len(ranks[key]))
    return sorted(cells, key=lambda cell: [ranks[key][cell[key]] for key in keys])


def _run_cells(
    store: Store, grid: Grid, trained: Trained, cells: list[Cell], request: Request, display: RunDisplay
) -> int:
    """Run the cells of one ensemble; clean predictions are computed once. Returns the number of failures."""
    data = datasets.load(grid.dataset).test.subset(slice(0, max(cell.samples for cell in cells)))
    ensemble = trained.ensemble.to(request.device)
    failures = 0
    with prepared(ensemble):
        logits = predict_logits(ensemble, data, grid.batch_size)
        images, labels = data.images().to(request.device), data.labels
        clean = predict(ensemble, images, grid.batch_size)
        fast = accelerated(ensemble, images[: grid.batch_size])
        for cell in cells:
            display.begin(cell)
            try:
                if cell.attack == "none":
                    records = _clean_records(cell, logits, labels, clean)
                else:
                    attack = next(p.named for p in grid.attacks if p.named and _is_of(cell, p))

                    def one(first: int, end: int, attack: Any = attack, cell: Cell = cell) -> pd.DataFrame:
                        return attack_batch(
                            ensemble, attack, cell.tier, images[first:end], labels[first:end].to(images.device),
                            clean[first:end], first, cell.seed, logits.shape[-1], fast,
                        )  # fmt: skip

                    records = run_batches(store, cell, one, display)
                store.write(cell, records)
            except (BadInput, KeyboardInterrupt):
                raise
            except Exception as error:
                failures += 1
                store.write_failure(cell, f"{type(error).__name__}: {' '.join(str(error).split())}")
                display.failed(cell, error)
                continue
            display.done(cell, summarise(cell, records))
    return failures


def _is_of(cell: Cell, planned: PlannedAttack) -> bool:
    named = planned.named
    return named is not None and (named.name, named.library, named.settings()) == (
        cell.attack, cell.library, cell.settings,
    )  # fmt: skip


def run_batches(store: Store, cell: Cell, one: Callable[[int, int], pd.DataFrame], display: RunDisplay) -> pd.DataFrame:
    """Attack batch after batch, keeping each; batches that are there already are taken as they are."""
    finished = store.batches(cell)
    parts = []
    for first in range(0, cell.samples, cell.batch_size):
        end = min(first + cell.batch_size, cell.samples)
        records = finished.get((first, end))
        if records is None:
            records = _halving(one, first, end, display)
            if end < cell.samples or first > 0:
                store.write_batch(cell, first, records)
        parts.append(records)
        display.advance(cell, end)
    return pd.concat(parts, ignore_index=True)


def _halving(one: Callable[[int, int], pd.DataFrame], first: int, end: int, display: RunDisplay) -> pd.DataFrame:
    """Attack rows first to end; out of memory, in two halves."""
    try:
        return one(first, end)
    except (torch.OutOfMemoryError, MemoryError):
        if end - first < 2:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = (first + end) // 2
    display.say(f"out of memory with {end - first} images: going on with {middle - first}")
    return pd.concat([_halving(one, first, middle, display), _halving(one, middle, end, display)])


def _clean_records(cell: Cell, logits: torch.Tensor, labels: torch.Tensor, clean: torch.Tensor) -> pd.DataFrame:
    """Predictions of one member, or of the ensemble, on clean images."""
    began = time.perf_counter()
    classifier = cell.settings["classifier"]
    predicted = clean if classifier == "ensemble" else logits[int(classifier.removeprefix("net")) - 1].argmax(-1)
    predicted, labels = predicted[: cell.samples], labels[: cell.samples]
    frame = pd.DataFrame({"index": range(cell.samples), "label": labels, "clean_prediction": predicted})
    frame["correct"] = (predicted == labels).numpy()
    counters = ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient", "attacked")
    frame[list(counters)] = False
    frame[["forwards", "backwards"]] = 0.0
    frame["seconds"] = (time.perf_counter() - began) / cell.samples
    frame["batch_size"] = cell.batch_size
    return frame
