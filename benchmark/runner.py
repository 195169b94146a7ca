"""Run a preset: ensembles, then cells, each kept the moment it is done; what is done already is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import torch

from benchmark import datasets
from benchmark.acceleration import accelerated
from benchmark.attacks import parse_attack
from benchmark.cells import Cell, cell_from
from benchmark.datasets.catalogue import DATASETS
from benchmark.display import RunDisplay
from benchmark.ensembles import Trained, find_or_train, load_outside
from benchmark.evaluations import Subject, find_evaluation
from benchmark.grid import Grid
from benchmark.hardware import commit, describe_machine
from benchmark.models import predict, prepared
from benchmark.planning import Request, left_out, order_cells, plan_cells
from benchmark.reports import write_report
from benchmark.reports.tables import summarise
from benchmark.store import Store
from defenses.catalogue import parse_defense
from defenses.checkpoints import versions
from defenses.ensemble import predict_logits
from defenses.errors import BadInput, RunFailed
from defenses.outside import is_checkpoint

SURROGATE_SEED = 1000
"""Added to the seed of the defenses for the surrogate of black-box attacks."""


def run(request: Request, display: RunDisplay) -> Store:
    """Run every cell that is not there yet, then write tables and report."""
    store = Store(request.out)
    _check(request)
    store.open(request.preset.name)
    cells: list[Cell] = []
    labels = {entry["defense"]: entry["spec"] for entry in store.planned()}
    work: list[tuple[Grid, datasets.Dataset, Trained, Trained | None, list[Cell]]] = []
    for grid in request.preset.grids:
        data = datasets.load(grid.dataset)
        for seed in request.seeds:
            for spec in grid.defenses:
                trained = find_or_train(
                    spec, grid.dataset, grid.network, grid.members, grid.recipe, seed, request.device.type, display.say
                )
                if labels.setdefault(trained.label, trained.spec) != trained.spec:  # two files of one name
                    trained = replace(trained, label=trained.spec)
                surrogate = _surrogate(grid, seed, request, display) if grid.blackbox else None
                fresh = plan_cells(grid, trained, request, seed, data.checksum, surrogate)
                planned = [cell for cell in fresh if cell not in cells]
                cells += planned
                work.append((grid, data, trained, surrogate, planned))
    _write_manifest(store, request, cells)
    display.start([cell for cell in cells if not store.has(cell, request.keep_images)], len(cells))
    for line in (*request.remarks, *left_out(request)):
        display.say(line)
    for cell in filter(store.has, cells):
        store.tidy(cell)  # a run that was killed may have left its progress behind
    failures = 0
    for grid, data, trained, surrogate, planned in work:
        open_cells = [cell for cell in planned if not store.has(cell, request.keep_images)]
        if open_cells:
            failures += _run_cells(store, grid, data, trained, surrogate, open_cells, request, display)
    display.say("writing tables and figures")
    display.finish(store, write_report(store))
    if failures:
        raise RunFailed(f"{failures} of {len(cells)} cells failed; {store.folder / 'table.csv'} says which and why")
    return store


def _surrogate(grid: Grid, seed: int, request: Request, display: RunDisplay) -> Trained:
    """The ensemble an attacker trains who knows the data and the network but not the weights."""
    return find_or_train(
        "baseline",
        grid.dataset,
        grid.network,
        grid.members,
        grid.recipe,
        seed + SURROGATE_SEED,
        request.device.type,
        display.say,
    )


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
            "commit": commit(),
            "machine": describe_machine(),
        }
    )


def _run_cells(
    store: Store,
    grid: Grid,
    data: datasets.Dataset,
    trained: Trained,
    surrogate: Trained | None,
    cells: list[Cell],
    request: Request,
    display: RunDisplay,
) -> int:
    """Run the cells of one ensemble; what it makes of clean images is computed once. The number of failures."""
    test = data.test.subset(slice(0, max(cell.samples for cell in cells)))
    device = request.device
    ensemble = trained.ensemble.to(device)
    failures = 0
    other = surrogate.ensemble.to(device) if surrogate else None
    with prepared(ensemble), prepared(other or ensemble):
        images = test.images().to(device)
        subject = Subject(
            ensemble=ensemble,
            fast=accelerated(ensemble, images[: grid.batch_size]),
            images=images,
            surrogate=accelerated(other, images[: grid.batch_size]) if other else None,
            labels=test.labels,
            logits=predict_logits(ensemble, test, grid.batch_size),
            clean=predict(ensemble, images, grid.batch_size),
            report=display.report,
            keep_images=request.keep_images,
        )
        for cell in cells:
            display.begin(cell)
            try:
                records = run_cell(store, subject, cell, display)
                store.write(cell, records)
            except Exception as error:
                if isinstance(error, BadInput) and not request.refusals:
                    raise
                failures += 1
                store.write_failure(cell, f"{type(error).__name__}: {' '.join(str(error).split())}")
                display.failed(cell, error)
                continue
            display.done(cell, summarise(cell, records))
    return failures


def run_cell(store: Store, subject: Subject, cell: Cell, display: RunDisplay) -> pd.DataFrame:
    """The records of a cell, by the evaluation it names."""
    evaluate = find_evaluation(cell.evaluation)
    single = cell.evaluation != "strong" and cell.attack != "none"
    attack = parse_attack(f"{cell.attack}@{cell.library}({cell.parameters})") if single else None

    def one(first: int, end: int) -> pd.DataFrame:
        return evaluate(subject, cell, attack, first, end)

    return run_batches(store, cell, one, display, subject.keep_images)


def run_batches(
    store: Store,
    cell: Cell,
    one: Callable[[int, int], pd.DataFrame],
    display: RunDisplay,
    images: bool = False,
) -> pd.DataFrame:
    """Evaluate batch after batch, keeping each; batches that are there already are taken as they are."""
    finished = store.batches(cell, images)
    parts = []
    for first in range(0, cell.samples, cell.batch_size):
        end = min(first + cell.batch_size, cell.samples)
        records = finished.get((first, end))
        if records is None:
            records = _halving(one, first, end, display)
            if cell.attack != "none" and (end < cell.samples or first > 0):
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
