"""Where batches are evaluated, on this machine or on a Ray cluster, and what they are made of on the way there.

A batch depends on its ensemble, its cell and its rows alone: its records are the same wherever it runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pandas as pd
import torch
from torch import Tensor

from benchmark.acceleration import accelerated
from benchmark.attacks import parse_attack
from benchmark.cells import Cell
from benchmark.evaluations import Subject, find_evaluation
from benchmark.models import prepared
from defenses.errors import BadInput
from defenses.members.diversity import log_mean_probability
from defenses.members.ensemble import Ensemble, predict_logits
from defenses.members.images import LabelledImages

if TYPE_CHECKING:
    from benchmark.display import RunDisplay


@dataclass(frozen=True, eq=False)
class Material:
    """What a subject is made of, wherever it is put together."""

    ensemble: Ensemble
    surrogate: Ensemble | None
    test: LabelledImages
    """The first test images, as many as any of its cells needs."""
    batch_size: int
    device: torch.device
    keep_images: bool
    acceleration: str
    """How the copy that is attacked is made: one of `benchmark.acceleration.MODES`."""
    spec: str = ""
    """The defense spec or checkpoint that the ensemble was loaded by."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows ``first`` to ``end`` of one cell."""

    material: Material
    cell: Cell
    first: int
    end: int


@dataclass(frozen=True)
class Failure:
    """Why a batch has no records; words, because not every exception travels between processes."""

    kind: str
    words: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        return cls(type(error).__name__, " ".join(str(error).split()))

    @property
    def refused(self) -> bool:
        """True when the request itself was at fault."""
        return self.kind == BadInput.__name__

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A batch and its records, or why there are none."""

    batch: Batch
    result: pd.DataFrame | Failure


class Executor(Protocol):
    """Evaluates batches: takes the next one when it has room for it, gives outcomes in any order."""

    def find_device(self, name: str) -> torch.device:
        """The device that batches run on: ``auto``, ``cpu`` or ``cuda``."""

    def run(self, batches: Iterable[Batch], display: RunDisplay) -> Generator[Outcome, None, None]:
        """One outcome for each batch."""


@contextmanager
def open_executor(name: str, address: str | None = None) -> Iterator[Executor]:
    """The executor of a name, ready to work; what it started is stopped afterwards."""
    if name == "ray":
        if importlib.util.find_spec("ray") is None:
            raise BadInput(
                "--executor ray needs Ray, which is an extra: in the checkout, "
                "pip install -c constraints.txt -e '.[ray]'"
            )
        from benchmark.executors.ray import connected

        with connected(address) as executor:
            yield executor
        return
    if name != "local":
        raise BadInput(f"unknown executor {name!r}; known: local, ray")
    if address is not None:
        raise BadInput(f"--ray-address {address} needs --executor ray")
    from benchmark.executors.local import Local

    yield Local()


@contextmanager
def subject_of(
    material: Material,
    logits: Tensor | None = None,
    say: Callable[[str], None] = lambda words: None,
    report: Callable[[str], None] = lambda words: None,
) -> Iterator[Subject]:
    """The ensemble on its device, prepared; the members' logits of clean images are computed here unless given."""
    device = material.device
    ensemble = material.ensemble.to(device)
    other = material.surrogate.to(device) if material.surrogate else None
    with prepared(ensemble), prepared(other or ensemble):
        images = material.test.images().to(device)
        probe = images[: material.batch_size]
        if logits is None:
            logits = predict_logits(ensemble, material.test, material.batch_size)
        yield Subject(
            ensemble=ensemble,
            fast=accelerated(ensemble, probe, material.acceleration, say),
            images=images,
            surrogate=accelerated(other, probe, material.acceleration, say) if other else None,
            labels=material.test.labels,
            logits=logits,
            outputs=log_mean_probability(logits),
            report=report,
            keep_images=material.keep_images,
        )


def evaluate(subject: Subject, cell: Cell, first: int, end: int, say: Callable[[str], None]) -> pd.DataFrame | Failure:
    """The records of rows ``first`` to ``end`` by the evaluation that the cell names."""
    try:
        batch = find_evaluation(cell.evaluation)
        single = cell.evaluation != "strong" and cell.attack != "none"
        attack = parse_attack(f"{cell.attack}@{cell.library}({cell.parameters})") if single else None
        return _halving(lambda first, end: batch(subject, cell, attack, first, end), first, end, say)
    except Exception as error:
        return Failure.of(error)


def _halving(one: Callable[[int, int], pd.DataFrame], first: int, end: int, say: Callable[[str], None]) -> pd.DataFrame:
    """Attack rows first to end; out of memory, in two halves."""
    try:
        return one(first, end)
    except (torch.OutOfMemoryError, MemoryError):
        if end - first < 2:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = (first + end) // 2
    say(f"out of memory with {end - first} images: going on with {middle - first}")
    return pd.concat([_halving(one, first, middle, say), _halving(one, middle, end, say)])
