"""Entries from outside: claims about a defense, as JSON that is checked against `entry.schema.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.attacks.bounds import Bound, read_bound
from defenses.errors import BadInput

SCHEMA = Path(__file__).with_name("entry.schema.json")
LARGEST = 2**20
"""Largest size of an entry, in bytes."""
KINDS: dict[str, Any] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}


@dataclass(frozen=True)
class ClaimedResult:
    """One accuracy that somebody claims, in percent."""

    tier: str
    bound: Bound | None
    accuracy: float
    samples: int
    attack: str = ""


@dataclass(frozen=True)
class BoardEntry:
    """The claims about a defense."""

    defense: str
    dataset: str
    network: str
    members: int
    results: tuple[ClaimedResult, ...]
    training: str = ""
    source: str = ""
    weights: str = ""
    certificates: tuple[Path, ...] = ()


def read_entry(path: Path) -> BoardEntry:
    """Read an entry; BadInput lists its errors."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path} has more than {LARGEST:,} bytes; an entry is smaller")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error})") from None
    wrong = list(complaints(content, json.loads(SCHEMA.read_text(encoding="utf-8"))))
    if wrong:
        raise BadInput(f"{path} is not an entry: {'; '.join(wrong[:5])}")
    results = tuple(_result(path, result) for result in content["results"])
    places = [(result.tier, result.bound) for result in results]
    if len(set(places)) < len(places):
        raise BadInput(f"{path} has two results for one tier and bound; keep one")
    if content.get("certificates") and "weights" not in content:
        raise BadInput(f"{path} names certificates and no weights; add the sha256 that the certificates have")
    files = tuple(_inside(path, name) for name in content.get("certificates", []))
    texts = {name: content.get(name, "") for name in ("training", "source", "weights")}
    names = {name: content[name] for name in ("defense", "dataset", "network", "members")}
    return BoardEntry(results=results, certificates=files, **names, **texts)


def complaints(value: Any, schema: dict[str, Any], where: str = "entry") -> Iterator[str]:
    """The violations of a JSON schema by a value; supports the keywords of `entry.schema.json`."""
    kind = schema["type"]
    if not isinstance(value, KINDS[kind]) or isinstance(value, bool):
        yield f"{where} must be of type {kind}"
    elif kind == "object":
        known = schema["properties"]
        yield from (f"{where} lacks {name!r}" for name in schema["required"] if name not in value)
        for name, inner in value.items():
            if name in known:
                yield from complaints(inner, known[name], f"{where}.{name}")
            else:
                yield f"{where} has {name[:50]!r}, which is no part of the schema"
    elif kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
            yield f"{where} has {len(value)} items; {schema.get('minItems', 0)} to {schema['maxItems']} are allowed"
        for number, inner in enumerate(value):
            yield from complaints(inner, schema["items"], f"{where}[{number}]")
    elif "enum" in schema:
        if value not in schema["enum"]:
            yield f"{where} must be one of {', '.join(map(str, schema['enum']))}"
    elif kind == "string":
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{where} has {len(value)} letters; {schema.get('minLength', 0)} to {schema['maxLength']} are allowed"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where} does not match {schema['pattern']}"
    elif not schema["minimum"] <= value <= schema["maximum"]:  # NaN too
        yield f"{where} must lie between {schema['minimum']} and {schema['maximum']}"


def _result(path: Path, result: dict[str, Any]) -> ClaimedResult:
    tier, bound = result["tier"], result.get("bound")
    if (tier == "clean") != (bound is None):
        remedy = "has no bound" if tier == "clean" else "needs a bound, such as linf:8/255"
        raise BadInput(f"{path}: a result of {tier} {remedy}")
    try:
        limit = None if bound is None else read_bound(bound)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return ClaimedResult(tier, limit, float(result["accuracy"]), result["samples"], result.get("attack", ""))


def _inside(path: Path, name: str) -> Path:
    """A file in the folder of the entry; BadInput for a file elsewhere."""
    folder = path.parent.resolve()
    found = (folder / name).resolve()
    if not found.is_relative_to(folder):
        raise BadInput(f"{path} names the certificate {name!r}, which is not in its folder; put it beside the entry")
    return path.parent / name
