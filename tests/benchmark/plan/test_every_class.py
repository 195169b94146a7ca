"""Every class of a library is tried once, at parameters that it has."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.library_attacks import library_classes
from benchmark.attacks.library_facts import NEEDS_COLOUR
from benchmark.cli import run
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.plan.every_class import ARGUMENTS, COLOUR, GREY, every_class_preset, tried
from benchmark.plan.libraries import crosscheck_preset
from benchmark.reports.tables.class_survey import ListedClass, write_every_class
from defenses.errors import BadInput


@pytest.mark.parametrize("library", ["torchattacks", "foolbox"])
def test_a_preset_has_every_class_that_is_not_left_out_once(library: str) -> None:
    grids = every_class_preset([library], "baseline").grids
    names = [named.name for grid in grids for section in grid.sections for named in section.attacks]
    assert sorted(names) == sorted(one.name for one in library_classes(library).values() if not one.left_out)


def test_parameters_are_given_to_classes_that_there_are() -> None:
    for key in ARGUMENTS:
        library, _, name = key.partition(":")
        if "BrendelBethge" in name and find_spec("numba") is None:  # they need numba
            continue
        assert not library_classes(library)[name].left_out


@pytest.mark.parametrize("library", ["torchattacks", "art", "foolbox"])
def test_the_table_in_the_docs_has_the_classes_and_parameters_of_today(library: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "library-attacks.md").read_text(encoding="utf-8")
    _, _, part = text.partition(f"\n## {library} ")
    rows = re.findall(r"^\| (\w+) \| ([^|]*) \| ([^|]*) \|", part.partition("\n## ")[0], re.MULTILINE)
    written = {name: "left out" if "left out" in outcome else parameters for name, parameters, outcome in rows[1:]}
    found = {
        one.name: "left out" if one.left_out else tried(one, COLOUR if place in NEEDS_COLOUR else GREY).parameters
        for place, one in (((library, one.name), one) for one in library_classes(library).values())
    }
    for name in ({*written} | {*found}) if find_spec("numba") is None else ():
        if "BrendelBethge" in name:  # they need numba; the table was made with it
            written.pop(name, None), found.pop(name, None)
    assert written == found


def test_the_table_counts_what_works_and_what_left_its_bound(tmp_path: Path, make_cell: Any, make_results: Any) -> None:
    cells = [
        make_cell(WhiteBox(parse_attack(text), "strict"))
        for text in ("torchattacks:BIM(eps=0.1)", "torchattacks:GN(std=0.1,bound=l2:0.5)", "torchattacks:FGSM(eps=0.1)")
    ]
    records = {"correct": np.arange(50) < 20, "linf": np.full(50, 0.1), "out_of_ball": np.zeros(50, dtype=bool)}
    left = {**records, "out_of_ball": np.arange(50) < 7}
    results = make_results([(cells[0], records), (cells[1], left)])
    listed = [ListedClass("torchattacks", name, "") for name in ("BIM", "GN")]
    listed.append(ListedClass("torchattacks", "LGV", "needs the training data"))
    said = write_every_class(tmp_path, results, listed, "a command")
    assert "3 classes listed, 2 tried, 2 working, 0 moved no image; 1 left their bound, 1 were left out" in said
    text = (tmp_path / "library-attacks.md").read_text()
    assert "| GN |" in text and "7 of" in text and "left out: it needs the training data" in text


def test_an_attack_named_in_full_is_checked_against_another_within_its_bound() -> None:
    asked = ["fgsm(eps=0.1)", "torchattacks:BIM(eps=0.1)"]
    (grid,) = crosscheck_preset("digits", "baseline", asked).grids
    names = [named.text for section in grid.sections for named in section.attacks]
    assert names[-1] == "torchattacks:BIM(eps=0.1)" and len(names) == 4
    with pytest.raises(BadInput, match=r"linf:0\.1"):
        crosscheck_preset("digits", "baseline", asked[1:])


def test_the_command_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["crosscheck", "--library", "art"]) == 2
    assert run(["crosscheck", "--every-class", "--attack", "fgsm"]) == 2
    assert run(["crosscheck", "--every-class", "--library", "arts"]) == 2
    assert "arts" in capsys.readouterr().err
