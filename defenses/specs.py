"""Specs: names with parameters, as text with one canonical form, such as ``adp(alpha=2,beta=0.5)``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import typing
from fractions import Fraction
from types import UnionType
from typing import Any, TypeVar

from defenses.errors import BadInput
from defenses.registry import Registry, did_you_mean

Value = str | int | float | bool | tuple[float, ...] | None
T = TypeVar("T")

_SPEC = re.compile(r"^\s*(?P<name>[^()=,+\s]+)\s*(?:\(\s*(?P<arguments>[^()]*)\))?\s*$")


@dataclasses.dataclass(frozen=True)
class Call:
    """A name and its arguments, still as text."""

    name: str
    arguments: dict[str, str]


def parse(text: str, kind: str) -> Call:
    """Read ``name`` or ``name(key=value,…)``."""
    match = _SPEC.match(text)
    if match is None:
        raise BadInput(f"cannot read the {kind} {text!r}; write name or name(key=value,key=value)")
    arguments: dict[str, str] = {}
    for part in filter(str.strip, (match["arguments"] or "").split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise BadInput(f"cannot read {part.strip()!r} in the {kind} {text!r}; write key=value")
        if key in arguments:
            raise BadInput(f"{key!r} is given twice in the {kind} {text!r}; write it once")
        arguments[key] = value
    return Call(match["name"], arguments)


def split(text: str, at: str = "+") -> list[str]:
    """The parts of a composition: split at each ``+`` that stands outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def parameters(target: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The parameters that a user can write in a spec: the dataclass fields, except those with ``spec=False``.

    ``lambda`` is a Python keyword, so the field is named ``lambda_``; a spec has no underscore at the end.
    """
    return {
        field.name.rstrip("_"): field
        for field in dataclasses.fields(target)
        if field.init and field.metadata.get("spec", True)
    }


def build(target: type[T], call: Call, kind: str) -> T:
    """Build a dataclass from a call: arguments are checked by name and converted by type."""
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        raise BadInput(f"{kind} {call.name!r} is {target!r}; it must be a dataclass whose fields are its parameters")
    fields = parameters(target)
    types = typing.get_type_hints(target)
    for key in call.arguments:
        if key not in fields:
            raise BadInput(f"{kind} {call.name!r} has no parameter {key!r}; {did_you_mean(key, fields)}")
    values = {
        fields[key].name: convert(types[fields[key].name], text, f"{key} of {kind} {call.name!r}")
        for key, text in call.arguments.items()
    }
    missing = [key for key, field in fields.items() if field.name not in values and not _has_default(field)]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise BadInput(f"{kind} {call.name!r} needs {' and '.join(missing)}; write {call.name}({example})")
    return target(**values)


def canonical(name: str, instance: Any) -> str:
    """The canonical text: all required parameters, and the optional ones that differ from their default."""
    values = {key: (field, getattr(instance, field.name)) for key, field in parameters(type(instance)).items()}
    shown = [
        f"{key}={value_text(value)}"
        for key, (field, value) in values.items()
        if not (_has_default(field) and value == field.default)
    ]
    return f"{name}({','.join(shown)})" if shown else name


def resolve(registry: Registry[Any], text: str) -> tuple[str, Any]:
    """Expand aliases, look the name up and build its dataclass: (canonical text, instance)."""
    call = parse(text, registry.kind)
    expanded = registry.expand(call.name)
    if expanded != call.name:
        base = parse(expanded, registry.kind)
        call = Call(base.name, {**base.arguments, **call.arguments})
    instance = build(registry.get(call.name), call, registry.kind)
    return canonical(call.name, instance), instance


def value_text(value: Value) -> str:
    """The shortest text that reads back as the same value: 8/255 for a long decimal, 0.5x0.5 for a tuple."""
    if isinstance(value, tuple):
        return "x".join(map(value_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float_text(value)
    text = str(value)
    if not text or text != text.strip() or re.search("[(),]", text):
        raise BadInput(
            f"the value {text!r} is not allowed in a spec; it must not be empty and must not contain parentheses, "
            "commas or outer spaces"
        )
    return text


def number(text: str) -> float | None:
    """The value of a text such as ``0.5`` or ``8/255``; None if the text is not a number."""
    with contextlib.suppress(ValueError, ArithmeticError):
        value = float(Fraction(text)) if "/" in text else float(text)
        return None if math.isnan(value) else value
    return None


def is_whole(text: str) -> bool:
    """True for a whole number of at most 400 digits; Python refuses to convert thousands of digits."""
    return re.fullmatch(r"[+-]?\d{1,400}", text) is not None


def _float_text(value: float) -> str:
    text = repr(value)
    if not abs(value) < 1e15:  # above this, and for infinity, the exponent form is shorter
        return text
    if value.is_integer():
        return str(int(value))
    levels = round(value * 255)
    return f"{levels}/255" if len(text) > 8 and levels / 255 == value else text


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING


def convert(annotation: Any, text: str, what: str) -> Value:
    """Convert the text of an argument to the type that its dataclass field declares."""
    options: tuple[Any, ...] = (
        typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else (annotation,)
    )
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            choices = {value_text(choice): choice for choice in typing.get_args(option)}
            if text in choices:
                return typing.cast(Value, choices[text])
            raise BadInput(f"{what} is {text!r}; {did_you_mean(text, choices)}")
        if option is bool:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise BadInput(f"{what} is {text!r}; write true or false")
        if option is int:
            if is_whole(text):
                return int(text)
            if float not in options:
                raise BadInput(f"{what} is {text!r}; write a whole number")
        if option is float:
            value = number(text)
            if value is not None:
                return value
            raise BadInput(f"{what} is {text!r}; write a number such as 0.5 or 8/255")
        if typing.get_origin(option) is tuple:
            parts = [number(part) for part in text.split("x")]
            if None not in parts:
                return tuple(part for part in parts if part is not None)
            raise BadInput(f"{what} is {text!r}; write numbers with an x between them, such as 0.5x0.5")
        if option is str:
            return text
    raise TypeError(
        f"parameter type {annotation!r} is not supported in a spec; use str, int, float, bool, Literal or a tuple"
    )
