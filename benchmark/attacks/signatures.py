"""Parameters of a foreign function or class: the signature gives their types, a spec gives their values."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from benchmark.attacks.bounds import Norm
from defenses import specs
from defenses.errors import BadInput
from defenses.registry import did_you_mean

Value = Any
"""A number, a text, true or false, None, or a tuple of numbers."""
NORM_WORDS: dict[str, Norm] = {
    **dict.fromkeys(("inf", "linf"), "linf"),
    **dict.fromkeys(("2", "l2"), "l2"),
    **dict.fromkeys(("1", "l1"), "l1"),
    **dict.fromkeys(("0", "l0"), "l0"),
}
"""Spellings of the norms by libraries and users, in lower case."""
ABOUT_NORMS = ("norm", "distance")
"""Parameters whose value is a norm, in the library's spelling."""
_SEQUENCES = {"tuple", "Tuple", "list", "List"}
_OBJECTS = {"dict", "Dict", "Callable"}
_COUNT = re.compile("step|iter|restart|quer|pixels|size")
_PLAIN = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Parameter:
    """A parameter that a spec can give."""

    name: str
    kind: Any
    """The accepted type, as an annotation of plain types; ``tuple`` stands for numbers such as ``2x10``."""
    default: Value = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, text: str, what: str) -> Value:
        """The value that a text stands for."""
        if self.name in ABOUT_NORMS and text.lower() in NORM_WORDS:
            return NORM_WORDS[text.lower()]
        if self.kind is tuple:
            return None if self.default is None and text.lower() == "none" else _numbers(text, what)
        return specs.convert(self.kind, text, what)


def plain_parameters(target: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Parameter]:
    """The parameters that accept plain values; a parameter that needs an object must have a default."""
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in without or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = as_plain(name, parameter.default)
        kind = _kind(parameter)
        if kind is not None and (default is inspect.Parameter.empty or is_plain(default)):
            found[name] = Parameter(name, kind, default)
    return found


def objects_needed(target: Callable[..., Any], without: Collection[str] = ()) -> list[str]:
    """Parameters without a default that do not accept a plain value."""
    plain = plain_parameters(target, without)
    return [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if name not in plain
        and name not in without
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def as_plain(name: str, value: Any) -> Any:
    """A value as in cells and specs: norms by the names of this project, lists as tuples."""
    word = str(value).lower()
    if name in ABOUT_NORMS and not isinstance(value, bool) and word in NORM_WORDS:
        return NORM_WORDS[word]
    return tuple(value) if isinstance(value, list) else value


def is_plain(value: Any) -> bool:
    """Whether a spec and the file of a cell can contain the value."""
    if isinstance(value, tuple):
        return all(isinstance(part, (int, float)) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


def read_values(known: Mapping[str, Parameter], call: specs.Call, kind: str) -> dict[str, Value]:
    """Every parameter with its value: from the spec, or the default."""
    for key in call.arguments:
        if key not in known:
            raise BadInput(f"{kind} {call.name!r} has no parameter {key!r}; {did_you_mean(key, known)}")
    missing = [name for name, one in known.items() if one.required and name not in call.arguments]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise BadInput(f"{kind} {call.name!r} needs {' and '.join(missing)}; write {call.name}({example})")
    given = {key: known[key].read(text, f"{key} of {kind} {call.name!r}") for key, text in call.arguments.items()}
    return {name: given.get(name, one.default) for name, one in known.items()}


def written(known: Mapping[str, Parameter], values: Mapping[str, Value], always: str = "") -> str:
    """The text between the parentheses of a spec: values that differ from defaults, and the parameter ``always``."""
    shown = {
        name: value
        for name, value in values.items()
        if name == always or known[name].required or value != known[name].default
    }
    return ",".join(f"{name}={value_text(value)}" for name, value in shown.items())


def value_text(value: Value) -> str:
    """The text of a value; a tuple is written ``2x10``."""
    return "x".join(map(specs.value_text, value)) if isinstance(value, tuple) else specs.value_text(value)


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of a parameter, from its annotation or its default; None if the type is not plain."""
    if parameter.annotation is parameter.empty:
        return _kind_of(parameter.name, parameter.default)
    text = (
        parameter.annotation
        if isinstance(parameter.annotation, str)
        else inspect.formatannotation(parameter.annotation)
    )
    choices = re.findall(r"'([^']+)'", text) if "Literal" in text else []
    words = set(re.findall(r"[A-Za-z_]+", text.replace("typing.", "")))
    if words & _OBJECTS:
        return None
    if words & _SEQUENCES:
        return tuple if words <= _SEQUENCES | {"int", "float", "None", "Optional", "Union"} else None
    plain = [kind for word, kind in _PLAIN.items() if word in words]
    if not plain and not choices and not _about_norm(parameter):
        return None
    options: list[Any] = [Literal[tuple(choices)]] if choices else plain or [str]
    if words & {"None", "NoneType", "Optional"}:
        options.append(type(None))
    return Union[tuple(options)]  # noqa: UP007


def _about_norm(parameter: inspect.Parameter) -> bool:
    return parameter.name in ABOUT_NORMS


def _kind_of(name: str, default: Any) -> Any:
    """The type of a parameter without annotation, from its default; a whole number may stand for any number."""
    if default is inspect.Parameter.empty or default is None:
        return Union[float, str, None]  # noqa: UP007
    if isinstance(default, bool):
        return bool
    if isinstance(default, int):
        return int if _COUNT.search(name) else Union[int, float]  # noqa: UP007
    if isinstance(default, (tuple, list)):
        return tuple
    return next((kind for kind in (float, str) if isinstance(default, kind)), None)


def _numbers(text: str, what: str) -> tuple[float, ...]:
    parts = [specs.number(part) for part in text.split("x")]
    numbers = [part for part in parts if part is not None]
    if len(numbers) < len(parts) or not all(map(math.isfinite, numbers)):
        raise BadInput(f"{what} is {text!r}; write numbers with an x between them, such as 2x10")
    return tuple(int(part) if "." not in word else part for part, word in zip(numbers, text.split("x"), strict=True))
