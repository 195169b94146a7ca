"""Evaluate batches one after the other, in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import torch

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.harness.subject import subject_of
from benchmark.machine import devices
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Batch, Outcome, evaluate


@dataclass(frozen=True)
class Local:
    """The executor that uses only this process."""

    def find_device(self, name: str) -> torch.device:
        """The named device of this machine."""
        return devices.find_device(name)

    def train(self, missing: Sequence[EnsembleRequest], device: torch.device, display: RunDisplay) -> None:
        """Do nothing: each ensemble is trained when it is needed."""

    def run(self, batches: Iterable[Batch], display: RunDisplay) -> Generator[Outcome, None, None]:
        """Outcomes in the order of the batches; each outcome is yielded before the next batch is taken."""
        for _, group in groupby(batches, key=lambda batch: id(batch.material)):
            first = next(group)
            with subject_of(first.material, say=display.say, report=display.report) as subject:
                for batch in chain([first], group):
                    yield Outcome(batch, evaluate(subject, batch.cell, batch.span, display.say))
