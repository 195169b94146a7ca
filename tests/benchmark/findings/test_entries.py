"""An entry from outside is read if it fits the schema, and refused in one line if it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.attacks.bounds import Bound
from benchmark.findings.entries import SCHEMA, read_entry
from defenses.errors import BadInput

STRONG = {"tier": "strong", "bound": "linf:8/255", "accuracy": 41.5, "samples": 1000, "attack": "AutoAttack"}
ENTRY: dict[str, Any] = {
    "version": 1,
    "defense": "Theirs",
    "dataset": "cifar10",
    "network": "resnet20",
    "members": 3,
    "source": "A paper",
    "results": [{"tier": "clean", "accuracy": 90, "samples": 10000}, STRONG],
}


def _write(path: Path, **changes: Any) -> Path:
    content = {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_an_entry_is_read(tmp_path: Path) -> None:
    entry = read_entry(_write(tmp_path / "entry.json", weights="a" * 64, certificates=["c.parquet"]))
    assert (entry.defense, entry.members, entry.source) == ("Theirs", 3, "A paper")
    assert entry.results[1].bound == Bound("linf", 8 / 255) and entry.results[1].accuracy == 41.5
    assert entry.certificates == (tmp_path / "c.parquet",)


@pytest.mark.parametrize(
    "changes",
    [
        {"defense": None},
        {"version": 2},
        {"members": "3"},
        {"members": 0},
        {"members": True},
        {"defense": ""},
        {"defense": "x" * 201},
        {"rank": 1},
        {"results": []},
        {"results": [{**STRONG, "accuracy": 101}]},
        {"results": [{**STRONG, "accuracy": float("nan")}]},
        {"results": [{**STRONG, "tier": "strongest"}]},
        {"results": [{**STRONG, "bound": "8/255"}]},
        {"results": [{**STRONG, "samples": 10.5}]},
        {"results": [{**STRONG, "bound": "linf:0.1", "extra": 1}]},
        {"results": [{"tier": "strict", "accuracy": 4, "samples": 10}]},
        {"results": [{"tier": "clean", "bound": "linf:0.1", "accuracy": 4, "samples": 10}]},
        {"results": [STRONG, STRONG]},
        {"weights": "A" * 64},
        {"certificates": ["c.parquet"]},
        {"certificates": ["../c.parquet"], "weights": "a" * 64},
        {"certificates": ["/c.parquet"], "weights": "a" * 64},
    ],
    ids=str,
)
def test_an_entry_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"entry\.json"):
        read_entry(_write(tmp_path / "entry.json", **changes))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null", '"entry"'])
def test_a_file_that_is_no_entry_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "entry.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"entry\.json"):
        read_entry(path)


def test_the_schema_uses_only_words_that_are_checked() -> None:
    known = {
        "$schema", "title", "description", "type", "required", "additionalProperties", "properties", "enum", "items",
        "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "pattern",
    }  # fmt: skip

    def words(schema: dict[str, Any]) -> set[str]:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return set(schema).union(*(words(part) for part in inner))

    assert words(json.loads(SCHEMA.read_text(encoding="utf-8"))) <= known
