"""The metadata of this project's checkpoints: where an ensemble comes from. Reading it needs no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from defenses.errors import BadInput
from defenses.members.combination import USUAL, parse_combination
from defenses.members.networks import Shape

FILE_NAME = "ensemble.safetensors"
FORMAT = 1
METADATA = "adp-benchmark"
"""The key of the metadata in the file."""


@dataclass(frozen=True)
class Provenance:
    """Where an ensemble comes from; stored beside its weights."""

    defense: str
    dataset: str
    network: str
    members: int
    shape: Shape
    classes: int
    recipe: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0
    defense_digest: str = ""
    data_checksum: str = ""
    network_digest: str = ""
    """Digest of the user's file that defines the network."""
    started_from: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    weights_sha256: str = ""
    written: str = ""
    """The day it was written."""
    recognised: str = ""
    """Description of a model from outside; empty for an ensemble that this project trained."""
    combine: str = USUAL.text
    """How the members' outputs are combined."""
    format: int = FORMAT

    @property
    def identity(self) -> str:
        """Identifies the predictions: a digest of the weights and of the combination rule."""
        if self.combine == USUAL.text:
            return self.weights_sha256
        return hashlib.sha256(f"{self.weights_sha256} combine={self.combine}".encode()).hexdigest()


def is_own(path: Path) -> bool:
    """True for a file that `save_checkpoint` wrote."""
    return path.suffix == ".safetensors" and path.is_file() and METADATA in _metadata(path)


def _metadata(path: Path) -> dict[str, str]:
    if not path.is_file():  # opening a pipe would block
        raise BadInput(f"{path} is not a file; give a checkpoint that `adp-bench train` wrote")
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is truncated or not a safetensors file: {error}; copy the checkpoint again") from error


def read_provenance(path: Path) -> Provenance:
    """The metadata of one of this project's checkpoints, without its weights."""
    metadata = _metadata(path)
    if METADATA not in metadata:
        raise BadInput(f"{path} has no adp-benchmark metadata; give a checkpoint that `adp-bench train` wrote")
    try:
        record = json.loads(metadata[METADATA])
        if record.get("format") != FORMAT:
            raise BadInput(
                f"{path} has checkpoint format {record.get('format')}; this version reads format {FORMAT}: "
                "use the version of adp-bench that wrote it"
            )
        known = {f.name for f in fields(Provenance)}
        values = {k: v for k, v in record.items() if k in known}
        origin = Provenance(**{**values, "shape": tuple(values["shape"])})
        _check_kinds(origin)
        return origin
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} has metadata that cannot be read: {error}; copy or train it again") from error


def _check_kinds(origin: Provenance) -> None:
    """Raise ValueError for metadata with a value of a wrong type."""
    usual = Provenance("", "", "", 1, (0, 0, 0), 1)
    for name, value in asdict(usual).items():
        found = getattr(origin, name)
        if type(found) is not type(value):
            raise ValueError(f"{name} is {found!r}")
    told = {"name": (str,)} | dict.fromkeys(
        ("test_accuracy", "train_seconds", "train_accuracy", "train_accuracy_before"), (int, float)
    )
    for name, value in {**origin.scores, **origin.recipe}.items():
        if name in told and not isinstance(value, told[name]):
            raise ValueError(f"{name} is {value!r}")
    parse_combination(origin.combine)
    accuracies = origin.scores.get("test_member_accuracy", [])
    if not (isinstance(accuracies, list) and all(type(value) in (int, float) for value in accuracies)):
        raise ValueError(f"test_member_accuracy is {accuracies!r}")
    if not (origin.members >= 1 and origin.classes >= 1 and [type(size) for size in origin.shape] == [int] * 3):
        raise ValueError(f"{origin.members} members, {origin.classes} classes, images of shape {origin.shape}")
