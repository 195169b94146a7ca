"""Attacks of the user: ``mine.py:attack(strength=2)``, or a callable in Python.

A function gets ``(model, images, labels, **parameters)`` and returns images; a class is built with the parameters and
called with ``(model, images, labels)``. The labels are targets if the parameter ``targeted`` is true.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.attacks.bounds import BOUND, NORMS, Bound, read_bound
from benchmark.attacks.foreign import ForeignAttack
from benchmark.attacks.signatures import (
    Parameter,
    Value,
    as_plain,
    objects_needed,
    plain_parameters,
    read_values,
    written,
)
from defenses import specs
from defenses.catalogue import import_file
from defenses.errors import BadInput
from defenses.registry import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

GIVEN = 3
"""Number of arguments before the parameters: model, images, labels."""


@dataclass(frozen=True)
class OwnAttack(ForeignAttack):
    """A function or a class of the user; the digest of its file is the library version in a cell's identity."""

    path: str = field(default="", compare=False)
    """Path of its file; empty for a callable, and for an attack known only from the record of a cell."""
    target: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """The callable itself, if it is given in Python."""
    limit: Bound | None = field(default=None, compare=False)
    """The bound that its parameters or its attribute ``bound`` define."""
    asked: Bound | None = field(default=None, compare=False)
    """The requested bound; it is passed to a parameter ``bound``."""

    @property
    def bound(self) -> Bound | None:
        return self.limit

    @property
    def bound_known(self) -> bool:
        return self.limit is not None

    @property
    def strength(self) -> str:  # type: ignore[override]
        return "eps" if self.limit is not None and self.settings().get("eps") == self.limit.radius else ""

    def backend(self, library: str) -> Callable[..., Any]:
        return run


def run(model: nn.Module, images: Tensor, labels: Tensor, attack: OwnAttack) -> Tensor:
    """Call the user's attack."""
    target = attack.target or (find_target(Path(attack.path), attack.callable_name) if attack.path else None)
    if target is None:
        raise BadInput(f"the file of {attack.callable_name!r} is not known; give the attack with its path")
    values: dict[str, Any] = attack.settings()
    if BOUND in _own_parameters(target):
        values[BOUND] = attack.asked or attack.limit
    built: Any = target(**values) if inspect.isclass(target) else functools.partial(target, **values)
    found = built(model, images, labels)
    if not hasattr(found, "shape"):
        raise TypeError(f"{attack.callable_name} returned {type(found).__name__}; it must return images, as a tensor")
    return found


def read_file_attack(path: Path, call: specs.Call, asked: Bound | None) -> OwnAttack:
    """Read an attack in a file from its spec."""
    target = find_target(path, call.name)
    needed = [name for name in objects_needed(_signed(target), _given(target)) if name != BOUND]
    if needed:
        raise BadInput(
            f"{call.name!r} in {path} needs {' and '.join(needed)}, which a spec cannot express; use benchmark.evaluate"
        )
    known = _with_extras(target, call)
    values = read_values(known, call, f"attack of {path.name}")
    limit = _limit(target, values, asked, f"{call.name!r} in {path}")
    text = written(known, values, "eps")
    return OwnAttack(call.name, tuple(values.items()), text, str(path.resolve()), None, limit, asked)


def from_callable(target: Callable[..., Any], bound: Bound | None) -> OwnAttack:
    """The attack of a callable; its parameters have their defaults."""
    name = getattr(target, "__name__", type(target).__name__)
    if not callable(target):
        raise BadInput(f"attack {target!r} is not callable; give a spec, or a function (model, images, labels)")
    known = _own_parameters(target)
    missing = [key for key, one in known.items() if one.required and key != BOUND]
    missing += [key for key in objects_needed(_signed(target), _given(target)) if key != BOUND]
    if missing:
        raise BadInput(f"attack {name} needs {' and '.join(missing)}; give them with functools.partial or a lambda")
    values = {key: one.default for key, one in known.items() if key != BOUND}
    limit = bound or _limit(target, values, bound, name)
    return OwnAttack(name, tuple(values.items()), written(known, values, "eps"), "", target, limit, bound)


def find_target(path: Path, name: str) -> Callable[..., Any]:
    """The function or class of that name in a file."""
    module = import_file(path)
    target = getattr(module, name, None)
    if target is None or not callable(target):
        here = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        what = "defines no" if target is None else "has no callable"
        raise BadInput(f"{path} {what} {name!r}; {did_you_mean(name, here)}")
    return target


def _signed(target: Callable[..., Any]) -> Callable[..., Any]:
    return target.__init__ if inspect.isclass(target) else target


def _given(target: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters that a spec cannot set: the first three of a function, ``self`` of a class."""
    names = tuple(inspect.signature(_signed(target)).parameters)
    return names[:1] if inspect.isclass(target) else names[:GIVEN]


def _own_parameters(target: Callable[..., Any]) -> dict[str, Parameter]:
    parameters = inspect.signature(_signed(target)).parameters
    found = plain_parameters(_signed(target), _given(target))
    if BOUND in parameters and BOUND not in found:  # its default may be a Bound
        found[BOUND] = Parameter(BOUND, str, None)
    return found


def _with_extras(target: Callable[..., Any], call: specs.Call) -> dict[str, Parameter]:
    """The parameters of a callable; if it has ``**parameters``, also every other parameter of the spec."""
    known = {name: one for name, one in _own_parameters(target).items() if name != BOUND}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(_signed(target)).parameters.values())
    extras = {key: _Guessed(key, str) for key in call.arguments if takes_all and key not in known}
    return {**known, **extras}


class _Guessed(Parameter):
    """A parameter without a known type; its value is guessed from the text."""

    def read(self, text: str, what: str) -> Value:
        if text.lower() in ("true", "false", "none"):
            return {"true": True, "false": False, "none": None}[text.lower()]
        number = specs.number(text)
        return as_plain(self.name, text) if number is None else int(text) if specs.is_whole(text) else number


def _limit(target: Callable[..., Any], values: Mapping[str, Value], asked: Bound | None, what: str) -> Bound | None:
    """The bound if the spec has no ``bound=``: from eps and norm, or from an attribute or parameter ``bound``."""
    said: Any = getattr(target, BOUND, None)
    parameters = inspect.signature(_signed(target)).parameters
    if BOUND in parameters and parameters[BOUND].default is not inspect.Parameter.empty:
        said = parameters[BOUND].default
    if inspect.isclass(target):
        try:
            takes = {BOUND: asked or _read(said, what)} if BOUND in parameters else {}
            built = target(**values, **takes)
        except (BadInput, KeyboardInterrupt):
            raise
        except BaseException as error:  # also SystemExit
            raise BadInput(f"{what} rejects its parameters: {type(error).__name__}: {error}") from error
        if not callable(built):
            raise BadInput(f"{what} is a class without __call__; add __call__(self, model, images, labels)")
        said = getattr(built, BOUND, None)
    found = _read(said, what)
    eps, norm = values.get("eps"), values.get("norm")
    if found is None and norm in NORMS and isinstance(eps, (int, float)):
        return Bound(norm, float(eps))
    return found


def _read(said: Any, what: str) -> Bound | None:
    if said is None or isinstance(said, Bound):
        return said
    if isinstance(said, str):
        return read_bound(said)
    raise BadInput(f"bound of {what} is {said!r}; it must be a Bound, or text such as 'l2:0.5'")


def recorded(name: str, settings: Mapping[str, Any], parameters: str, bound: Bound | None) -> OwnAttack:
    """An attack from a file, known only from the record of a cell."""
    values = tuple((key, as_plain(key, value)) for key, value in settings.items())
    return OwnAttack(name, values, parameters, limit=bound)
