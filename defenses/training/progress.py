"""The progress of a training run: sums over an epoch, and a report after each batch with the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from defenses.members.diversity import log_mean_probability
from defenses.objectives import Result, cross_entropy
from defenses.training.distributed import rank, summed, world_size


@dataclass(frozen=True)
class Progress:
    """The progress of a run after a batch."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    terms: dict[str, float]
    accuracy: float
    images_per_second: float
    seconds_left: float


@dataclass
class Totals:
    """Running sums of one epoch."""

    images: int = 0
    correct: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    member_loss: Tensor | float = 0.0

    def add(self, result: Result) -> None:
        """Count the images of one step."""
        logits = result.logits.detach()
        count = len(result.labels)
        self.images += count
        self.correct += int((log_mean_probability(logits).argmax(-1) == result.labels).sum())
        for name, values in result.terms.items():
            mean = values.detach().mean().item() if count else 0.0
            self.terms[name] = self.terms.get(name, 0.0) + mean * count
        self.member_loss = self.member_loss + cross_entropy(logits, result.labels).sum(-1).cpu()

    def of_all_processes(self) -> Totals:
        """The sums over all processes; each process has the sums of its share."""
        if world_size() == 1:
            return self
        loss = torch.as_tensor(self.member_loss).tolist()
        sums = summed(torch.tensor([self.images, self.correct, *self.terms.values(), *loss], dtype=torch.float64))
        terms = dict(zip(self.terms, sums[2:].tolist(), strict=False))
        return Totals(int(sums[0]), int(sums[1]), terms, sums[2 + len(terms) :])

    def means(self) -> dict[str, float]:
        """Each loss term, per image."""
        return {name: value / self.images for name, value in self.terms.items()}

    def accuracy(self) -> float:
        """Share of the images that the ensemble classified correctly while it was trained on them."""
        return self.correct / self.images

    def member_losses(self) -> list[float]:
        """Cross-entropy of each trained member, per image."""
        return [float(value) / self.images for value in torch.as_tensor(self.member_loss)]


class Reporter:
    """Reports progress after each batch; the time left follows from the relative costs of the epochs."""

    def __init__(
        self, costs: Sequence[float], batches: int, batch_size: int, on_progress: Callable[[Progress], None]
    ) -> None:
        self.costs, self.batches, self.batch_size, self.on_progress = costs, batches, batch_size, on_progress
        self.epoch, self.began = 0, 0.0
        # of the epochs that this process has completed; a resumed run starts at 0 again
        self.seconds = self.done = 0.0

    def begin(self, epoch: int) -> None:
        """Begin an epoch, counted from 0."""
        self.epoch, self.began = epoch, time.perf_counter()

    def batch(self, batch: int, totals: Totals) -> None:
        """Report a completed batch, counted from 1; only the first process reports."""
        if rank() > 0:
            return
        elapsed = time.perf_counter() - self.began
        share = self.costs[self.epoch] * batch / self.batches
        left = sum(self.costs[self.epoch :]) - share
        self.on_progress(
            Progress(
                epoch=self.epoch + 1,
                epochs=len(self.costs),
                batch=batch,
                batches=self.batches,
                terms=totals.means(),
                accuracy=totals.accuracy(),
                images_per_second=batch * self.batch_size / elapsed,
                seconds_left=(self.seconds + elapsed) / (self.done + share) * left,
            )
        )

    def end(self) -> float:
        """End the epoch and return its seconds."""
        elapsed = time.perf_counter() - self.began
        self.seconds += elapsed
        self.done += self.costs[self.epoch]
        return elapsed
