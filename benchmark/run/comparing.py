"""What ``adp-bench compare`` adds to a run: names, training and speed of the two defenses, kept with the run."""

from __future__ import annotations

import json
import time

from benchmark import datasets
from benchmark.cells.store import Store
from benchmark.ensembles.finding import find_or_train
from benchmark.findings.results import COMPARED
from benchmark.harness.prepared import predict
from benchmark.machine.clock import clock
from benchmark.plan.run_request import Request
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.files import write_text


def canonical(spec: str) -> str:
    """What a cell has for its spec: a defense in its canonical form, or a checkpoint as it was named."""
    return spec if is_checkpoint(spec) else parse_defense(spec).text


def label_in(store: Store, spec: str) -> str:
    """The name that a defense asked for as ``spec`` has in the tables of a run."""
    return next(cell.ensemble.defense for cell in store.asked() if cell.ensemble.spec == canonical(spec))


def measure_costs(request: Request, specs: list[str], labels: list[str]) -> list[str]:
    """How each was trained, and the milliseconds it takes per image, measured here and now, best of three."""
    lines: list[str] = []
    say = lines.append  # nothing is left to train by now
    grid = request.preset.grids[0]
    images = datasets.load(grid.dataset).test.images(slice(0, 200)).to(request.device)
    for spec, label in zip(specs, labels, strict=True):
        trained = find_or_train(grid.ensemble(spec, request.seeds[0], request.trust), request.device.type, say)
        model = trained.ensemble.to(request.device).eval()
        times = []
        for _ in range(3):
            began = time.perf_counter()
            predict(model, images, 100)
            times.append(time.perf_counter() - began)
        seconds = trained.provenance.scores.get("train_seconds")
        spent = f"trained in {clock(seconds)}, " if seconds else ""
        lines.append(f"{label}: {trained.training}; {spent}{1000 * min(times) / len(images):.2f} ms per image here")
    return lines


def keep_record(store: Store, candidate: str, reference: str, costs: list[str]) -> None:
    """Remember what is compared; every report of the run then has the comparison."""
    record = {"candidate": candidate, "reference": reference, "costs": costs}
    write_text(store.folder / COMPARED, json.dumps(record, indent=1) + "\n")
