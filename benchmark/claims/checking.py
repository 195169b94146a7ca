"""Check a certificate: no attack is run, and nothing in the file is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmark.attacks.bounds import Bound, read_bound
from benchmark.claims.certificate import Pixels, distances, read_certificate
from benchmark.claims.claim import Claim, read_claim
from benchmark.findings.statistics import accuracy_interval
from benchmark.harness.prepared import predict, prepared
from benchmark.harness.verification import ROUNDING, TOLERANCE
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.datasets import Dataset
    from benchmark.ensembles.finding import Trained


@dataclass(frozen=True)
class Checked:
    """The result of a certificate, computed again, and all errors that were found in it."""

    complaints: tuple[str, ...]
    images: int
    """Number of test images that the certificate covers."""
    left: int
    """Number of these images that the model classifies correctly and that have no adversarial image."""
    sentence: str


def check(path: Path, trained: Trained, data: Dataset, batch_size: int = 200) -> Checked:
    """Check a certificate against a model and the data: box and bound in float64, labels, predictions, counts."""
    test, labels = data.test.images().numpy(), data.test.labels.numpy()
    found = read_certificate(path, test)
    stated, index, images = found.statement, found.index, found.images
    complaints = []
    if stated.data != data.checksum:
        raise BadInput(
            f"{path} was made with other data than {data.name}: the checksums differ; "
            "run adp-bench verify --dataset with its data"
        )
    if stated.weights != trained.provenance.identity:
        complaints.append("the weights of the model differ from the certificate")
    if max(stated.tried, default=0) >= len(data.test):
        raise BadInput(
            f"{path} refers to images that {data.name} does not have; run adp-bench verify --dataset with its data"
        )
    bound = read_bound(stated.bound)
    claim = read_claim(stated.claim)
    if claim.bound != bound:
        complaints.append(f"the bound {bound} differs from the claim {stated.claim}")
    if claim.accuracy != stated.claimed:
        complaints.append(f"the accuracy {100 * stated.claimed:.4g} % differs from the claim {stated.claim}")
    if (found.labels != labels[index]).any():
        complaints.append("a label differs from the data")
    if not np.isfinite(images).all() or (images.size and (images.min() < 0 or images.max() > 1)):
        complaints.append("an image lies outside [0, 1]")
    far = int((distances(test[index], images, bound) > _allowed(bound, test[0])).sum())
    if far:
        complaints.append(f"{far} of {len(images)} images lie outside {bound}")
    if not set(index.tolist()) <= set(stated.tried):
        complaints.append("an image is not in the list of attacked images")
    rows = np.array(stated.tried, dtype=np.int64)
    with prepared(trained.ensemble):
        clean = predict(trained.ensemble, torch.from_numpy(test[rows]), batch_size) if len(rows) else rows
        fooled = predict(trained.ensemble, torch.from_numpy(images), batch_size) if len(images) else index
    right = int((fooled == labels[index]).sum())
    if right:
        complaints.append(f"{right} of {len(images)} images do not fool this model")
    wrong = {int(row) for row in rows[clean != labels[rows]]}
    if wrong != set(stated.misclassified):
        complaints.append("the misclassified clean images differ from the certificate")
    broken = {int(row) for row in index[fooled != labels[index]]} | wrong
    left = len(rows) - len(broken & set(stated.tried))
    return Checked(tuple(complaints), len(rows), left, _sentence(left, len(rows), bound, claim))


def _allowed(bound: Bound, image: Pixels) -> float:
    """The radius plus the rounding error of float32, as for every adversarial image of a run."""
    if bound.norm == "l0":
        return bound.radius
    if bound.norm == "linf":
        return bound.radius + TOLERANCE
    rounding = ROUNDING * (image.size**0.5 if bound.norm == "l2" else image.size)
    return bound.radius * (1 + TOLERANCE) + rounding


def _sentence(left: int, images: int, bound: Bound, claim: Claim) -> str:
    low, high = accuracy_interval(left, images)
    share = f"{100 * left / max(images, 1):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    judged = "refutes" if high < claim.least else "does not refute"
    return f"at most {share} of {images} images are left within {bound}; this {judged} the claim: {claim.words}"
