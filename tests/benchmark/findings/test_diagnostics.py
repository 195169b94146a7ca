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

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.task import Task
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase, stages
from benchmark.findings.checks import CHECKS, TRAINING
from benchmark.findings.diagnostics import ALPHA, Result, diagnose
from benchmark.harness.records import JUDGED
from benchmark.harness.tiers import Tier

DOCS = Path(__file__).parents[3] / "docs" / "diagnostics.md"
COUNT = 100
MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
Seen = Callable[..., Result]


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _worst(radius: float = 0.1) -> WorstCase:
    return WorstCase(Bound("linf", radius), "full", stages("full", Bound("linf", radius), 2, 10))


PGD, PAPER = _task("pgd(eps=0.1)"), _task("pgd(eps=0.1)", "paper")
LABELS = np.arange(COUNT) % 10


@pytest.fixture
def seen(make_cell: MakeCell, make_records: MakeRecords) -> Seen:
    """A cell and its records: the first ``right`` of 100 images stay right, and columns are set as given."""

    def make(task: Task = PGD, right: int = 50, *, defense: str = "ours", seed: int = 0, **columns: Any) -> Result:
        cell = make_cell(task, defense, samples=COUNT, seed=seed)
        usual: dict[str, Any] = {"label": LABELS, "clean_prediction": LABELS, "correct": _first(right), "linf": 0.1}
        return cell, make_records(cell, {**usual, "unstable": False, "wrong_way": False, **columns})

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
    "no-prediction": ({"adversarial_prediction": np.where(_first(1), -1, LABELS)}, {}),
    "out-of-ball": ({"out_of_ball": _first(1)}, {}),
    "out-of-box": ({"out_of_box": _first(1)}, {}),
    "out-of-memory": ({"batch_size": 50}, {"batch_size": 100}),
    "randomised-output": ({"unstable": _first(1)}, {}),
    "wrong-way": ({"wrong_way": _first(67)}, {"wrong_way": _first(66)}),
    "predicted-label-floor": (
        {"task": PAPER, "right": 22, "clean_prediction": np.where(_first(11), 99, LABELS)},
        {"task": PAPER, "right": 23, "clean_prediction": np.where(_first(11), 99, LABELS)},
    ),
    "not-at-chance": ({"task": _task("pgd(eps=0.5)"), "right": 22}, {"task": _task("pgd(eps=0.5)"), "right": 21}),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_cell_is_flagged_at_the_limit_of_the_rule_and_not_before(name: str, seen: Seen) -> None:
    enough, too_little = ALONE[name]
    assert _names(seen(**enough)) == [name]
    assert _names(seen(**too_little)) == []


def test_an_attack_that_met_no_number_and_returned_other_images_is_flagged(seen: Seen) -> None:
    assert _names(seen(undefined=_first(1))) == ["no-prediction"]
    assert _names(seen(undefined=False)) == []


def test_the_limits_are_those_of_exact_tests() -> None:
    """67 of 100 coins, 11 of 11 coins, and 22 of 100 where 10 % are expected: computed here from the binomial."""

    def tail(least: int, count: int, share: float = 0.5) -> float:
        return sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))

    assert 2 * tail(67, 100) < ALPHA <= 2 * tail(66, 100)
    assert 2 * tail(11, 11) < ALPHA <= 2 * tail(10, 10)
    assert tail(22, 100, 0.1) < ALPHA / 2 <= tail(21, 100, 0.1), "a two-sided interval ends there"


def test_a_minimiser_may_fail_on_most_images(seen: Seen) -> None:
    assert _names(seen(_task("cw(c=1)"), unmoved=_first(99))) == []
    assert _names(seen(_task("cw(c=1)"), unmoved=True)) == ["unmoved"]


def test_a_minimiser_must_have_begun_on_every_image(seen: Seen) -> None:
    ead = _task("ead(c=1)")
    assert _names(seen(ead, unmoved=_first(50), never_left=_first(1))) == []
    assert _names(seen(ead, unmoved=_first(50), never_left=_first(2))) == ["never-left"]
    assert "never-left" not in diagnose([seen(ead)]).made, "older records do not say"


def test_an_attack_that_asks_for_no_gradient_is_not_checked_for_one(seen: Seen) -> None:
    assert "zero-gradient" not in diagnose([seen(_task("square(eps=0.1)"), backwards=0.0)]).made


def test_images_that_were_not_to_be_attacked_say_nothing(seen: Seen) -> None:
    assert _names(seen(attacked=False, unmoved=True, zero_gradient=True)) == []


def test_records_of_older_runs_are_checked_for_what_they_hold(seen: Seen) -> None:
    cell, records = seen()
    older = cell.task.records.complete(records.drop(columns=[*JUDGED, "linf"]))
    diagnosis = diagnose([(cell, older)])
    assert diagnosis.flags == () and not {"randomised-output", "wrong-way"} & set(diagnosis.made)


def test_suites_and_surrogates_must_be_alike_too(seen: Seen) -> None:
    def suite(version: str) -> WorstCase:
        return WorstCase(Bound("linf", 0.1), "full", (Stage(replace(PGD.named, version=version)),))

    surrogates = BlackBox(PGD.named, "a" * 64), BlackBox(PGD.named, "b" * 64)
    for one, other in ((suite("3.5"), suite("3.6")), surrogates):
        assert _names(seen(one), seen(other, defense="theirs")) == ["not-alike"]
        assert _names(seen(one), seen(one, defense="theirs")) == []


def test_a_gradient_that_vanishes_where_the_image_was_wrong_already_speaks_against_nothing(seen: Seen) -> None:
    wrong = {"zero_gradient": _first(30), "clean_prediction": np.where(_first(30), 99, LABELS)}
    assert _names(seen(Detection(PGD.named), **wrong)) == []
    ead = Detection(parse_attack("ead(c=1)"))
    assert _names(seen(ead, never_left=_first(30), **wrong)) == []
    assert _names(seen(ead, never_left=_first(32), **wrong)) == ["never-left"]
    assert _names(seen(PAPER, right=100, **wrong)) == ["zero-gradient"], "there the prediction is to be changed"


@pytest.mark.parametrize("images", [50, 150])
def test_a_last_batch_that_ran_in_parts_is_found_too(
    images: int, make_cell: MakeCell, make_records: MakeRecords
) -> None:
    cell = make_cell(PGD, samples=images, batch_size=100)
    whole = np.arange(images) < images // 100 * 100
    assert _names((cell, make_records(cell, {"batch_size": np.where(whole, 100, 50)}))) == []
    assert _names((cell, make_records(cell, {"batch_size": np.where(whole, 100, 25)}))) == ["out-of-memory"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 50}, "batch size 50, not 100 as for ours"),
        ({"device": "cuda"}, "device cuda, not cpu as for ours"),
        ({"acceleration": "none"}, "acceleration none, not folded as for ours"),
        ({"version": "3.6"}, "torchattacks 3.6, not 3.5.1 as for ours"),
    ],
)
def test_numbers_of_one_row_that_were_not_measured_alike_are_told(
    change: dict[str, Any], words: str, make_cell: MakeCell, make_records: MakeRecords
) -> None:
    def result(defense: str, tier: Tier = "strict", version: str = "3.5.1", **others: Any) -> Result:
        task = WhiteBox(replace(PGD.named, version=version), tier)
        cell = make_cell(task, defense, **{"samples": COUNT, **others})
        return cell, make_records(cell, {"batch_size": COUNT})

    ours, other = result("ours"), result("theirs", **change)
    (flag,) = diagnose([ours, other]).flags
    assert (flag.name, flag.cells, flag.words) == ("not-alike", (other[0],), words)
    assert _names(ours, result("theirs")) == []
    assert _names(ours, result("theirs", "paper", **change)) == []


# --- two cells: (what is suspected, the witness against it) ---

PAIRS: dict[str, tuple[Task, Task]] = {
    "single-step-wins": (PGD, _task("fgsm(eps=0.1)")),
    "not-monotone": (_task("pgd(eps=0.2)"), PGD),
    "not-converged": (_task("pgd(eps=0.1,steps=10)"), _task("pgd(eps=0.1,steps=20,step_size=0.1)")),
    "query-only-wins": (PGD, _task("square(eps=0.05)")),
    "transfer-wins": (PGD, Transfer(parse_attack("mim(eps=0.1)"), 0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_eleven_images_are_enough_for_a_witness_and_ten_are_not(name: str, seen: Seen) -> None:
    suspect, witness = PAIRS[name]
    accused, speaks = seen(suspect, 61), seen(witness, 50)
    (flag,) = diagnose([accused, speaks]).flags
    assert flag.name == name and flag.cells == (accused[0],)
    assert "50.0 %" in flag.words and "61.0 %" in flag.words and flag.words.endswith("100 images")
    assert _names(seen(suspect, 60), speaks) == []
    assert _names(seen(suspect, 40), speaks) == []


@pytest.mark.parametrize("change", [{"defense": "another"}, {"seed": 1}, {"index": np.arange(COUNT, 2 * COUNT)}])
@pytest.mark.parametrize("name", PAIRS)
def test_only_the_same_images_of_the_same_ensemble_are_compared(name: str, change: dict[str, Any], seen: Seen) -> None:
    suspect, witness = PAIRS[name]
    diagnosis = diagnose([seen(suspect, 100), seen(witness, 0, **change)])
    assert diagnosis.flags == () and name not in diagnosis.made


def test_a_weak_attack_is_not_suspected_beside_a_strong_one(seen: Seen) -> None:
    """PGD in small steps from a random start is weaker than FGSM on smooth models; BIM is not."""
    bim, fgsm, square = (_task(f"{name}(eps=0.1)") for name in ("bim", "fgsm", "square"))
    assert _names(seen(PGD, 80), seen(bim, 45), seen(fgsm, 50), seen(square, 50)) == []
    (flag,) = diagnose([seen(PGD, 80), seen(bim, 70), seen(fgsm, 50)]).flags
    assert [cell.task.name for cell in flag.cells] == ["pgd", "bim"] and "BIM" in flag.words


def test_a_witness_in_a_larger_ball_or_with_a_target_proves_nothing(seen: Seen) -> None:
    assert _names(seen(PGD, 90), seen(_task("square(eps=0.2)"), 0), seen(_task("fgsm(eps=0.2)"), 0)) == []
    targeted = _task("bim(eps=0.1,targeted=true)")
    assert _names(seen(PGD, 50), seen(targeted, 100), seen(_task("fgsm(eps=0.1)"), 50)) == []


def test_a_black_box_attack_is_a_witness_too(seen: Seen) -> None:
    (flag,) = diagnose([seen(_task("bim(eps=0.1)"), 60), seen(BlackBox(PGD.named, "abc"), 20)]).flags
    assert flag.name == "transfer-wins" and "from a surrogate" in flag.words


def test_images_that_the_paper_s_attack_pushed_back_are_no_strength_of_the_defense(seen: Seen) -> None:
    before = np.where(_first(30), -1, LABELS)  # the first thirty were wrong
    pushed = seen(PAPER, 50, clean_prediction=before)
    single = seen(_task("fgsm(eps=0.1)", "paper"), clean_prediction=before, correct=~_first(30) & _first(50))
    assert "single-step-wins" not in _names(pushed, single)


def test_one_image_is_enough_against_the_strong_tier(seen: Seen) -> None:
    worst = seen(_worst(), 40)
    assert _names(worst, seen(PGD, 40), seen(PAPER, 90)) == []
    (flag,) = diagnose([worst, seen(PGD, 39), seen(_task("bim(eps=0.05)"), 38)]).flags
    assert flag.name == "strong-tier-beaten" and flag.cells == (worst[0],) and "BIM" in flag.words
    assert _names(worst, seen(_task("pgd(eps=0.2)"), 10)) == []


def test_the_strong_tier_is_monotone_whatever_its_suite_spells_out(seen: Seen) -> None:
    assert _names(seen(_worst(0.1), 40), seen(_worst(0.2), 60)) == ["not-monotone"]


def test_a_worst_case_that_needs_its_query_only_attack_is_suspect(seen: Seen) -> None:
    suite = (Stage(PGD.named), Stage(parse_attack("square(eps=0.1)")))
    for fooled, expected in ((2, []), (3, ["query-only-wins"])):
        worst = seen(WorstCase(Bound("linf", 0.1), "full", suite), 0, broken_at=np.where(_first(fooled), 1, 0))
        assert _names(worst) == expected


# --- an L2 attack whose radius is called eps too ---


def test_an_l2_attack_need_not_leave_chance_where_an_linf_one_turns_images_grey(
    seen: Seen, l2_attack: Callable[..., NamedAttack]
) -> None:
    l2 = diagnose([seen(WhiteBox(l2_attack(0.5), "strict"), 90)])
    assert l2.flags == () and "not-at-chance" not in l2.made
    assert _names(seen(_task("pgd(eps=0.5)"), 90)) == ["not-at-chance"]


def test_a_radius_in_one_norm_is_not_smaller_than_one_in_another(
    seen: Seen, l2_attack: Callable[..., NamedAttack]
) -> None:
    def l2(eps: float) -> WhiteBox:  # the same name and parameters as the L∞ attack has
        return WhiteBox(l2_attack(eps, name="pgd"), "strict")

    for one, other in ((l2(0.1), _task("pgd(eps=0.2)")), (PGD, l2(0.2))):
        diagnosis = diagnose([seen(one, 50), seen(other, 90)])
        assert diagnosis.flags == () and "not-monotone" not in diagnosis.made
    assert _names(seen(l2(0.1), 50), seen(l2(0.2), 90)) == ["not-monotone"]
    small = WorstCase(Bound("l2", 0.1), "full", (Stage(l2_attack(0.1)),))
    assert _names(seen(small, 40), seen(_worst(0.2), 60)) == []


def test_an_l2_attack_is_no_witness_against_an_linf_one_of_its_radius(
    seen: Seen, l2_attack: Callable[..., NamedAttack]
) -> None:
    single, iterative = (WhiteBox(l2_attack(0.1, steps), "strict") for steps in (1, 10))
    from_member = Transfer(l2_attack(0.1), 0)
    for witness in (single, from_member):
        diagnosis = diagnose([seen(PGD, 90), seen(witness, 10)])
        assert diagnosis.flags == () and not {"single-step-wins", "transfer-wins"} & set(diagnosis.made)
    diagnosis = diagnose([seen(iterative, 90), seen(_task("fgsm(eps=0.1)"), 10)])
    assert diagnosis.flags == () and "single-step-wins" not in diagnosis.made
    assert _names(seen(iterative, 90), seen(from_member, 10)) == ["transfer-wins"]
    assert _names(seen(iterative, 90), seen(single, 10)) == ["single-step-wins"], "in its own norm it is one"


def test_an_l2_attack_does_not_beat_an_linf_worst_case_of_its_radius(
    seen: Seen, l2_attack: Callable[..., NamedAttack]
) -> None:
    l2 = WhiteBox(l2_attack(0.1), "strict")
    worst = WorstCase(Bound("l2", 0.1), "full", (Stage(l2_attack(0.1)),))
    for strong, single in ((_worst(0.1), l2), (worst, PGD)):
        diagnosis = diagnose([seen(strong, 40), seen(single, 10)])
        assert diagnosis.flags == () and "strong-tier-beaten" not in diagnosis.made
    assert _names(seen(worst, 40), seen(l2, 39)) == ["strong-tier-beaten"]


# --- an ensemble ---


def test_a_training_that_has_not_converged_is_told_of_every_cell_of_its_ensemble(seen: Seen) -> None:
    def trained(task: Task, words: str | None) -> Result:
        cell, records = seen(task)
        return replace(cell, ensemble=replace(cell.ensemble, convergence=words)), records

    first, second = trained(PGD, "still rising"), trained(Clean(), "still rising")
    diagnosis = diagnose([first, second])
    (flag,) = diagnosis.flags
    assert (flag.name, flag.cells, flag.words) == (TRAINING, (first[0], second[0]), "still rising")
    assert flag.where == "digits · ours · training"
    assert _names(trained(PGD, "")) == [] and diagnose([trained(PGD, "")]).made[TRAINING] == 1
    silent = diagnose([trained(PGD, None)])  # a checkpoint of an older version
    assert not silent.flags and not silent.made.get(TRAINING) and TRAINING not in silent.summary


# --- what a reader gets ---


def test_no_flags_says_how_much_was_checked_and_what_could_not_be(seen: Seen) -> None:
    alone, both = diagnose([seen()]), diagnose([seen(), seen(_task("fgsm(eps=0.1)"))])
    assert re.match(r"no warnings from 9 checks on 1 cell; not possible in this run: .*single-step-wins", alone.summary)
    assert "single-step-wins" not in both.summary and "on 2 cells" in both.summary
    assert "nothing to check" in diagnose([]).summary


def test_a_flag_says_where_it_was_raised(seen: Seen) -> None:
    cell, records = seen(PAPER, seed=3, unmoved=True)
    diagnosis = diagnose([(cell, records)])
    (flag,) = diagnosis.flags
    assert flag.where == "digits · ours · PGD, ε=0.1 · paper · seed 3"
    assert diagnosis.words(cell) == f"unmoved: {flag.words}" and flag.advice == CHECKS["unmoved"].advice


def test_every_check_is_tested_here() -> None:
    assert {*ALONE, *PAIRS, "never-left", "not-alike", "strong-tier-beaten", TRAINING} == set(CHECKS)


def test_the_documentation_lists_every_flag_with_its_rule_and_advice() -> None:
    assert _documented(DOCS.read_text(encoding="utf-8").splitlines()) == {
        name: (check.rule, check.advice) for name, check in CHECKS.items()
    }


def _documented(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name.strip("`"): (rule, advice) for name, _, rule, advice in rows}
