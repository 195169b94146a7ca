"""Trained models from outside this project: recognised by content, and read without unpickling."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from defenses.checkpoints.functions import from_function
from defenses.checkpoints.names import EXAMPLE_RESNET18, FORMS, named_files, split_network
from defenses.checkpoints.own import digest, load_own
from defenses.checkpoints.programs import from_exported, from_torchscript
from defenses.checkpoints.provenance import Provenance, is_own
from defenses.checkpoints.recognition import Recognised, join
from defenses.checkpoints.state_dicts import from_dverge, from_state_dict, is_dverge, read_safetensors, read_torch
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.members.networks import Shape


def load_foreign(spec: str, shape: Shape | None = None, classes: int | None = None, trust: bool = False) -> Ensemble:
    """The ensemble of a spec, with its origin in ``provenance``.

    ``shape`` and ``classes`` are used if the file does not store them.
    """
    if spec == EXAMPLE_RESNET18:
        found = _example_resnet18()
    elif ".py:" in spec and not split_network(spec)[1]:
        found = from_function(spec)
    else:
        paths, network = named_files(spec)
        found = join(spec, [_from_file(path, network, shape, classes, trust) for path in paths])
    tensors = {name: value for name, value in found.ensemble.state_dict().items() if isinstance(value, Tensor)}
    weights = digest(tensors)
    found.ensemble.provenance = Provenance(
        defense=spec,
        dataset=found.dataset,
        network=found.network,
        members=len(found.ensemble),
        shape=found.shape or shape or (0, 0, 0),
        classes=found.classes or classes or 0,
        combine=found.ensemble.combination.text,
        weights_sha256=_sha256(weights, found.code) if found.code else weights,
        recognised=f"{found.kind}, {len(found.ensemble)} × {found.network}, {found.normalisation}",
    )
    return found.ensemble


def _sha256(*texts: str) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


def _from_file(path: Path, network: str | None, shape: Shape | None, classes: int | None, trust: bool) -> Recognised:
    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}; write {FORMS}")
    content = _content(path)
    if content == "weights":
        stored: Any = read_safetensors(path) if _is_safetensors(path) else read_torch(path)
        if not is_dverge(stored):
            return from_state_dict(path, stored, network, shape, classes)
    if network is not None:
        raise BadInput(f"{path} already defines its network; omit :{network}")
    if content == "weights":
        return from_dverge(path, stored)
    if content == "own":
        return _own(path)
    if not trust:
        raise BadInput(
            f"{path} is a {content} program, which can run code when loaded; if you trust its author, add "
            "--trust (in Python, trust=True), or save a state dict instead"
        )
    return from_torchscript(path) if content == "TorchScript" else from_exported(path)


def _content(path: Path) -> Literal["own", "weights", "TorchScript", "torch.export"]:
    """The kind of a file's content; the file extension alone does not decide."""
    if _is_safetensors(path):
        return "own" if is_own(path) else "weights"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):  # torch before 1.6 wrote no archives; the reader reports damage
        return "weights"
    inside = [name.partition("/")[2] for name in names]
    if "archive_format" in inside or "serialized_exported_program.json" in names:
        return "torch.export"
    return "TorchScript" if any(name.startswith("code/") for name in inside) else "weights"


def _is_safetensors(path: Path) -> bool:
    with open(path, "rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def _own(path: Path) -> Recognised:
    ensemble = load_own(path)
    origin = ensemble.provenance
    assert origin is not None
    normalisation = "normalised by the mean in the file"
    return Recognised(
        "adp-benchmark", origin.network, ensemble, normalisation, "", origin.dataset, origin.shape, origin.classes
    )


def _example_resnet18() -> Recognised:
    try:
        listed = files("pyautoattack") or []
    except PackageNotFoundError:
        raise BadInput(f"{EXAMPLE_RESNET18} needs pyautoattack, which is not installed; install it with pip") from None
    path = next((Path(str(entry.locate())) for entry in listed if entry.match("examples/model_test.pt")), None)
    if path is None or not path.is_file():
        raise BadInput(
            f"{EXAMPLE_RESNET18} needs examples/model_test.pt, which this version of pyautoattack lacks; "
            "install another version"
        )
    found = from_state_dict(path, read_torch(path), "resnet18", (3, 32, 32), 10, kind="pyautoattack's example")
    return replace(found, dataset="cifar10")
