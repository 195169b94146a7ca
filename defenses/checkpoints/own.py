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
from defenses.members import user_networks
from defenses.members.combination import USUAL, parse_combination
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.networks import Shape, find_network
from defenses.user_functions import is_in_file

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
    network_digest: str = ""
    """Of the user's file that its network is in."""
    started_from: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    weights_sha256: str = ""
    written: str = ""
    """The day it was written."""
    recognised: str = ""
    """What a model from outside was taken for, in words; empty for what this project trained."""
    combine: str = USUAL.text
    """How the members' outputs are combined."""
    format: int = FORMAT

    @property
    def identity(self) -> str:
        """What tells its predictions from those of others: the weights, and the rule that combines their outputs."""
        if self.combine == USUAL.text:
            return self.weights_sha256
        return hashlib.sha256(f"{self.weights_sha256} combine={self.combine}".encode()).hexdigest()


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
    found = {
        "weights_sha256": digest(tensors),
        "versions": versions(),
        "written": date.today().isoformat(),
        "combine": ensemble.combination.text,
    }
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
        raise BadInput(f"{path} has no adp-benchmark metadata; give a checkpoint that `adp-bench train` wrote")
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


def load_own(path: Path, network: str = "") -> Ensemble:
    """The ensemble in a file that `save_checkpoint` wrote.

    ``network`` is a network in a Python file that the user named. A checkpoint may need one, and says which; but a
    file that only a checkpoint names is never run.
    """
    provenance = read_provenance(path)
    built = _network_of(provenance, network, path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if digest(tensors) != provenance.weights_sha256:
        raise BadInput(f"{path} is damaged: its weights do not match their checksum; copy or train it again")
    _check_members(tensors, provenance, path)
    with torch.device("meta"):  # takes no memory, however large the metadata say it is
        require_fit(_build(provenance, built), tensors, path)
    ensemble = _build(provenance, built)
    load_weights(ensemble, tensors, path)
    ensemble.provenance = provenance
    return ensemble


def _build(origin: Provenance, network: str) -> Ensemble:
    mean = torch.zeros(origin.shape)
    return build_ensemble(network, origin.members, origin.shape, origin.classes, mean, combine=origin.combine)


def _network_of(origin: Provenance, named: str, path: Path) -> str:
    """What to build the members by: a name of ours, or the user's own file if it is the one they were trained with."""
    if not is_in_file(origin.network):
        return origin.network
    if not named:
        raise BadInput(
            f"{path} has members of {origin.network}, which is code in a file; such a file runs only if you "
            f"name it yourself: use --network, or {path}:{origin.network}"
        )
    found = find_network(named)
    if not user_networks.same(found.text, origin.network):
        raise BadInput(f"{path} has members of {origin.network}, not of {found.text}; give the matching network")
    if found.digest != origin.network_digest:
        raise BadInput(
            f"{path} was trained with another version of {found.text}; restore the file, or delete the checkpoint's "
            "folder to train it again"
        )
    return named


def _check_members(tensors: dict[str, Tensor], provenance: Provenance, path: Path) -> None:
    """Refuse weights that are not finite, or not of so many members, before anything is built."""
    members = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if len(members) != provenance.members:
        raise BadInput(f"{path} declares {provenance.members} members but contains the weights of {len(members)}")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BadInput(f"{path}: tensor {name!r} contains NaN or infinity; train it again")


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
