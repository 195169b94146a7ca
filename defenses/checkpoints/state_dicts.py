"""Weights from outside: state dicts of a network that the spec names, and DVERGE's published ensembles."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from defenses import specs
from defenses.checkpoints.own import load_weights
from defenses.checkpoints.recognition import Recognised, join
from defenses.errors import BadInput, first_line
from defenses.members.ensemble import Ensemble
from defenses.members.networks import Shape, build_network, canonical_network, find_network

_NESTS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "model.", "net.", "_orig_mod.")
_NORMALISER = re.compile(r"(?:normali[sz]e(?:r)?\.)?(mean|std)")
_AS_THEY_ARE = "no normalisation: it gets pixels in [0, 1]"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is truncated or not a safetensors file: {error}; copy the file again") from error


def read_torch(path: Path) -> Any:
    """The content of a ``torch.save`` file; BadInput if it contains more than weights."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises many kinds; all mean the same to the user
        raise BadInput(
            f"{path} does not load as plain weights (weights_only=True): {first_line(error).partition('. ')[0]}; "
            "save model.state_dict(), or return the model from file.py:function"
        ) from error


def is_dverge(stored: Any) -> bool:
    """True for a dictionary ``model0``, ``model1`` … of dictionaries."""
    return isinstance(stored, dict) and isinstance(stored.get("model0"), dict)


def from_dverge(path: Path, stored: dict[str, dict[str, Tensor]]) -> Recognised:
    """DVERGE's published ensembles: ``model0`` … with ``model.`` weights and a ``normalizer`` each."""
    if not all(f"model{k}" in stored for k in range(len(stored))):
        raise BadInput(
            f"{path} is not in DVERGE's format: its entries are {', '.join(map(str, stored))}; "
            "keep only model0, model1 and so on"
        )
    states = [stored[f"model{k}"] for k in range(len(stored))]
    for name in ("normalizer.mean", "normalizer.std", "model.conv1.weight", "model.fc.weight"):
        if not all(isinstance(state, dict) and isinstance(state.get(name), Tensor) for state in states):
            raise BadInput(
                f"{path} is not in DVERGE's format: a member has no tensor {name!r}; "
                "save each member's state_dict() to a file and write a.pt,b.pt:NETWORK"
            )
    blocks = len({name.split(".")[2] for name in states[0] if name.startswith("model.layer1.")})
    network, classes = f"resnet-bn-shortcut(depth={6 * blocks + 2})", states[0]["model.fc.weight"].shape[0]
    shape = (states[0]["model.conv1.weight"].shape[1], 32, 32)
    parts = [from_state_dict(path, state, network, shape, classes) for state in states]
    return replace(join(str(path), parts), kind="DVERGE", code="", dataset=f"cifar{classes}")


def from_state_dict(
    path: Path, stored: Any, asked: str | None, shape: Shape | None, classes: int | None, kind: str = "state dict"
) -> Recognised:
    """Weights of a network that the spec names, with the normalisation of the file or of the spec."""
    for name in _NESTS:
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
    if not isinstance(stored, dict) or not any(isinstance(value, Tensor) for value in stored.values()):
        raise BadInput(
            f"{path} contains no known weights, neither a state dict nor DVERGE's model0, model1; "
            "save model.state_dict()"
        )
    if asked is None:
        raise BadInput(f"{path} is a plain state dict; add its network after a colon, such as {path}:resnet20")
    if shape is None or classes is None:
        raise BadInput(
            f"{path} does not store the image shape; load it with, for example, shape=(3, 32, 32), classes=10"
        )
    network, spec_mean, spec_std = _asked_network(asked)
    weights, mean, std = _split_normaliser(path, stored)
    normalisation = _normalisation(mean, std, "in the file")
    if spec_mean is not None or spec_std is not None:
        if mean is not None or std is not None:
            raise BadInput(f"{path} is {normalisation}; omit mean and std from {asked!r}")
        mean, std = spec_mean, spec_std
        normalisation = _normalisation(mean, std, "of the spec")
    member = build_network(network, shape, classes)
    load_weights(member, weights, path)
    centre, scale = _per_channel(path, mean, 0.0, shape), _per_channel(path, std, 1.0, shape)
    if not (scale > 0).all():
        raise BadInput(f"{path}: std is {scale.flatten().tolist()}; every std must be above 0")
    ensemble = Ensemble([member], centre, scale)
    code = f"{network} {find_network(network).digest}".strip()
    return Recognised(kind, network, ensemble, normalisation, code=code, shape=shape, classes=classes)


def _normalisation(mean: Tensor | None, std: Tensor | None, where: str) -> str:
    given = [name for name, value in (("mean", mean), ("std", std)) if value is not None]
    return f"normalised by the {' and '.join(given)} {where}" if given else _AS_THEY_ARE


def _asked_network(text: str) -> tuple[str, Tensor | None, Tensor | None]:
    """``resnet20(mean=0.49 0.48 0.45,std=0.25)``: the network's canonical spec, and the normalisation beside it."""
    call = specs.parse(text, "network")
    mean, std = (_numbers(name, call.arguments[name]) if name in call.arguments else None for name in ("mean", "std"))
    others = ",".join(f"{key}={value}" for key, value in call.arguments.items() if key not in ("mean", "std"))
    return canonical_network(f"{call.name}({others})"), mean, std


def _numbers(name: str, text: str) -> Tensor:
    try:
        return torch.tensor([float(Fraction(word)) for word in text.split()])
    except (ValueError, ArithmeticError):
        raise BadInput(f"{name} is {text!r}; write one number, or one number per channel: 0.49 0.48 0.45") from None


def _per_channel(path: Path, values: Tensor | None, usual: float, shape: Shape) -> Tensor:
    """A mean or std in a shape that broadcasts over images: one number, one per channel, or one per pixel."""
    if values is None:
        return torch.tensor(usual)
    if values.numel() in (1, shape[0]):
        return values.float().reshape(-1, 1, 1)
    if values.numel() == math.prod(shape):
        return values.float().reshape(shape)
    raise BadInput(
        f"{path}: a mean or std of {values.numel()} numbers; images have {shape[0]} channels: "
        "give one number, or one per channel"
    )


def _split_normaliser(path: Path, stored: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """Weights under this project's names, and the mean and std stored beside them."""
    values: dict[str, Tensor | None] = {"mean": None, "std": None}
    state = _without_prefixes({name: value for name, value in stored.items() if isinstance(value, Tensor)})
    for name in [name for name in state if _NORMALISER.fullmatch(name)]:
        values[name.rpartition(".")[2]] = state.pop(name)
    return {_our_name(name): value for name, value in _without_prefixes(state).items()}, values["mean"], values["std"]


def _without_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, named without the prefixes that wrappers add to every name."""
    for prefix in _PREFIXES * 2:  # prefixes in any order, such as module.model.
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _our_name(name: str) -> str:
    """Our name of a tensor: ``fc`` for ``linear``, ``layers.0.0.shortcut.0`` for ``layer1.0.downsample.0``."""
    name = re.sub(r"^layer(\d+)\.", lambda match: f"layers.{int(match[1]) - 1}.", name)
    return re.sub(r"^linear\.", "fc.", name.replace(".downsample.", ".shortcut."))
