"""The record that ``adp-bench compare`` adds to a run: names, training and speed of the defenses."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from benchmark.cells.store import Store
from benchmark.findings.results import COMPARED
from benchmark.harness.prepared import predict
from benchmark.machine.clock import clock
from benchmark.plan.labels import canonical
from benchmark.plan.planning import Work
from benchmark.plan.run_request import Request
from defenses.files import write_text


def keep_compared(store: Store, request: Request, work: Sequence[Work], specs: Sequence[str]) -> None:
    """Store which defenses of a run are compared, the candidate first, and their costs."""
    parts = [next(part for part in work if part.trained.spec == canonical(spec)) for spec in specs]
    candidate, *references = (part.trained.label for part in parts)
    keep_record(store, candidate, references, [_cost(part, request) for part in parts])


def keep_record(store: Store, candidate: str, references: Sequence[str], costs: Sequence[str]) -> None:
    """Store the comparison with the run, so that every report of the run shows it."""
    record = {"candidate": candidate, "references": [*references], "costs": [*costs]}
    write_text(store.folder / COMPARED, json.dumps(record, indent=1) + "\n")


def _cost(part: Work, request: Request) -> str:
    """How an ensemble was trained, and its milliseconds per image on this machine, the best of three."""
    trained = part.trained
    images = part.data.test.images(slice(0, 200)).to(request.device)
    model = trained.ensemble.to(request.device).eval()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        predict(model, images, 100)
        times.append(time.perf_counter() - began)
    seconds = trained.provenance.scores.get("train_seconds")
    spent = f"trained in {clock(seconds)}, " if seconds else ""
    return f"{trained.label}: {trained.training}; {spent}{1000 * min(times) / len(images):.2f} ms per image here"
