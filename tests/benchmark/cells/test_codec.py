"""JSON of cells: written as the first version wrote it, hashed as it hashed it, and refused in plain words."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from benchmark.cells.codec import from_json, to_json
from defenses.errors import BadInput

ENSEMBLE = {
    "dataset": "digits",
    "data_checksum": "d0",
    "defense": "ours",
    "spec": "baseline",
    "members": 2,
    "network": "mini-resnet",
    "training": "fast recipe, 12 epochs, seed 0",
    "weights": "w0",
    "seed": 0,
    "batch_size": 20,
    "device": "cpu",
    "acceleration": "folded",
    "samples": 50,
    "published": None,
}
NO_ATTACK = {"attack": "none", "library": "none", "library_version": "", "tier": "clean"}
CLEAN = {
    **ENSEMBLE, **NO_ATTACK, "parameters": "classifier=net1", "settings": {"classifier": "net1"}, "evaluation": "clean",
}  # fmt: skip
DIVERSITY = {**ENSEMBLE, **NO_ATTACK, "parameters": "", "settings": {}, "evaluation": "diversity"}
PGD = {
    **ENSEMBLE,
    "attack": "pgd",
    "parameters": "eps=0.1",
    "library": "torchattacks",
    "library_version": "3.5.1",
    "settings": {"eps": 0.1, "steps": 10, "step_size": None, "targeted": False, "restarts": 1, "loss": "ce"},
    "tier": "strict",
    "evaluation": "whitebox",
}


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("entry", [CLEAN, DIVERSITY], ids=lambda entry: entry["evaluation"])
def test_a_cell_without_a_bound_is_written_as_the_first_version_wrote_it(entry: dict[str, Any]) -> None:
    assert to_json(from_json(entry)) == entry


def test_a_cell_with_a_bound_says_it_beside_what_the_first_version_wrote() -> None:
    written = to_json(from_json(PGD))
    assert {key: written[key] for key in PGD} == PGD
    assert {key: written[key] for key in written.keys() - PGD.keys()} == {"bound": "linf:0.1", "shared_images": False}


@pytest.mark.parametrize("acceleration", ["folded", "none"])
def test_an_identity_is_the_hash_of_what_changes_the_records(acceleration: str) -> None:
    """Folding was there before it could be turned off: an identity tells of it only where it is off."""
    names = ("defense", "spec", "members", "network", "training", "parameters", "acceleration", "samples", "published")
    hashed = {key: value for key, value in PGD.items() if key not in names} | {"protocol": 1}
    if acceleration == "none":
        hashed["acceleration"] = "none"
    cell = from_json({**PGD, "acceleration": acceleration})
    assert cell.series == _hash(hashed)
    assert cell.identity == _hash({**hashed, "samples": 50})


def test_the_first_files_say_neither_evaluation_nor_acceleration_nor_reference() -> None:
    first = {key: value for key, value in PGD.items() if key not in ("evaluation", "acceleration", "published")}
    cell = from_json(first)
    assert cell == from_json(PGD) and cell.published is None
    assert cell.identity.startswith("01a55579acec0d82")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({**CLEAN, "settings": {"classifier": "netX"}}, "ValueError: invalid literal .*'X'"),
        ({**CLEAN, "settings": 5}, "TypeError"),
        ({**PGD, "settings": None}, "AttributeError"),
        ({key: value for key, value in PGD.items() if key != "weights"}, "KeyError: 'weights'"),
    ],
    ids=["ValueError", "TypeError", "AttributeError", "KeyError"],
)
def test_an_entry_that_cannot_be_understood_is_one_of_another_version(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=rf"^another version of adp-bench .*\({reason}.*--out$"):
        from_json(entry)


def test_what_is_plainly_wrong_is_told_as_it_is() -> None:
    with pytest.raises(BadInput, match=r"^the run has cells of evaluation 'whitebix'; did you mean whitebox"):
        from_json({**PGD, "evaluation": "whitebix"})
