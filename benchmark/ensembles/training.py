"""Training for the user: look up names, load data, and show progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from benchmark import datasets
from benchmark.datasets.catalogue import Entry
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import default_folder
from benchmark.ensembles.training_logs import NoLog, TrainingLog, check_log, open_log
from benchmark.machine.clock import clock
from benchmark.machine.devices import find_device, set_threads
from benchmark.machine.terminal import visible
from defenses.catalogue import parse_defense
from defenses.checkpoints import read_provenance
from defenses.errors import BadInput
from defenses.training.convergence import ADVICE, doubts
from defenses.training.data import TrainingData
from defenses.training.distributed import joined, rank
from defenses.training.loop import Watch, train
from defenses.training.precision import has_bfloat16
from defenses.training.progress import Progress
from defenses.training.recipes import Look, Recipe
from defenses.training.request import TrainingRequest, needs_float32

KINDS: dict[Look, str] = {"tiny": "tiny images", "grey": "grey images", "colour": "colour images"}


def train_ensemble(
    request: EnsembleRequest,
    changes: dict[str, Any] | None = None,
    out: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    start_from: Path | None = None,
    log: str = "",
    watch: str = "",
    console: Console | None = None,
) -> Path:
    """Train an ensemble, or resume its training, and return the path of the checkpoint.

    ``changes`` replace settings of the recipe. ``log`` is a kind of training log in addition to history.csv. ``watch``
    is a split whose accuracy is measured after every epoch.
    """
    check_log(log)
    if not 0 <= request.seed < 2**31:
        raise BadInput(f"seed is {request.seed}; it must lie between 0 and {2**31 - 1}")
    named = parse_defense(request.defense)
    where = find_device(device)
    set_threads(threads, [request.about.threads])
    network, members, seed = request.canonical_network, request.members, request.seed
    chosen, reason = usable_recipe(request, where, changes)
    data = training_data(request.dataset, chosen, seed)
    out = out or default_folder(named, request, request.recipe_with(**(changes or {})))
    console = console or Console(stderr=True, highlight=False, emoji=False)
    display = _Display(named.label, console)
    for line in (*describe_own(request.about, chosen), *([reason] if reason else [])):
        display.say(line)
    watched = _check_watch(watch, chosen)
    display.log = partial(open_log, log, out, named.label, {**chosen.as_dict(), "seed": seed, "network": network})
    with joined(where) as where, display:
        asked = TrainingRequest(named, network, members, chosen, seed, start_from, request.accept_changed)
        path = train(asked, data, out, where, display.batch, display.epoch, display.start, watched)
        if rank() > 0:
            return path
    scores = read_provenance(path).scores
    display.say(
        f"{named.label} on {request.about.name}: test accuracy {scores['test_accuracy']:.2%} "
        f"(members {', '.join(f'{value:.2%}' for value in scores['test_member_accuracy'])}), "
        f"median log diversity {scores['test_led_median']:.2f}, {path}"
    )
    warning = doubts(read_provenance(path))
    if warning:
        display.say(f"warning: training has not converged: {warning}. {ADVICE}")
    return path


def usable_recipe(
    request: EnsembleRequest, device: torch.device, changes: dict[str, Any] | None = None
) -> tuple[Recipe, str]:
    """The recipe of a training, and a line with the reason if it uses float32 although the recipe prefers bfloat16.

    A precision that the user names is never replaced.
    """
    recipe = request.recipe_with(**(changes or {}))
    if recipe.precision == "float32" or (changes or {}).get("precision"):
        return recipe, ""
    named = parse_defense(request.defense)
    if needs_float32(named.defense):
        reason = "it has its own forward pass"
    elif not has_bfloat16(device):
        reason = f"bfloat16 does not work on this {device.type}"
    else:
        return recipe, ""
    return replace(recipe, precision="float32"), f"{named.label} trains in float32: {reason}"


def describe_own(about: Entry, recipe: Recipe) -> list[str]:
    """A description of the training on the user's own data; empty for a registered dataset."""
    if not about.own:
        return []
    names = (
        f" ({', '.join(about.class_names[:10])}{', …' * (len(about.class_names) > 10)})" if about.class_names else ""
    )
    size = "×".join(map(str, about.shape))
    images = recipe.train_images or about.sizes[0]
    batches = recipe.batch_count(images)
    what = (
        f"{about.name}: {about.sizes[0]} training and {about.sizes[1]} test images of {size}, {about.classes} classes"
    )
    how = (
        f"recipe {recipe.name} for {KINDS[about.look]}: {recipe.epochs} epochs of {batches} batches, "
        f"{recipe.epochs * batches} steps in total, {'with' if recipe.shift else 'without'} shifts, without mirroring "
        "(change the length with --epochs N)"
    )
    return [f"{what}{names}", *(f"{about.name}: {remark}" for remark in about.remarks), how]


def require_training_part(about: Entry) -> None:
    """Refuse a dataset that has only test images."""
    if not about.sizes[0]:
        raise BadInput(
            f"{about.name} has no training images; "
            "add x_train and y_train (or train/CLASS/), or evaluate a trained model"
        )


def training_data(dataset: str, recipe: Recipe, seed: int) -> TrainingData:
    """The splits of the recipe; validation images come from the training set, never from the test set."""
    require_training_part(datasets.find(dataset))
    loaded = datasets.load(dataset)
    kept, held_out = loaded.train, None
    if recipe.validation:
        kept, held_out = loaded.holdout(recipe.validation, seed)
    return TrainingData(loaded.name, loaded.classes, kept, loaded.test, held_out, loaded.checksum)


def _check_watch(watch: str, recipe: Recipe) -> Watch | None:
    if watch not in ("", "test", "validation"):
        raise BadInput(f"--watch is {watch!r}; write test or validation")
    if watch == "validation" and not recipe.validation:
        raise BadInput("--watch validation needs held-out images; add --validation 1000")
    return watch or None  # type: ignore[return-value]  # checked above


class _Display:
    """A live line on a terminal; elsewhere a line per epoch, at most every 5 s, and a line about batches every 30 s."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = visible(title), console
        place, note = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[note]"))
        columns = (place, BarColumn(bar_width=20), MofNCompleteColumn(), note)
        self.bars = Bars(*columns, console=console, transient=True)
        self.live = console.is_terminal
        self.task = self.bars.add_task(self.title, total=None, note="")
        self.last_line = time.monotonic()
        self.latest = ""
        self.log: Callable[[int], TrainingLog] = lambda done: NoLog()
        self.written: TrainingLog = NoLog()

    def __enter__(self) -> _Display:
        if self.live:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.written.close()
        if self.live:
            self.bars.stop()

    def start(self, done: int, epochs: int) -> None:
        self.written = self.log(done)
        if done:
            self.say(f"{self.title}: resuming after epoch {done} of {epochs}")

    def say(self, line: str) -> None:
        self.console.print(visible(line), soft_wrap=True, markup=False)

    def batch(self, progress: Progress) -> None:
        terms = " ".join(f"{name} {value:.3f}" for name, value in progress.terms.items())
        self.latest = f"{clock(progress.seconds_left)} left"
        speed = f"{progress.images_per_second:.0f} images/s"
        note = visible(f"{terms} accuracy {progress.accuracy:.1%} {speed} {self.latest}")
        place = f"{self.title} epoch {progress.epoch}/{progress.epochs}"
        if self.live:
            self.bars.update(self.task, description=place, completed=progress.batch, total=progress.batches, note=note)
        elif time.monotonic() - self.last_line > 30:
            self.last_line = time.monotonic()
            self.say(f"{place} batch {progress.batch}/{progress.batches} {note}")

    def epoch(self, row: dict[str, Any]) -> None:
        self.written.epoch(row)
        hidden = ("epoch", "learning_rate", "scale", "seconds", "frozen")
        values = " ".join(f"{name} {value:g}" for name, value in row.items() if name not in hidden)
        if not self.live and time.monotonic() - self.last_line < 5:
            return
        self.last_line = time.monotonic()
        note = f"{row['seconds']:.1f} s, {self.latest}"
        self.say(f"{self.title} epoch {row['epoch']}: {values} ({note})")
