"""A flag is raised where its rule says so and nowhere else, and the documentation says what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmark.diagnostics import ALPHA, CHECKS, Result, diagnose

from benchmark.cells import Cell

DOCS = Path(__file__).parents[2] / "docs" / "diagnostics.md"
COUNT = 100
MakeCell = Callable[..., Cell]
Seen = Callable[..., Result]


@pytest.fixture
def seen(make_cell: MakeCell) -> Seen:
    """A cell and its records: the first ``right`` of 100 images stay right, and columns are set as given."""

    def make(attack: str = "pgd", right: int = 50, evaluation: str = "whitebox", **given: Any) -> Result:
        cells = {name: given.pop(name) for name in ("tier", "defense", "seed") if name in given}
        settings = {"eps": 0.1, **given.pop("settings", {})}
        cell = make_cell(evaluation, attack=attack, settings=settings, samples=COUNT, batch_size=100, **cells)
        usual: dict[str, Any] = {"index": np.arange(COUNT), "label": np.arange(COUNT) % 10, "attacked": True}
        usual |= {"clean_prediction": usual["label"], "correct": np.arange(COUNT) < right, "linf": 0.1}
        usual |= dict.fromkeys(("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient"), False)
        usual |= {"unstable": False, "wrong_way": False, "backwards": 1.0, "batch_size": 100}
        return cell, pd.DataFrame({**usual, **given})

    return make


def _first(count: int) -> Any:
    return np.arange(COUNT) < count


def _names(*results: Result) -> list[str]:
    return [flag.name for flag in diagnose(results).flags]


# --- one cell: just enough, and just too little ---

ALONE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unmoved": ({"unmoved": _first(2)}, {"unmoved": _first(1)}),
    "zero-gradient": ({"zero_gradient": _first(2)}, {"zero_gradient": _first(1)}),
    "not-finite": ({"not_finite": _first(1)}, {}),
    "out-of-ball": ({"out_of_ball": _first(1)}, {}),
    "out-of-box": ({"out_of_box": _first(1)}, {}),
    "out-of-memory": ({"batch_size": 50}, {"batch_size": 100}),
    "randomised-output": ({"unstable": _first(1)}, {}),
    "wrong-way": ({"wrong_way": _first(67)}, {"wrong_way": _first(66)}),
    "predicted-label-floor": (
        {"tier": "paper", "right": 22, "clean_prediction": np.where(_first(11), -1, np.arange(COUNT) % 10)},
        {"tier": "paper", "right": 23, "clean_prediction": np.where(_first(11), -1, np.arange(COUNT) % 10)},
    ),
    "not-at-chance": ({"settings": {"eps": 0.5}, "right": 22}, {"settings": {"eps": 0.5}, "right": 21}),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_cell_is_flagged_at_the_limit_of_the_rule_and_not_before(name: str, seen: Seen) -> None:
    enough, too_little = ALONE[name]
    assert _names(seen(**enough)) == [name]
    assert _names(seen(**too_little)) == []


def test_the_limits_are_those_of_exact_tests() -> None:
    """67 of 100 coins, 11 of 11 coins, and 22 of 100 where 10 % are expected: computed here from the binomial."""

    def tail(least: int, count: int, share: float = 0.5) -> float:
        return sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))

    assert 2 * tail(67, 100) < ALPHA <= 2 * tail(66, 100)
    assert 2 * tail(11, 11) < ALPHA <= 2 * tail(10, 10)
    assert tail(22, 100, 0.1) < ALPHA / 2 <= tail(21, 100, 0.1), "a two-sided interval ends there"


def test_a_minimiser_may_fail_on_most_images(seen: Seen) -> None:
    cell, records = seen("cw")
    cell = replace(cell, settings={"c": 1.0})
    assert _names((cell, records.assign(unmoved=_first(99)))) == []
    assert _names((cell, records.assign(unmoved=True))) == ["unmoved"]


def test_a_minimiser_must_have_begun_on_every_image(seen: Seen) -> None:
    cell, records = seen("ead")
    cell = replace(cell, settings={"c": 1.0})
    assert _names((cell, records.assign(unmoved=_first(50), never_left=_first(1)))) == []
    assert _names((cell, records.assign(unmoved=_first(50), never_left=_first(2)))) == ["never-left"]
    assert "never-left" not in diagnose([(cell, records)]).made, "older records do not say"


def test_an_attack_that_asks_for_no_gradient_is_not_checked_for_one(seen: Seen) -> None:
    assert "zero-gradient" not in diagnose([seen("square", backwards=0.0)]).made


def test_images_that_were_not_to_be_attacked_say_nothing(seen: Seen) -> None:
    assert _names(seen(attacked=False, unmoved=True, zero_gradient=True)) == []


def test_records_of_older_runs_are_checked_for_what_they_hold(seen: Seen) -> None:
    cell, records = seen()
    diagnosis = diagnose([(cell, records.drop(columns=["unstable", "wrong_way", "linf"]))])
    assert diagnosis.flags == () and not {"randomised-output", "wrong-way"} & set(diagnosis.made)


def test_suites_and_surrogates_must_be_alike_too(seen: Seen) -> None:
    for evaluation, name, one, other in (
        ("strong", "stages", ["pgd@torchattacks(eps=0.1) [3.5]"], ["pgd@torchattacks(eps=0.1) [3.6]"]),
        ("blackbox", "surrogate", "a" * 64, "b" * 64),
    ):
        first = seen("pgd", evaluation=evaluation, settings={name: one})
        second = seen("pgd", evaluation=evaluation, settings={name: other}, defense="theirs")
        assert _names(first, second) == ["not-alike"]
        assert _names(first, seen("pgd", evaluation=evaluation, settings={name: one}, defense="theirs")) == []


def test_a_gradient_that_vanishes_where_the_image_was_wrong_already_speaks_against_nothing(seen: Seen) -> None:
    wrong = {"zero_gradient": _first(30), "clean_prediction": np.where(_first(30), -1, np.arange(COUNT) % 10)}
    assert _names(seen(evaluation="detection", **wrong)) == []
    stuck = seen("ead", evaluation="detection", never_left=_first(30), **wrong)
    ead = replace(stuck[0], settings={"c": 1.0}, library="foolbox")
    assert _names((ead, stuck[1])) == []
    assert _names((ead, stuck[1].assign(never_left=_first(32)))) == ["never-left"]
    assert _names(seen(tier="paper", right=100, **wrong)) == ["zero-gradient"], "there the prediction is to be changed"


@pytest.mark.parametrize("images", [50, 150])
def test_a_last_batch_that_ran_in_parts_is_found_too(images: int, seen: Seen) -> None:
    cell, records = seen(batch_size=100)
    records = pd.concat([records, records.assign(index=records["index"] + COUNT)]).head(images)
    records["batch_size"] = np.where(records["index"] < images // 100 * 100, 100, 50)
    cell = replace(cell, samples=images)
    assert _names((cell, records)) == []
    records.loc[records["batch_size"] < 100, "batch_size"] = 25
    assert _names((cell, records)) == ["out-of-memory"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 50}, "batch size 50, not 100 as for ours"),
        ({"device": "cuda"}, "device cuda, not cpu as for ours"),
        ({"acceleration": "none"}, "acceleration none, not folded as for ours"),
        ({"library_version": "3.6"}, "torchattacks 3.6, not 3.5.1 as for ours"),
    ],
)
def test_numbers_of_one_row_that_were_not_measured_alike_are_told(
    change: dict[str, Any], words: str, seen: Seen
) -> None:
    (ours, records), (theirs, _) = seen(), seen(defense="theirs")
    other = replace(theirs, **change)
    (flag,) = diagnose([(ours, records), (other, records)]).flags
    assert (flag.name, flag.cells, flag.words) == ("not-alike", (other,), words)
    assert _names((ours, records), (theirs, records)) == []
    assert _names((ours, records), (replace(other, tier="paper"), records)) == []


# --- two cells: (what is suspected, the witness against it) ---

PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "single-step-wins": ({"attack": "pgd"}, {"attack": "fgsm"}),
    "not-monotone": ({"attack": "pgd", "settings": {"eps": 0.2}}, {"attack": "pgd", "settings": {"eps": 0.1}}),
    "not-converged": ({"settings": {"steps": 10}}, {"settings": {"steps": 20, "step_size": 0.1}}),
    "query-only-wins": ({"attack": "pgd"}, {"attack": "square", "settings": {"eps": 0.05}}),
    "transfer-wins": ({"attack": "pgd"}, {"attack": "mim", "evaluation": "transfer", "settings": {"source": "net1"}}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_eleven_images_are_enough_for_a_witness_and_ten_are_not(name: str, seen: Seen) -> None:
    suspect, witness = PAIRS[name]
    accused, speaks = seen(right=61, **suspect), seen(right=50, **witness)
    (flag,) = diagnose([accused, speaks]).flags
    assert flag.name == name and flag.cells == (accused[0],)
    assert "50.0 % of 100 images right" in flag.words and flag.words.endswith("61.0 %")
    assert _names(seen(right=60, **suspect), speaks) == []
    assert _names(seen(right=40, **suspect), speaks) == []


@pytest.mark.parametrize("change", [{"defense": "another"}, {"seed": 1}, {"index": np.arange(COUNT, 2 * COUNT)}])
@pytest.mark.parametrize("name", PAIRS)
def test_only_the_same_images_of_the_same_ensemble_are_compared(name: str, change: dict[str, Any], seen: Seen) -> None:
    suspect, witness = PAIRS[name]
    diagnosis = diagnose([seen(right=100, **suspect), seen(right=0, **witness, **change)])
    assert diagnosis.flags == () and name not in diagnosis.made


def test_a_weak_attack_is_not_suspected_beside_a_strong_one(seen: Seen) -> None:
    """PGD in small steps from a random start is weaker than FGSM on smooth models; BIM is not."""
    assert _names(seen("pgd", 80), seen("bim", 45), seen("fgsm", 50), seen("square", 50)) == []
    (flag,) = diagnose([seen("pgd", 80), seen("bim", 70), seen("fgsm", 50)]).flags
    assert [cell.attack for cell in flag.cells] == ["pgd", "bim"] and "bim" in flag.words


def test_a_witness_in_a_larger_ball_or_with_a_target_proves_nothing(seen: Seen) -> None:
    larger, targeted = {"eps": 0.2}, {"targeted": True}
    assert _names(seen("pgd", 90), seen("square", 0, settings=larger), seen("fgsm", 0, settings=larger)) == []
    assert _names(seen("pgd", 50), seen("bim", 100, settings=targeted), seen("fgsm", 50)) == []


def test_a_black_box_attack_is_a_witness_too(seen: Seen) -> None:
    surrogate = seen("pgd", 20, "blackbox", tier="black-box", settings={"surrogate": "abc"})
    (flag,) = diagnose([seen("bim", 60), surrogate]).flags
    assert flag.name == "transfer-wins" and "from a surrogate" in flag.words


def test_images_that_the_paper_s_attack_pushed_back_are_no_strength_of_the_defense(seen: Seen) -> None:
    before = np.where(_first(30), -1, np.arange(COUNT) % 10)  # the first thirty were wrong
    pushed = seen("pgd", 50, tier="paper", clean_prediction=before)
    single = seen("fgsm", 50, tier="paper", clean_prediction=before, correct=~_first(30) & _first(50))
    assert "single-step-wins" not in _names(pushed, single)


def test_one_image_is_enough_against_the_strong_tier(seen: Seen) -> None:
    worst = seen("worst-case", 40, "strong", tier="strong")
    assert _names(worst, seen("pgd", 40), seen("pgd", 90, tier="paper")) == []
    (flag,) = diagnose([worst, seen("pgd", 39), seen("bim", 38, settings={"eps": 0.05})]).flags
    assert flag.name == "strong-tier-beaten" and flag.cells == (worst[0],) and "bim" in flag.words
    assert _names(worst, seen("pgd", 10, settings={"eps": 0.2})) == []


def test_the_strong_tier_is_monotone_whatever_its_suite_spells_out(seen: Seen) -> None:
    one, other = (["pgd@torchattacks(eps=0.1) [3]"], ["pgd@torchattacks(eps=0.2) [3]"])
    small = seen("worst-case", 40, "strong", tier="strong", settings={"eps": 0.1, "stages": one})
    large = seen("worst-case", 60, "strong", tier="strong", settings={"eps": 0.2, "stages": other})
    assert _names(small, large) == ["not-monotone"]


def test_a_worst_case_that_needs_its_query_only_attack_is_suspect(seen: Seen) -> None:
    stages = ["pgd@torchattacks(eps=0.1) [3]", "square@pyautoattack(eps=0.1) [0]"]
    for fooled, expected in ((2, []), (3, ["query-only-wins"])):
        broken_at = np.where(_first(fooled), 1, 0)
        worst = seen("worst-case", 0, "strong", tier="strong", settings={"stages": stages}, broken_at=broken_at)
        assert _names(worst) == expected


# --- what a reader gets ---


def test_no_flags_says_how_much_was_checked_and_what_could_not_be(seen: Seen) -> None:
    alone, both = diagnose([seen("pgd")]), diagnose([seen("pgd"), seen("fgsm")])
    assert re.match(r"no flags: 8 checks on 1 cells; not possible on this run: .*single-step-wins", alone.summary)
    assert "single-step-wins" not in both.summary and "on 2 cells" in both.summary
    assert diagnose([]).summary == "nothing was attacked, so there is nothing to check"


def test_a_flag_says_where_it_was_raised(seen: Seen) -> None:
    cell, records = seen(seed=3, tier="paper", unmoved=True)
    diagnosis = diagnose([(cell, records)])
    (flag,) = diagnosis.flags
    assert flag.where == "digits · ours · pgd(eps=0.1) · paper · seed 3"
    assert diagnosis.words(cell) == f"unmoved: {flag.words}" and flag.advice == CHECKS["unmoved"].advice


def test_every_check_is_tested_here() -> None:
    assert {*ALONE, *PAIRS, "never-left", "not-alike", "strong-tier-beaten"} == set(CHECKS)


def test_the_documentation_lists_every_flag_with_its_rule_and_advice() -> None:
    assert _documented(DOCS.read_text(encoding="utf-8").splitlines()) == {
        name: (check.rule, check.advice) for name, check in CHECKS.items()
    }


def _documented(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name.strip("`"): (rule, advice) for name, _, rule, advice in rows}
