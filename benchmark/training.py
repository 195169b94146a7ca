"""Training as a user asks for it: names are looked up, data is loaded, progress is shown."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from benchmark import datasets
from benchmark.devices import find_device, set_threads
from defenses.catalogue import NamedDefense, parse_defense
from defenses.checkpoints import read_provenance
from defenses.errors import BadInput
from defenses.members.networks import canonical_network
from defenses.training.data import TrainingData
from defenses.training.distributed import joined, rank
from defenses.training.loop import train
from defenses.training.progress import Progress
from defenses.training.recipes import Recipe, find_recipe
from defenses.training.request import TrainingRequest

ENSEMBLES = Path("results/ensembles")
CHANGED = "changed"
"""Marks the folder of an ensemble whose recipe had settings changed."""


def train_ensemble(
    defense: str,
    dataset: str,
    network: str | None = None,
    members: int = 3,
    recipe: str = "fast",
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    start_from: Path | None = None,
) -> Path:
    """Train, or resume, or find finished: the path of the checkpoint."""
    if not 0 <= seed < 2**31:
        raise BadInput(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    named = parse_defense(defense)
    where = find_device(device)
    set_threads(threads, [dataset])
    network = canonical_network(network or default_network(dataset))
    chosen = find_recipe(recipe, dataset, **(changes or {}))
    request = TrainingRequest(named, network, members, chosen, seed, start_from)
    data = training_data(dataset, chosen, seed)
    out = out or default_folder(named, dataset, network, members, chosen, seed)
    console = Console(stderr=True, highlight=False)
    with joined(where) as where, _Display(named.label, console) as display:
        path = train(request, data, out, where, display.batch, display.epoch)
        if rank() > 0:
            return path
    scores = read_provenance(path).scores
    console.print(
        f"{named.label} on {dataset}: test accuracy {scores['test_accuracy']:.2%} "
        f"(members {', '.join(f'{value:.2%}' for value in scores['test_member_accuracy'])}), "
        f"median log diversity {scores['test_led_median']:.2f}, {path}",
        soft_wrap=True,
    )
    return path


def training_data(dataset: str, recipe: Recipe, seed: int) -> TrainingData:
    """The splits the recipe asks for; images are held out of train, never out of test."""
    loaded = datasets.load(dataset)
    kept, held_out = loaded.train, None
    if recipe.validation:
        kept, held_out = loaded.holdout(recipe.validation, seed)
    return TrainingData(loaded.name, loaded.classes, kept, loaded.test, held_out, loaded.checksum)


def default_network(dataset: str) -> str:
    """The paper's network, or the small one for 8×8 digits."""
    return "mini-resnet" if dataset == "digits" else "resnet20"


def default_folder(named: NamedDefense, dataset: str, network: str, members: int, recipe: Recipe, seed: int) -> Path:
    """Where an ensemble goes when no folder is named."""
    words = [named.label, network, f"k{members}", recipe.name, f"seed{seed}"]
    if recipe != find_recipe(recipe.name, dataset):  # not to be taken for the recipe as it is
        words.append(f"{CHANGED}-{hashlib.sha256(json.dumps(recipe.as_dict()).encode()).hexdigest()[:6]}")
    return ENSEMBLES / dataset / re.sub(r"[^\w.+=,()-]", "_", "-".join(words))


class _Display:
    """A live line on a terminal; elsewhere one per epoch, at most one in five seconds, and one every half minute."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = title, console
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
        self.bars = Bars(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True)
        self.live = console.is_terminal
        self.task = self.bars.add_task(title, total=None, note="")
        self.last_line = time.monotonic()
        self.latest = ""

    def __enter__(self) -> _Display:
        if self.live:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.bars.stop()

    def batch(self, progress: Progress) -> None:
        terms = " ".join(f"{name} {value:.3f}" for name, value in progress.terms.items())
        self.latest = f"{clock(progress.seconds_left)} left"
        note = f"{terms} accuracy {progress.accuracy:.1%} {progress.images_per_second:.0f} images/s {self.latest}"
        place = f"{self.title} epoch {progress.epoch}/{progress.epochs}"
        if self.live:
            self.bars.update(self.task, description=place, completed=progress.batch, total=progress.batches, note=note)
        elif time.monotonic() - self.last_line > 30:
            self.last_line = time.monotonic()
            self.console.print(f"{place} batch {progress.batch}/{progress.batches} {note}", soft_wrap=True)

    def epoch(self, row: dict[str, Any]) -> None:
        hidden = ("epoch", "learning_rate", "scale", "seconds", "frozen")
        values = " ".join(f"{name} {value:g}" for name, value in row.items() if name not in hidden)
        if not self.live and time.monotonic() - self.last_line < 5:
            return
        self.last_line = time.monotonic()
        note = f"{row['seconds']:.1f} s, {self.latest}"
        self.console.print(f"{self.title} epoch {row['epoch']}: {values} ({note})", soft_wrap=True)


def clock(seconds: float) -> str:
    """Seconds as a reader says them: 45 s, 3 min, 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
