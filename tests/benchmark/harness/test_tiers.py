"""Tiers are known by name, and tier strict takes over from tier paper what both attack alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.records import JUDGED
from benchmark.harness.tiers import as_strict, check_tier
from defenses.errors import BadInput

PAPER = WhiteBox(parse_attack("cw(c=1)"), "paper")


def test_an_unknown_tier_is_bad_input() -> None:
    assert check_tier("paper") == "paper"
    with pytest.raises(BadInput, match="unknown tier 'strickt'; did you mean strict"):
        check_tier("strickt")


@pytest.mark.parametrize("looked", [False, True])
def test_records_of_tier_paper_by_the_rules_of_strict(
    looked: bool, make_cell: Callable[..., Cell], make_records: Callable[[Cell, dict[str, Any]], pd.DataFrame]
) -> None:
    values: dict[str, Any] = {
        "label": 3,
        "clean_prediction": [3, 5, 3, 5],  # the second and the fourth are wrong to begin with
        "adversarial_prediction": [7, 3, 3, 6],
        "correct": [False, True, True, False],
        "out_of_box": True,
        "l2": 0.5,
        **(dict.fromkeys(JUDGED, True) if looked else {}),
    }
    paper = make_records(make_cell(PAPER, samples=4), values)
    before = paper.copy()
    strict = as_strict(paper)
    pd.testing.assert_frame_equal(paper, before)
    right, wrong = [0, 2], [1, 3]
    pd.testing.assert_frame_equal(strict.loc[right], paper.loc[right])
    assert strict.dtypes.equals(paper.dtypes)
    assert strict.loc[wrong, "adversarial_prediction"].tolist() == [5, 5]
    assert not strict.loc[wrong, ["attacked", "correct", "out_of_box", "l2"]].to_numpy().any()
    for name in JUDGED:
        assert strict[name].isna().all() if not looked else strict[name].tolist() == [True, False, True, False]
    for name in ("forwards", "backwards", "seconds", "batch_size"):
        assert strict[name].tolist() == paper[name].tolist(), "what was spent on them was spent"
