"""A user's function or class, named as ``file.py:name(key=value)``, with arguments checked by its signature."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from defenses import specs
from defenses.catalogue import import_file
from defenses.errors import BadInput
from defenses.registry import did_you_mean
from defenses.specs import Call, Value

_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class UserFunction:
    """A function or class that a spec names, with its arguments."""

    text: str
    """Canonical spec, such as ``mine.py:VGG(width=8)``."""
    target: Callable[..., Any]
    arguments: Mapping[str, Value]
    path: Path | None = None
    """The user's file; None for a function of an installed package."""


def is_in_file(spec: str) -> bool:
    """True when a spec names something in a Python file."""
    return ".py:" in spec


def from_file(spec: str, kind: str, given: Collection[str] = ()) -> UserFunction:
    """The function or class at ``file.py:name(key=value)``; the program itself passes the arguments ``given``."""
    location, _, rest = spec.partition(".py:")
    path, call = Path(location + ".py"), specs.parse(rest, kind)
    module = import_file(path)
    target = getattr(module, call.name, None)
    if not callable(target):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        what = "defines no" if target is None else "has no function or class"
        raise BadInput(f"{path} {what} {call.name!r}; {did_you_mean(call.name, own)}")
    return called(target, call, kind, given, path)


def called(
    target: Callable[..., Any], call: Call, kind: str, given: Collection[str] = (), path: Path | None = None
) -> UserFunction:
    """A target with the arguments of a call, checked by name and converted to the declared types."""
    place = f"{call.name!r}" + (f" in {path}" if path else "")
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise BadInput(f"{kind} {place} has no readable signature ({error}); write a function that calls it") from None
    any_key = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    for key in given:
        if key not in by_name and not any_key:
            ours = " and ".join(given)
            raise BadInput(f"{kind} {place} does not accept {key!r}; it must accept the keyword arguments {ours}")
    own = {name: parameter for name, parameter in by_name.items() if name not in given}
    for key in call.arguments:
        if key in given:
            raise BadInput(f"{kind} {place} receives {key!r} from the data; omit it from the spec")
        if key not in own and not any_key:
            raise BadInput(f"{kind} {place} has no parameter {key!r}; {did_you_mean(key, own)}")
    missing = [
        name for name, parameter in own.items() if parameter.default is parameter.empty and name not in call.arguments
    ]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise BadInput(f"{kind} {place} needs {' and '.join(missing)}; write {call.name}({example})")
    types = _types(target)
    values = {
        key: _value(types.get(key), text, f"{key} of {kind} {call.name!r}") for key, text in call.arguments.items()
    }
    order = [*(name for name in own if name in values), *sorted(values.keys() - own.keys())]
    shown = [
        f"{key}={specs.value_text(values[key])}" for key in order if key not in own or values[key] != own[key].default
    ]
    text = f"{call.name}({','.join(shown)})" if shown else call.name
    return UserFunction(f"{path}:{text}" if path else text, target, {key: values[key] for key in order}, path)


def _types(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(target, "__init__", target) if isinstance(target, type) else target)
    except Exception:  # evaluating an annotation can raise any error
        return {}


def _value(annotation: Any, text: str, what: str) -> Value:
    """The value of a text: by its declared type if a spec supports it, else a number, true, false, none or the text."""
    if annotation is not None:
        try:
            return specs.convert(annotation, text, what)
        except TypeError:  # a type that specs do not support
            pass
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number = specs.number(text)
    if number is None:
        return text
    return int(text) if text.lstrip("+-").isdecimal() else number
