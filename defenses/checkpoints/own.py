"""This project's own checkpoints: safetensors with metadata that loading checks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from defenses.checkpoints.provenance import METADATA, Provenance, read_provenance
from defenses.errors import BadInput
from defenses.files import write_bytes
from defenses.members import user_networks
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.networks import find_network
from defenses.user_functions import is_in_file


def versions() -> dict[str, str]:
    """Versions of the software that a result depends on."""
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
    write_bytes(path, save(tensors, metadata={METADATA: json.dumps(record)}))


def load_own(path: Path, network: str = "") -> Ensemble:
    """The ensemble in a file that `save_checkpoint` wrote.

    ``network`` is a network in a Python file that the user named. A checkpoint records the network that it needs, but
    only a file that the user named is run.
    """
    provenance = read_provenance(path)
    built = _network_of(provenance, network, path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if digest(tensors) != provenance.weights_sha256:
        raise BadInput(f"{path} is damaged: its weights do not match their checksum; copy or train it again")
    _check_members(tensors, provenance, path)
    with torch.device("meta"):  # takes no memory, whatever size the metadata claim
        require_fit(_build(provenance, built), tensors, path)
    ensemble = _build(provenance, built)
    load_weights(ensemble, tensors, path)
    ensemble.provenance = provenance
    return ensemble


def _build(origin: Provenance, network: str) -> Ensemble:
    mean = torch.zeros(origin.shape)
    return build_ensemble(network, origin.members, origin.shape, origin.classes, mean, combine=origin.combine)


def _network_of(origin: Provenance, named: str, path: Path) -> str:
    """The network of the members: a registered one, or the user's file if the members were trained with it."""
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
    """Raise BadInput for weights that are not finite or of another number of members, before anything is built."""
    members = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if len(members) != provenance.members:
        raise BadInput(
            f"{path} declares {provenance.members} members but contains the weights of {len(members)}; "
            "copy or train it again"
        )
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BadInput(f"{path}: tensor {name!r} contains NaN or infinity; train it again")


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load tensors into a module; their names and shapes must match."""
    require_fit(module, tensors, path)
    module.load_state_dict(tensors)


def require_fit(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise BadInput for tensors whose names or shapes do not match the module's."""
    wanted = module.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors or name not in wanted:
            verb = "lacks" if name in wanted else "has an unexpected"
            raise BadInput(
                f"{path} {verb} tensor {name!r}, so it does not fit this network; name the network of the weights"
            )
        if wanted[name].shape != tensors[name].shape:
            found, need = tuple(tensors[name].shape), tuple(wanted[name].shape)
            raise BadInput(
                f"{path}: tensor {name!r} has shape {found}, this network needs {need}; "
                "check the network, the image shape and the number of classes"
            )


def digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
