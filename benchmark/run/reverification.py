"""Check saved adversarial images again, with the weights that they attacked; no attack is run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmark import datasets
from benchmark.cells.cell import Cell, rows_in
from benchmark.cells.store import Store
from benchmark.datasets.catalogue import Entry
from benchmark.ensembles.finding import Trained, load_outside
from benchmark.ensembles.folders import ENSEMBLES, references
from benchmark.harness.prepared import predict, prepared
from benchmark.harness.verification import outside
from defenses.catalogue import parse_defense
from defenses.checkpoints import FILE_NAME, is_checkpoint, load_checkpoint, read_provenance
from defenses.errors import BadInput, NotVerified
from defenses.members.ensemble import Ensemble


def check_kept(store: Store, cell: Cell, given: Sequence[Trained] = ()) -> tuple[int, list[str]]:
    """The number of saved images of a cell, and every difference from its records."""
    index, pixels = store.images(cell)
    records = store.read(cell).set_index("index")
    expected = records.index[records["attacked"] & ~records["correct"]]
    complaints = []
    if list(index) != list(expected):
        complaints.append(f"{len(index)} images are saved, but the records have {len(expected)} successful attacks")
    data = datasets.load_named(cell.images.dataset)
    if data.checksum != cell.images.checksum:
        return len(index), [f"{data.name} has changed: the run used other images"]
    test = data.test
    rows = torch.from_numpy(rows_in(cell.images.order, len(test))[index])
    clean, images = test.images()[rows], torch.from_numpy(pixels.copy())
    if not torch.isfinite(images).all() or (images.numel() and not (images.min() >= 0 and images.max() <= 1)):
        complaints.append("some images are outside [0, 1]")
    if cell.task.bound is not None and len(images):
        far = int(outside(clean, images, cell.task.bound).sum())
        if far:
            complaints.append(f"{far} images lie outside the bound {cell.task.bound}")
    ensemble = find_weights(cell, given)
    with prepared(ensemble):
        predicted = predict(ensemble, images, cell.conditions.batch_size) if len(images) else index
    right = int((predicted == test.labels[rows].numpy()).sum())
    if right:
        complaints.append(f"{right} of {len(images)} images no longer fool the ensemble")
    other = int((predicted != records.loc[index, "adversarial_prediction"].to_numpy()).sum())
    if other:
        complaints.append(f"{other} of {len(images)} predictions differ from the recorded ones")
    return len(images), complaints


def find_weights(cell: Cell, given: Sequence[Trained]) -> Ensemble:
    """The ensemble that a cell attacked, by its weights: among the given models, then among the checkpoints here.

    Files that the run folder names are never loaded: a manifest can name any file.
    """
    facts = cell.ensemble
    for trained in given:
        if trained.provenance.identity == facts.weights:
            return trained.ensemble
    return trained_with(facts.weights, facts.defense).ensemble


def model_of(spec: str, about: Entry, trust: bool, weights: str) -> Trained:
    """The model of a spec; for a defense spec, the trained ensemble here with these weights."""
    if is_checkpoint(spec):
        return load_outside(spec, about, trust)
    named = parse_defense(spec)
    trained = trained_with(weights, named.label)
    if trained.provenance.defense != named.text:
        raise NotVerified(
            f"the weights belong to {trained.provenance.defense}, not to {named.text}; give the right --model"
        )
    return trained


def trained_with(weights: str, name: str) -> Trained:
    """The ensemble here with these weights, by their sha256; ``name`` is used only in the message."""
    for root in (*references(), ENSEMBLES):
        for path in sorted(Path(root).rglob(FILE_NAME)):
            with contextlib.suppress(BadInput):  # skip damaged checkpoints
                provenance = read_provenance(path)
                if provenance.identity == weights:
                    return Trained(name, str(path), load_checkpoint(path), provenance)
    raise BadInput(f"no ensemble was found with the weights of {name}, {weights[:16]}…; give the model with --model")
