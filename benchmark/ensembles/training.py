"""Training as a user asks for it: names are looked up, data is loaded, progress is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from benchmark import datasets
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import default_folder
from benchmark.machine.clock import clock
from benchmark.machine.devices import find_device, set_threads
from benchmark.machine.terminal import visible
from defenses.catalogue import parse_defense
from defenses.checkpoints import read_provenance
from defenses.errors import BadInput
from defenses.training.data import TrainingData
from defenses.training.distributed import joined, rank
from defenses.training.loop import train
from defenses.training.progress import Progress
from defenses.training.recipes import Recipe, find_recipe
from defenses.training.request import TrainingRequest


def train_ensemble(
    request: EnsembleRequest,
    changes: dict[str, Any] | None = None,
    out: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    start_from: Path | None = None,
) -> Path:
    """Train, or resume, or find finished: the path of the checkpoint; ``changes`` are settings of the recipe."""
    if not 0 <= request.seed < 2**31:
        raise BadInput(f"seed is {request.seed}; it must lie between 0 and {2**31 - 1}")
    named = parse_defense(request.defense)
    where = find_device(device)
    set_threads(threads, [request.about.threads])
    network, members, seed = request.canonical_network, request.members, request.seed
    chosen = find_recipe(request.recipe, request.about.look, **(changes or {}))
    data = training_data(request.dataset, chosen, seed)
    out = out or default_folder(named, request, chosen)
    console = Console(stderr=True, highlight=False, emoji=False)
    display = _Display(named.label, console)
    with joined(where) as where, display:
        asked = TrainingRequest(named, network, members, chosen, seed, start_from)
        path = train(asked, data, out, where, display.batch, display.epoch)
        if rank() > 0:
            return path
    scores = read_provenance(path).scores
    display.say(
        f"{named.label} on {request.dataset}: test accuracy {scores['test_accuracy']:.2%} "
        f"(members {', '.join(f'{value:.2%}' for value in scores['test_member_accuracy'])}), "
        f"median log diversity {scores['test_led_median']:.2f}, {path}"
    )
    return path


def training_data(dataset: str, recipe: Recipe, seed: int) -> TrainingData:
    """The splits the recipe asks for; images are held out of train, never out of test."""
    loaded = datasets.load(dataset)
    kept, held_out = loaded.train, None
    if recipe.validation:
        kept, held_out = loaded.holdout(recipe.validation, seed)
    return TrainingData(loaded.name, loaded.classes, kept, loaded.test, held_out, loaded.checksum)


class _Display:
    """A live line on a terminal; elsewhere one per epoch, at most one in five seconds, and one every half minute."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = visible(title), console
        place, note = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[note]"))
        columns = (place, BarColumn(bar_width=20), MofNCompleteColumn(), note)
        self.bars = Bars(*columns, console=console, transient=True)
        self.live = console.is_terminal
        self.task = self.bars.add_task(self.title, total=None, note="")
        self.last_line = time.monotonic()
        self.latest = ""

    def __enter__(self) -> _Display:
        if self.live:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.bars.stop()

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
        hidden = ("epoch", "learning_rate", "scale", "seconds", "frozen")
        values = " ".join(f"{name} {value:g}" for name, value in row.items() if name not in hidden)
        if not self.live and time.monotonic() - self.last_line < 5:
            return
        self.last_line = time.monotonic()
        note = f"{row['seconds']:.1f} s, {self.latest}"
        self.say(f"{self.title} epoch {row['epoch']}: {values} ({note})")
