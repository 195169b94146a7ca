"""Models from a function in a user's file: ``file.py:function``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch import nn

from defenses.catalogue import import_file
from defenses.checkpoints.recognition import NORMALISES_ITSELF, Recognised, file_digest, unique
from defenses.errors import BadInput, first_line
from defenses.members.ensemble import Ensemble
from defenses.objectives import Defense


def find_model(spec: str) -> tuple[Path, str, Any] | None:
    """The file, name and object of ``file.py:name``; None if the object is a defense, or no module or function."""
    location, _, rest = spec.partition(".py:")
    path, name = Path(location + ".py"), rest.partition("(")[0].strip()
    target = getattr(import_file(path), name, None) if path.is_file() else None
    if isinstance(target, type):
        return (path, name, target) if issubclass(target, nn.Module) else None
    return (path, name, target) if callable(target) and not isinstance(target, Defense) else None


def from_function(spec: str) -> Recognised:
    """The module, the list of modules or the ensemble that ``file.py:function`` returns."""
    found = find_model(spec)
    if found is None:
        raise BadInput(f"{spec} names no function that returns a model; write file.py:function")
    path, name, target = found
    place = f"{name} in {path}"
    if spec.endswith(")"):
        raise BadInput(f"{place} is called without arguments; write {path}:{name}")
    try:
        built = target if isinstance(target, nn.Module) else _call(place, target)
        members = list(built) if isinstance(built, (list, tuple)) else [built]
        if not members or not all(isinstance(member, nn.Module) for member in members):
            kinds = unique(type(member).__name__ for member in members) or "an empty list"
            raise BadInput(f"{place} gives {kinds}; it must give a torch module, a list of them or a defenses.Ensemble")
        ensemble = (built if isinstance(built, Ensemble) else Ensemble(members)).eval()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{place} failed: {type(error).__name__}: {first_line(error)}; correct the function") from error
    network = unique(type(member).__name__ for member in ensemble.members)
    normalisation = "normalised as the ensemble does" if isinstance(built, Ensemble) else NORMALISES_ITSELF
    return Recognised(f"{name}() of {path.name}", network, ensemble, normalisation, code=file_digest(path))


def _call(place: str, target: Any) -> Any:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise BadInput(
            f"{place} cannot be called without arguments ({error}); write a function without required arguments"
        ) from error
    return target()
