"""Trained models that others made: told apart by content, read without unpickling; each says what it was taken for."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from defenses import specs
from defenses.catalogue import import_file
from defenses.checkpoints import FILE_NAME, Provenance, digest, is_own, load_own, load_weights
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.members.networks import Shape, build_network, canonical_network
from defenses.objectives import Defense

EXAMPLE_RESNET18 = "pyautoattack:resnet18"
"""The CIFAR-10 network that pyautoattack installs with its examples; how robust it is, is for a run to say."""

_FILES = re.compile(r"(?P<files>.+?\.(?:safetensors|ckpt|pth|pt2?))(?::(?P<network>.+))?")
_FORMS = "file.pth, file.pt:NETWORK, a.pt,b.pt:NETWORK, file.py:function, or a folder with " + FILE_NAME
_NESTS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "model.", "net.", "_orig_mod.")
_NORMALISER = re.compile(r"(?:normali[sz]e(?:r)?\.)?(mean|std)")
_AS_THEY_ARE = "no normalisation: it gets pixels in [0, 1]"
_BY_ITSELF = "taken to normalise pixels in [0, 1] itself"


@dataclass(frozen=True)
class _Found:
    """A model and what it was recognised as."""

    kind: str
    network: str
    ensemble: Ensemble
    normalisation: str
    code: str = ""
    """What decides the outputs beside the weights: a network's name, or a digest of code."""
    dataset: str = ""
    shape: Shape | None = None
    classes: int | None = None


def is_checkpoint(spec: str) -> bool:
    """True when a spec names a trained model; any other names a defense, which has to train one first."""
    if spec == EXAMPLE_RESNET18 or (Path(spec) / FILE_NAME).is_file():
        return True
    return _target(spec) is not None if ".py:" in spec else _FILES.fullmatch(spec) is not None


def named_files(spec: str) -> tuple[list[Path], str | None]:
    """The files of ``a.pt,b.pt:network``, and the network; a path that is there is taken as it is."""
    match = _FILES.fullmatch(spec)
    if match is None or Path(spec).exists():
        return [Path(spec)], None
    names, network = match.group("files", "network")
    return [Path(names)] if Path(names).exists() else [Path(name.strip()) for name in names.split(",")], network


def load_outside(spec: str, shape: Shape | None = None, classes: int | None = None) -> Ensemble:
    """The ensemble a spec names, with its origin in ``provenance``; what a file does not say is taken as given."""
    if spec == EXAMPLE_RESNET18:
        found = _example_resnet18()
    elif ".py:" in spec:
        found = _from_function(spec)
    else:
        paths, network = named_files(spec)
        found = _join(spec, [_from_file(path, network, shape, classes) for path in paths])
    tensors = {name: value for name, value in found.ensemble.state_dict().items() if isinstance(value, Tensor)}
    weights = digest(tensors)
    found.ensemble.provenance = Provenance(
        defense=spec,
        dataset=found.dataset,
        network=found.network,
        members=len(found.ensemble),
        shape=found.shape or shape or (0, 0, 0),
        classes=found.classes or classes or 0,
        weights_sha256=_sha256(weights, found.code) if found.code else weights,
        recognised=f"{found.kind}, {len(found.ensemble)} × {found.network}, {found.normalisation}",
    )
    return found.ensemble


def _sha256(*texts: str) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


def _join(spec: str, parts: list[_Found]) -> _Found:
    """Several files as one ensemble: their members behind the normalisation they share."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        for name, one, other in (
            ("mean", first.ensemble.mean, part.ensemble.mean),
            ("std", first.ensemble.std, part.ensemble.std),
        ):
            if one.shape != other.shape or not torch.equal(one, other):
                raise BadInput(f"{spec}: the members normalise by different {name}; an ensemble needs a common one")
    return replace(
        first,
        kind=f"{len(parts)} files, {_unique(part.kind for part in parts)}",
        network=_unique(part.network for part in parts),
        ensemble=Ensemble(
            [member for part in parts for member in part.ensemble.members], first.ensemble.mean, first.ensemble.std
        ),
        code=" ".join(part.code for part in parts).strip(),
    )


def _unique(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _from_file(path: Path, network: str | None, shape: Shape | None, classes: int | None) -> _Found:
    if not path.is_file():
        raise BadInput(f"no checkpoint at {path}; write {_FORMS}")
    content = _content(path)
    if content == "weights":
        stored: Any = _read_safetensors(path) if _is_safetensors(path) else _read_torch(path)
        if not _is_dverge(stored):
            return _state_dict(path, stored, network, shape, classes)
    if network is not None:
        raise BadInput(f"{path} says itself what network it is; leave :{network} out")
    if content == "weights":
        return _dverge(path, stored)
    if content == "own":
        return _own(path)
    return _torchscript(path) if content == "TorchScript" else _exported(path)


def _content(path: Path) -> Literal["own", "weights", "TorchScript", "torch.export"]:
    """What is in a file, whatever its name ends in."""
    if _is_safetensors(path):
        return "own" if is_own(path) else "weights"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):  # torch before 1.6 wrote no archives; what is damaged is said by the reader
        return "weights"
    inside = [name.partition("/")[2] for name in names]
    if "archive_format" in inside or "serialized_exported_program.json" in names:
        return "torch.export"
    return "TorchScript" if any(name.startswith("code/") for name in inside) else "weights"


def _is_safetensors(path: Path) -> bool:
    with open(path, "rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is truncated or not a safetensors file: {error}") from error


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises many kinds; all mean the same to the user
        raise BadInput(
            f"{path} does not load as plain weights (weights_only=True): {_line(error).partition('. ')[0]}; "
            "save model.state_dict(), or return the model from file.py:function"
        ) from error


def _line(error: Exception) -> str:
    """The first line of an error, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def _own(path: Path) -> _Found:
    ensemble = load_own(path)
    origin = ensemble.provenance
    assert origin is not None
    normalisation = "normalised by the mean in the file"
    return _Found(
        "adp-benchmark", origin.network, ensemble, normalisation, "", origin.dataset, origin.shape, origin.classes
    )


def _is_dverge(stored: Any) -> bool:
    """A dictionary ``model0``, ``model1`` … of dictionaries."""
    return isinstance(stored, dict) and isinstance(stored.get("model0"), dict)


def _dverge(path: Path, stored: dict[str, dict[str, Tensor]]) -> _Found:
    """DVERGE's published ensembles: ``model0`` … with ``model.`` weights and a ``normalizer`` each."""
    if not all(f"model{k}" in stored for k in range(len(stored))):
        raise BadInput(f"{path} is not in DVERGE's format: its entries are {', '.join(map(str, stored))}")
    states = [stored[f"model{k}"] for k in range(len(stored))]
    for name in ("normalizer.mean", "normalizer.std", "model.conv1.weight", "model.fc.weight"):
        if not all(isinstance(state, dict) and isinstance(state.get(name), Tensor) for state in states):
            raise BadInput(f"{path} is not in DVERGE's format: a member has no tensor {name!r}")
    blocks = len({name.split(".")[2] for name in states[0] if name.startswith("model.layer1.")})
    network, classes = f"resnet-bn-shortcut(depth={6 * blocks + 2})", states[0]["model.fc.weight"].shape[0]
    shape = (states[0]["model.conv1.weight"].shape[1], 32, 32)
    parts = [_state_dict(path, state, network, shape, classes) for state in states]
    return replace(_join(str(path), parts), kind="DVERGE", code="", dataset=f"cifar{classes}")


def _state_dict(
    path: Path, stored: Any, asked: str | None, shape: Shape | None, classes: int | None, kind: str = "state dict"
) -> _Found:
    """Weights of a network that the spec names, with the normalisation of the file or of the spec."""
    for name in _NESTS:
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
    if not isinstance(stored, dict) or not any(isinstance(value, Tensor) for value in stored.values()):
        raise BadInput(f"{path} holds no weights that are recognised: neither a state dict nor DVERGE's model0, model1")
    if asked is None:
        raise BadInput(f"{path} is a plain state dict; name its network behind a colon, such as {path}:resnet20")
    if shape is None or classes is None:
        raise BadInput(f"{path} does not say what images it is for; load it with shape=(3, 32, 32), classes=10 or such")
    network, spec_mean, spec_std = _asked_network(asked)
    weights, mean, std = _split_normaliser(path, stored)
    normalisation = _normalisation(mean, std, "in the file")
    if spec_mean is not None or spec_std is not None:
        if mean is not None or std is not None:
            raise BadInput(f"{path} is {normalisation}; leave mean and std out of {asked!r}")
        mean, std = spec_mean, spec_std
        normalisation = _normalisation(mean, std, "of the spec")
    member = build_network(network, shape, classes)
    load_weights(member, weights, path)
    centre, scale = _per_channel(path, mean, 0.0, shape), _per_channel(path, std, 1.0, shape)
    if not (scale > 0).all():
        raise BadInput(f"{path}: std is {scale.flatten().tolist()}; images can only be divided by numbers above 0")
    ensemble = Ensemble([member], centre, scale)
    return _Found(kind, network, ensemble, normalisation, code=network, shape=shape, classes=classes)


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
        raise BadInput(f"{name} is {text!r}; write one number, or one for each channel: 0.49 0.48 0.45") from None


def _per_channel(path: Path, values: Tensor | None, usual: float, shape: Shape) -> Tensor:
    """A normalisation as it broadcasts over images: one number, one per channel, or one per pixel."""
    if values is None:
        return torch.tensor(usual)
    if values.numel() in (1, shape[0]):
        return values.float().reshape(-1, 1, 1)
    if values.numel() == math.prod(shape):
        return values.float().reshape(shape)
    raise BadInput(f"{path}: a mean or std of {values.numel()} numbers; images have {shape[0]} channels")


def _split_normaliser(path: Path, stored: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """Weights under this project's names, and the mean and std stored beside them."""
    values: dict[str, Tensor | None] = {"mean": None, "std": None}
    state = _without_prefixes({name: value for name, value in stored.items() if isinstance(value, Tensor)})
    for name in [name for name in state if _NORMALISER.fullmatch(name)]:
        values[name.rpartition(".")[2]] = state.pop(name)
    return {_our_name(name): value for name, value in _without_prefixes(state).items()}, values["mean"], values["std"]


def _without_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wrappers put before all of them."""
    for prefix in _PREFIXES * 2:  # in any order, such as module.model.
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _our_name(name: str) -> str:
    """``layer1.0.downsample.0`` and ``linear`` as others write them are ``layers.0.0.shortcut.0`` and ``fc`` here."""
    name = re.sub(r"^layer(\d+)\.", lambda match: f"layers.{int(match[1]) - 1}.", name)
    return re.sub(r"^linear\.", "fc.", name.replace(".downsample.", ".shortcut."))


def _torchscript(path: Path) -> _Found:
    try:
        module = torch.jit.load(path, map_location="cpu")
    except Exception as error:
        raise BadInput(f"{path} is a TorchScript program that does not load: {_line(error)}") from error
    name = str(getattr(module, "original_name", "network"))
    return _Found("TorchScript program", name, Ensemble([module]), _BY_ITSELF, code=_file_digest(path))


class ExportedNetwork(nn.Module):
    """A program of torch.export: a graph in the mode it was exported in, which nothing can change."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return self.graph(images)

    def train(self, mode: bool = True) -> ExportedNetwork:
        return self  # asking the graph itself is an error


def _exported(path: Path) -> _Found:
    try:
        with _no_pickles(path):
            module = torch.export.load(path).module()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{path} is a torch.export program that does not load: {_line(error)}") from error
    ensemble = Ensemble([ExportedNetwork(module)])
    return _Found("torch.export program", "exported graph", ensemble, _BY_ITSELF, code=_file_digest(path))


@contextmanager
def _no_pickles(path: Path) -> Iterator[None]:
    """torch.export.load unpickles some entries by itself: make it refuse whatever is more than tensors."""
    with zipfile.ZipFile(path) as archive:
        if any(Path(name).name.startswith("opaque_obj") for name in archive.namelist()):
            raise BadInput(f"{path} holds pickled Python objects, which are never loaded; export it without them")
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _target(spec: str) -> tuple[Path, str, Any] | None:
    """What ``file.py:name`` names, where that is a module or gives one, and not a defense."""
    location, _, rest = spec.partition(".py:")
    path, name = Path(location + ".py"), rest.partition("(")[0].strip()
    target = getattr(import_file(path), name, None) if path.is_file() else None
    if isinstance(target, type):
        return (path, name, target) if issubclass(target, nn.Module) else None
    return (path, name, target) if callable(target) and not isinstance(target, Defense) else None


def _from_function(spec: str) -> _Found:
    found = _target(spec)
    if found is None:
        raise BadInput(f"{spec} names nothing that gives a model; write file.py:function")
    path, name, target = found
    place = f"{name} in {path}"
    if spec.endswith(")"):
        raise BadInput(f"{place} is called without arguments; write {path}:{name}")
    try:
        built = target if isinstance(target, nn.Module) else _call(place, target)
        members = list(built) if isinstance(built, (list, tuple)) else [built]
        if not members or not all(isinstance(member, nn.Module) for member in members):
            kinds = _unique(type(member).__name__ for member in members) or "an empty list"
            raise BadInput(f"{place} gives {kinds}; it must give a torch module, a list of them or a defenses.Ensemble")
        ensemble = (built if isinstance(built, Ensemble) else Ensemble(members)).eval()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{place} failed: {type(error).__name__}: {_line(error)}") from error
    network = _unique(type(member).__name__ for member in ensemble.members)
    normalisation = "normalised as the ensemble does" if isinstance(built, Ensemble) else _BY_ITSELF
    return _Found(f"{name}() of {path.name}", network, ensemble, normalisation, code=_file_digest(path))


def _call(place: str, target: Any) -> Any:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise BadInput(f"{place} cannot be called without arguments ({error}); write a function that can") from error
    return target()


def _example_resnet18() -> _Found:
    try:
        listed = files("pyautoattack") or []
    except PackageNotFoundError:
        raise BadInput(f"{EXAMPLE_RESNET18} comes with pyautoattack, which is not installed") from None
    path = next((Path(str(entry.locate())) for entry in listed if entry.match("examples/model_test.pt")), None)
    if path is None or not path.is_file():
        raise BadInput(f"this version of pyautoattack has no examples/model_test.pt, so there is no {EXAMPLE_RESNET18}")
    found = _state_dict(path, _read_torch(path), "resnet18", (3, 32, 32), 10, kind="pyautoattack's example")
    return replace(found, dataset="cifar10")
