"""No pin and no installed package is one that is known to be vulnerable, by a list that is kept here."""

from __future__ import annotations

import csv
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BEYOND_US = {"pip", "setuptools", "wheel"}
"""What an environment may bring by itself; our own pins are checked all the same."""


def _fixed() -> dict[str, list[tuple[Version, str]]]:
    found: dict[str, list[tuple[Version, str]]] = {}
    with open(Path(__file__).with_name("known_vulnerabilities.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(canonicalize_name(row["package"]), []).append(
                (Version(row["fixed in"]), row["identifier"])
            )
    return found


FIXED = _fixed()


def _vulnerable(name: str, version: str) -> list[str]:
    return [known for fixed, known in FIXED.get(canonicalize_name(name), []) if Version(version) < fixed]


def _pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("pin", _pins(), ids=str)
def test_no_pin_is_known_to_be_vulnerable(pin: Requirement) -> None:
    (version,) = (specifier.version for specifier in pin.specifier)
    assert _vulnerable(pin.name, version) == []


def test_the_list_knows_what_torchattacks_would_bring() -> None:
    old = {"requests": "2.25.1", "urllib3": "1.26.20", "idna": "2.10"}
    assert all(_vulnerable(name, version) for name, version in old.items())


def test_nothing_that_is_installed_is_known_to_be_vulnerable() -> None:
    found = {
        f"{one.metadata['Name']} {one.version}": known
        for one in distributions()
        if canonicalize_name(one.metadata["Name"]) not in BEYOND_US
        and (known := _vulnerable(one.metadata["Name"], one.version))
    }
    assert found == {}


def test_torchattacks_is_no_dependency_because_of_its_pins() -> None:
    dependencies = next(one for one in distributions(name="adp-benchmark")).requires or []
    needed = [Requirement(text) for text in dependencies]
    assert not [one for one in needed if one.name == "torchattacks" and one.marker is None]
