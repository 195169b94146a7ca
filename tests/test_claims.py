"""The measured numbers on the project's pages are written by results/claims.py from the committed cells."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from defenses.checkpoints import Provenance
from defenses.training.recipes import find_recipe

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims", ROOT / "results" / "claims.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_part_of_every_page_is_what_the_committed_results_say(claims: ModuleType) -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in claims.PAGES.items()}
    assert {name for name in claims.PARTS if any(f"<!-- {name}: written" in text for text in texts.values())} == {
        *claims.PARTS
    }
    for name, text in texts.items():
        assert sorted(re.findall(r"<!-- (\w+): written", text)) == sorted(re.findall(r"<!-- end of (\w+) -->", text)), (
            name
        )
    assert [name for name, text in texts.items() if claims.written(text) != text] == []


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([(9, 1e-6), (5, 1e-3)], "holds"),
        ([(9, 1e-6), (5, 0.4)], "holds in direction"),
        ([(9, 1e-6), (-5, 0.4)], "holds in direction"),
        ([(9, 1e-6), (-5, 1e-3)], "not settled"),
        ([(9, 1e-6), (-5, 1e-3), (-4, 1e-3)], "refuted"),
        ([(9, 0.04), (5, 0.04)], "not settled"),  # Holm: twice 0.04
        ([(-9, 0.6), (-5, 0.6)], "not settled"),
        ([], "not settled"),
    ],
)
def test_a_verdict_follows_from_the_rows(claims: ModuleType, rows: list[tuple[float, float]], verdict: str) -> None:
    found = tuple(claims.Row(0, difference, p, None) for difference, p in rows)
    assert claims.Family(found, 0, True).verdict == verdict
    assert claims.Family(found, 0, False).verdict == "not settled", "ensembles with a short training settle nothing"


def test_rows_are_corrected_within_their_seed(claims: ModuleType) -> None:
    apart = claims.Family((claims.Row(0, 5, 0.04, None), claims.Row(1, 5, 0.04, None)), 0, True)
    assert apart.verdict == "holds" and "2 seeds" in apart.words


def test_a_verdict_says_when_it_rests_on_one_seed(claims: ModuleType) -> None:
    assert claims.with_seeds("holds", [0, 0]).endswith("(one seed)")
    assert claims.with_seeds("holds", [0, 1]) == "holds"
    assert claims.with_seeds("not settled", [0]) == "not settled"


@pytest.mark.parametrize(
    ("rule", "evidence", "verdict"),
    [
        ("cost", [(-0.9, 0.5), (-0.2, 0.3)], "holds"),
        ("cost", [(-1.2, 0.5), (-0.2, 0.3)], "not settled"),
        ("cost", [(-2.0, -1.1), (-0.2, 0.3)], "refuted"),
        ("cost", [], "not settled"),
        ("diversity", [(-0.1, -7.0), (-0.2, -6.0)], "holds"),
        ("diversity", [(-0.1, -7.0), (-8.0, -6.0)], "not settled"),
        ("diversity", [(-8.0, -7.0)], "refuted"),
        ("detection", [0.6, 0.7], "holds"),
        ("detection", [0.6, 0.4], "not settled"),
        ("detection", [0.3, 0.4], "refuted"),
        ("detection", [0.3, float("nan")], "refuted"),
        ("detection", [], "not settled"),
        ("robustness", [4.3, 1.8], "refuted"),
        ("robustness", [4.3, 12.0], "not settled"),
        ("robustness", [], "not settled"),
    ],
)
def test_the_other_verdicts(claims: ModuleType, rule: str, evidence: list[Any], verdict: str) -> None:
    assert getattr(claims, f"{rule}_verdict")(evidence) == verdict


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([((-9, -5), (-4, -1)), ((-9, -5), (-6, -2))], "holds"),
        ([((-9, -5), (-4, -1)), ((-9, -5), (-4, 1))], "holds in direction"),
        ([((-9, -5), (-4, -1)), ((-9, 5), (-4, -1))], "not settled"),
        ([((1, 5), (-4, -1)), ((-1, 5), (-4, -1))], "not settled"),
        ([((1, 5), (-4, -1))], "refuted"),
        ([], "not settled"),
    ],
)
def test_transfer_needs_the_control(claims: ModuleType, intervals: list[Any], verdict: str) -> None:
    assert claims.transfer_verdict(intervals) == verdict


@pytest.mark.parametrize(
    ("changes", "started_from", "long"),
    [
        ({}, "", True),
        ({"epochs": 8}, "", False),
        ({"epochs": 8}, "another", True),
        ({"epochs": 8, "train_images": 15000}, "another", False),
        ({"name": "fast"}, "", False),
    ],
)
def test_only_a_whole_reference_training_settles_a_claim(
    claims: ModuleType, changes: dict[str, Any], started_from: str, long: bool
) -> None:
    recipe = find_recipe("reference", "colour").as_dict() | changes
    origin = Provenance("baseline", "cifar10", "resnet20", 3, (3, 32, 32), 10, recipe, started_from=started_from)
    assert claims.is_long(origin) == long


def test_the_interval_of_a_difference_of_transfer_rates_is_that_of_the_bootstrap(claims: ModuleType) -> None:
    random = np.random.default_rng(0)

    def drawn(rate: float) -> object:
        source = random.integers(0, 7, 400).astype(float)
        return claims.Transferred(random.binomial(source.astype(int), rate).astype(float), source)

    one, other = drawn(0.6), drawn(0.65)
    difference, low, high = claims.transfer_difference(one, other)
    again = []
    for _ in range(4000):
        rows = random.integers(0, 400, 400)
        again.append(
            100 * (one.both[rows].sum() / one.source[rows].sum() - other.both[rows].sum() / other.source[rows].sum())
        )
    assert difference == pytest.approx(100 * (one.rate - other.rate))
    np.testing.assert_allclose((low, high), np.quantile(again, (0.025, 0.975)), atol=0.4)


def test_signs(claims: ModuleType) -> None:
    assert [claims.signed(value) for value in (1.26, -0.04, -2)] == ["+1.3", "0.0", "−2.0"]
