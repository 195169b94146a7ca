"""This project's own checkpoints: safetensors with metadata that loading checks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from defenses.errors import BadInput
from defenses.files import write_bytes
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.networks import Shape

FILE_NAME = "ensemble.safetensors"
FORMAT = 1


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
    started_from: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    weights_sha256: str = ""
    written: str = ""
    """The day it was written."""
    recognised: str = ""
    """What a model from outside was taken for, in words; empty for what this project trained."""
    format: int = FORMAT


def versions() -> dict[str, str]:
    """Versions of what shapes a result."""
    import platform

    found = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        found["adp-benchmark"] = version("adp-benchmark")
    except PackageNotFoundError:  # run from a source tree that was not installed
        found["adp-benchmark"] = "unknown"
    return found


def save_checkpoint(path: Path, ensemble: Ensemble, provenance: Provenance) -> None:
    """Write weights and provenance atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in ensemble.state_dict().items()}
    found = {"weights_sha256": digest(tensors), "versions": versions(), "written": date.today().isoformat()}
    record = {**asdict(provenance), **found}
    write_bytes(path, save(tensors, metadata={"adp-benchmark": json.dumps(record)}))


def is_own(path: Path) -> bool:
    """True for a file that `save_checkpoint` wrote."""
    return path.suffix == ".safetensors" and path.is_file() and "adp-benchmark" in _metadata(path)


def _metadata(path: Path) -> dict[str, str]:
    if not path.is_file():  # a pipe would be waited for
        raise BadInput(f"{path} is not a file; give a checkpoint that `adp-bench train` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is truncated or not a safetensors file: {error}") from error


def read_provenance(path: Path) -> Provenance:
    """The metadata of one of this project's checkpoints, without its weights."""
    metadata = _metadata(path)
    if "adp-benchmark" not in metadata:
        raise BadInput(f"{path} has no adp-benchmark metadata; only checkpoints that `adp-bench train` wrote load here")
    try:
        record = json.loads(metadata["adp-benchmark"])
        if record.get("format") != FORMAT:
            raise BadInput(f"{path} has checkpoint format {record.get('format')}; this version reads format {FORMAT}")
        known = {f.name for f in fields(Provenance)}
        values = {k: v for k, v in record.items() if k in known}
        origin = Provenance(**{**values, "shape": tuple(values["shape"])})
        _check_kinds(origin)
        return origin
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} has metadata that cannot be read: {error}") from error


def _check_kinds(origin: Provenance) -> None:
    """Refuse metadata whose values are of another kind than they should be."""
    usual = Provenance("", "", "", 1, (0, 0, 0), 1)
    for name, value in asdict(usual).items():
        found = getattr(origin, name)
        if type(found) is not type(value):
            raise ValueError(f"{name} is {found!r}")
    told = {"test_accuracy": (int, float), "train_seconds": (int, float), "name": (str,)}
    for name, value in {**origin.scores, **origin.recipe}.items():
        if name in told and not isinstance(value, told[name]):
            raise ValueError(f"{name} is {value!r}")
    if not (origin.members >= 1 and origin.classes >= 1 and [type(size) for size in origin.shape] == [int] * 3):
        raise ValueError(f"{origin.members} members, {origin.classes} classes, images of shape {origin.shape}")


def load_own(path: Path) -> Ensemble:
    """The ensemble in a file that `save_checkpoint` wrote."""
    provenance = read_provenance(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if digest(tensors) != provenance.weights_sha256:
        raise BadInput(f"{path} is damaged: its weights do not match their checksum; copy or train it again")
    _check_members(tensors, provenance, path)
    with torch.device("meta"):  # takes no memory, however large the metadata say it is
        require_fit(_build(provenance), tensors, path)
    ensemble = _build(provenance)
    load_weights(ensemble, tensors, path)
    ensemble.provenance = provenance
    return ensemble


def _build(origin: Provenance) -> Ensemble:
    return build_ensemble(origin.network, origin.members, origin.shape, origin.classes, torch.zeros(origin.shape))


def _check_members(tensors: dict[str, Tensor], provenance: Provenance, path: Path) -> None:
    """Refuse weights that are not finite, or not of so many members, before anything is built."""
    members = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if len(members) != provenance.members:
        raise BadInput(f"{path} says it has {provenance.members} members, and has weights of {len(members)}")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BadInput(f"{path}: tensor {name!r} holds NaN or infinity; train it again")


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put tensors into a module; names and shapes must be the module's own."""
    require_fit(module, tensors, path)
    module.load_state_dict(tensors)


def require_fit(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Refuse tensors whose names or shapes are not the module's own."""
    wanted = module.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors or name not in wanted:
            verb = "lacks" if name in wanted else "has an unexpected"
            raise BadInput(f"{path} {verb} tensor {name!r}; it is not a checkpoint of this network")
        if wanted[name].shape != tensors[name].shape:
            found, need = tuple(tensors[name].shape), tuple(wanted[name].shape)
            raise BadInput(f"{path}: tensor {name!r} has shape {found}, this network needs {need}")


def digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
