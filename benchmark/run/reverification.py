"""Adversarial images that were kept, judged again: by their own weights, from the file alone."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmark import datasets
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.ensembles.finding import load_outside
from benchmark.ensembles.folders import ENSEMBLES, references
from benchmark.harness.prepared import predict, prepared
from benchmark.harness.verification import outside
from defenses.checkpoints import FILE_NAME, is_checkpoint, load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble


def check_kept(store: Store, cell: Cell) -> tuple[int, list[str]]:
    """How many images a cell kept, and everything that is not as its records say."""
    index, pixels = store.images(cell)
    records = store.read(cell).set_index("index")
    expected = records.index[records["attacked"] & ~records["correct"]]
    complaints = []
    if list(index) != list(expected):
        complaints.append(f"{len(index)} images are kept where the records have {len(expected)} successes")
    test = datasets.load(cell.images.dataset).test
    rows = torch.from_numpy(index.copy())
    clean, images = test.images()[rows], torch.from_numpy(pixels.copy())
    if not torch.isfinite(images).all() or (images.numel() and not (images.min() >= 0 and images.max() <= 1)):
        complaints.append("some images are outside [0, 1]")
    if cell.task.bound is not None and len(images):
        far = int(outside(clean, images, cell.task.bound).sum())
        if far:
            complaints.append(f"{far} images lie outside the bound {cell.task.bound}")
    ensemble = find_weights(cell)
    with prepared(ensemble):
        predicted = predict(ensemble, images, cell.conditions.batch_size) if len(images) else index
    right = int((predicted == test.labels[rows].numpy()).sum())
    if right:
        complaints.append(f"{right} of {len(images)} images no longer fool the ensemble")
    other = int((predicted != records.loc[index, "adversarial_prediction"].to_numpy()).sum())
    if other:
        complaints.append(f"{other} of {len(images)} predictions differ from the recorded ones")
    return len(images), complaints


def find_weights(cell: Cell) -> Ensemble:
    """The very ensemble a cell attacked: named by its spec, or found by its weights among those that are here."""
    if is_checkpoint(cell.ensemble.spec):
        trained = load_outside(cell.ensemble.spec, cell.images.dataset)
        if trained.provenance.weights_sha256 == cell.ensemble.weights:
            return trained.ensemble
    for root in (*references(), ENSEMBLES):
        for path in sorted(Path(root).rglob(FILE_NAME)):
            if read_provenance(path).weights_sha256 == cell.ensemble.weights:
                return load_checkpoint(path)
    raise BadInput(
        f"the ensemble {cell.ensemble.defense} with weights {cell.ensemble.weights[:16]}… is not here any more"
    )
