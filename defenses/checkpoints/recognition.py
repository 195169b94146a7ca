"""The description of a model from outside, and one ensemble from several files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.members.networks import Shape

NORMALISES_ITSELF = "taken to normalise pixels in [0, 1] itself"


@dataclass(frozen=True)
class Recognised:
    """A model from outside with its description."""

    kind: str
    network: str
    ensemble: Ensemble
    normalisation: str
    code: str = ""
    """Identifies the code that computes the outputs from the weights: a network's name, or a digest of code."""
    dataset: str = ""
    shape: Shape | None = None
    classes: int | None = None


def join(spec: str, parts: list[Recognised]) -> Recognised:
    """Several files as one ensemble with a common normalisation."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        for name, one, other in (
            ("mean", first.ensemble.mean, part.ensemble.mean),
            ("std", first.ensemble.std, part.ensemble.std),
        ):
            if one.shape != other.shape or not torch.equal(one, other):
                raise BadInput(f"{spec}: the members normalise by different {name}; give files with equal values")
    return replace(
        first,
        kind=f"{len(parts)} files, {unique(part.kind for part in parts)}",
        network=unique(part.network for part in parts),
        ensemble=Ensemble(
            [member for part in parts for member in part.ensemble.members], first.ensemble.mean, first.ensemble.std
        ),
        code=" ".join(part.code for part in parts).strip(),
    )


def unique(words: Iterable[str]) -> str:
    """The different words, in their order, joined by "and"."""
    return " and ".join(dict.fromkeys(words))


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
