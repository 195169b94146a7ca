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

from benchmark.cells.cell import Cell
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, Subject
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.run.display import RunDisplay


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of one cell."""

    material: Material
    cell: Cell
    span: Span


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
        from benchmark.run.executors.ray import connected

        with connected(address) as executor:
            yield executor
        return
    if name != "local":
        raise BadInput(f"unknown executor {name!r}; known: local, ray")
    if address is not None:
        raise BadInput(f"--ray-address {address} needs --executor ray")
    from benchmark.run.executors.local import Local

    yield Local()


def evaluate(subject: Subject, cell: Cell, span: Span, say: Callable[[str], None]) -> pd.DataFrame | Failure:
    """The records of some rows by the cell's task."""
    try:
        return _halving(lambda part: cell.task.batch(subject, part, cell.conditions.seed), span, say)
    except Exception as error:
        return Failure.of(error)


def _halving(one: Callable[[Span], pd.DataFrame], span: Span, say: Callable[[str], None]) -> pd.DataFrame:
    """Attack some rows; out of memory, in two halves."""
    try:
        return one(span)
    except (torch.OutOfMemoryError, MemoryError):
        if span.size < 2:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = (span.first + span.end) // 2
    say(f"out of memory with {span.size} images: going on with {middle - span.first}")
    halves = (Span(span.first, middle), Span(middle, span.end))
    return pd.concat([_halving(one, half, say) for half in halves])
