"""Ensembles on disk: safetensors with metadata that loading checks; published ``.pth`` files read-only."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from defenses.ensemble import Ensemble, build_ensemble
from defenses.errors import BadInput
from defenses.files import write_bytes
from defenses.networks import Shape, build_network

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
    record = {**asdict(provenance), "weights_sha256": digest(tensors), "versions": versions()}
    write_bytes(path, save(tensors, metadata={"adp-benchmark": json.dumps(record)}))


def load_checkpoint(path: str | Path, **expected: Any) -> Ensemble:
    """An ensemble in evaluation mode, with its origin in ``ensemble.provenance``.

    ``path`` is a ``.safetensors`` file of this project or the folder that holds one, or a ``.pth`` file of
    DVERGE's format. Keyword arguments name fields of `Provenance` that must have the given value.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}; give a .safetensors or .pth file, or a folder with {FILE_NAME}")
    ensemble = _load_own(path) if path.suffix == ".safetensors" else _load_dverge(path)
    for name, value in expected.items():
        found = getattr(ensemble.provenance, name)
        if found != value:
            raise BadInput(f"{path} has {name} {found!r}, not {value!r}; give a checkpoint that fits or train one")
    return ensemble.eval()


def read_provenance(path: Path) -> Provenance:
    """The metadata of one of this project's checkpoints, without its weights."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is truncated or not a safetensors file: {error}") from error
    if "adp-benchmark" not in metadata:
        raise BadInput(f"{path} has no adp-benchmark metadata; only checkpoints that `adp-bench train` wrote load here")
    try:
        record = json.loads(metadata["adp-benchmark"])
        if record.get("format") != FORMAT:
            raise BadInput(f"{path} has checkpoint format {record.get('format')}; this version reads format {FORMAT}")
        known = {f.name for f in fields(Provenance)}
        values = {k: v for k, v in record.items() if k in known}
        return Provenance(**{**values, "shape": tuple(values["shape"])})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} has metadata that cannot be read: {error}") from error


def _load_own(path: Path) -> Ensemble:
    provenance = read_provenance(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if digest(tensors) != provenance.weights_sha256:
        raise BadInput(f"{path} is damaged: its weights do not match their checksum; copy or train it again")
    mean = torch.zeros(provenance.shape)
    ensemble = build_ensemble(provenance.network, provenance.members, provenance.shape, provenance.classes, mean)
    _load_weights(ensemble, tensors, path)
    ensemble.provenance = provenance
    return ensemble


def _load_dverge(path: Path) -> Ensemble:
    """DVERGE's published ensembles: ``model0`` … with ``model.`` weights and a ``normalizer`` each."""
    try:
        stored = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises many kinds; all mean the same to the user
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path} does not load as plain weights (weights_only=True): {reason}") from error
    if not isinstance(stored, dict) or not all(f"model{k}" in stored for k in range(len(stored))) or not stored:
        raise BadInput(f"{path} is not in DVERGE's format (model0, model1, …); other .pth files are not recognised")
    states: list[dict[str, Tensor]] = [stored[f"model{k}"] for k in range(len(stored))]
    for name in ("normalizer.mean", "normalizer.std", "model.conv1.weight", "model.fc.weight"):
        if not all(isinstance(state, dict) and isinstance(state.get(name), Tensor) for state in states):
            raise BadInput(f"{path} is not in DVERGE's format: a member has no tensor {name!r}")
    means, stds = ([state[f"normalizer.{n}"] for state in states] for n in ("mean", "std"))
    if not all(torch.equal(value, values[0]) for values in (means, stds) for value in values):
        raise BadInput(f"{path}: members need a common normalizer.mean and normalizer.std")
    names = [_from_dverge_name(name) for name in states[0]]
    blocks = len({name.split(".")[2] for name in names if name.startswith("layers.0.")})
    depth, classes = 6 * blocks + 2, states[0]["model.fc.weight"].shape[0]
    shape = (states[0]["model.conv1.weight"].shape[1], 32, 32)
    members = [build_network(f"resnet-bn-shortcut(depth={depth})", shape, classes) for _ in states]
    ensemble = Ensemble(members, means[0][:, None, None], stds[0][:, None, None])
    for member, state in zip(ensemble.members, states, strict=True):
        weights = {_from_dverge_name(name): tensor for name, tensor in state.items() if name.startswith("model.")}
        _load_weights(member, weights, path)
    network = f"resnet-bn-shortcut(depth={depth})"
    ensemble.provenance = Provenance(
        str(path), f"cifar{classes}", network, len(states), shape, classes,
        weights_sha256=digest(ensemble.state_dict()),
    )  # fmt: skip
    return ensemble


def _from_dverge_name(name: str) -> str:
    name = name.removeprefix("model.").replace(".downsample.", ".shortcut.")
    return re.sub(r"^layer(\d+)\.", lambda match: f"layers.{int(match[1]) - 1}.", name)


def _load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    wanted = module.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors or name not in wanted:
            verb = "lacks" if name in wanted else "has an unexpected"
            raise BadInput(f"{path} {verb} tensor {name!r}; it is not a checkpoint of this network")
        if wanted[name].shape != tensors[name].shape:
            found, need = tuple(tensors[name].shape), tuple(wanted[name].shape)
            raise BadInput(f"{path}: tensor {name!r} has shape {found}, this network needs {need}")
    module.load_state_dict(tensors)


def digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
