"""Executors evaluate batches, on this machine or on a Ray cluster.

A batch depends only on its ensemble, its cell and its rows, so its records are the same wherever it runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pandas as pd
import torch

from benchmark.cells.cell import Cell
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, Subject
from benchmark.machine.devices import accelerators
from benchmark.plan.costs import work
from defenses.errors import BadInput, place_of

if TYPE_CHECKING:
    from benchmark.run.display import RunDisplay

MOST_WORKERS = 1024


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of one cell."""

    material: Material
    cell: Cell
    span: Span


@dataclass(frozen=True)
class Failure:
    """The reason why a batch has no records; as text, because not every exception can be sent between processes."""

    kind: str
    words: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        place = place_of(error)
        return cls(type(error).__name__, " ".join(f"{error}{f' ({place})' if place else ''}".split()))

    @property
    def refused(self) -> bool:
        """True if the request was invalid (BadInput)."""
        return self.kind == BadInput.__name__

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A batch and its records, or its failure."""

    batch: Batch
    result: pd.DataFrame | Failure


class Executor(Protocol):
    """Evaluates batches: it takes the next batch when it has capacity, and yields outcomes in any order."""

    def train(self, missing: Sequence[EnsembleRequest], device: torch.device, display: RunDisplay) -> None:
        """Train missing ensembles in parallel if possible; the others are trained when needed."""

    def find_device(self, name: str) -> torch.device:
        """The device that batches run on: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, …"""

    def run(self, batches: Iterable[Batch], display: RunDisplay) -> Generator[Outcome, None, None]:
        """One outcome for each batch."""


TASK = 10_000
"""Cost of a task in gradients of one image: cheap batches of a cell form one task, an expensive batch is a task."""


def bundles(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Groups of consecutive batches of one cell, each with the cost of about one `TASK`."""
    bundle: list[Batch] = []
    for batch in batches:
        long = sum(map(_gradients, [*bundle, batch])) > TASK
        if bundle and (long or batch.cell is not bundle[0].cell):
            yield bundle
            bundle = []
        bundle.append(batch)
    if bundle:
        yield bundle


def _gradients(batch: Batch) -> float:
    return work(batch.cell) * batch.span.size / batch.cell.images.samples


@contextmanager
def open_executor(name: str, address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """The executor with this name; its processes are stopped afterwards.

    ``workers`` is the number of processes on this machine; None starts as many as fit, but only for a long run.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise BadInput(f"workers is {workers}; it must lie between 1 and {MOST_WORKERS}")
    if name == "ray":
        if workers is not None:
            raise BadInput("--workers needs --executor local; Ray chooses the number of workers itself")
        if importlib.util.find_spec("ray") is None:
            raise BadInput(
                "--executor ray needs Ray, which is not installed; in the checkout, run: "
                "pip install -c constraints.txt -e '.[ray]'"
            )
        from benchmark.run.executors.ray import connected

        with connected(address) as executor:
            yield executor
        return
    if name != "local":
        raise BadInput(f"unknown executor {name!r}; known: local, ray")
    if address is not None:
        raise BadInput(f"--ray-address {address} needs --executor ray")
    if workers == 1:
        from benchmark.run.executors.local import Local

        yield Local()
        return
    from benchmark.run.executors.workers import Workers

    with closing(Workers(workers)) as executor:
        yield executor


def evaluate(subject: Subject, cell: Cell, span: Span, say: Callable[[str], None]) -> pd.DataFrame | Failure:
    """The records of some rows by the cell's task, or its failure."""
    try:
        return _halving(lambda part: cell.task.batch(subject, part, cell.conditions.seed), span, say)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit from an attack or a model
        return Failure.of(error)


def _halving(one: Callable[[Span], pd.DataFrame], span: Span, say: Callable[[str], None]) -> pd.DataFrame:
    """Evaluate some rows; if memory runs out, in two halves."""
    try:
        return one(span)
    except (RuntimeError, MemoryError) as error:
        if span.size < 2 or not _out_of_memory(error):
            raise
    for device in accelerators()[:1]:
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()
    middle = (span.first + span.end) // 2
    say(f"out of memory with {span.size} images: trying {middle - span.first}")
    halves = (Span(span.first, middle), Span(middle, span.end))
    return pd.concat([_halving(one, half, say) for half in halves])


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "out of memory" in str(error)  # for MPS
