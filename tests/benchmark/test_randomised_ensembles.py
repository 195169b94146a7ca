"""A randomised ensemble is judged by its expected accuracy: exact, in every table, interval and test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark.api import evaluate
from benchmark.cli import run
from benchmark.evaluations import worst_case
from benchmark.findings import sequential
from benchmark.findings.statistics import accuracy_interval, mcnemar, mean_interval, paired_difference, paired_test
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

COUNT = 60


@pytest.fixture
def drawn(checkpoint: Path, robust_checkpoint: Path) -> Ensemble:
    """A member that falls to small perturbations with probability 0.3, and one that does not."""
    weak, strong = load_checkpoint(checkpoint), load_checkpoint(robust_checkpoint)
    members = [weak.members[0], strong.members[0]]
    return Ensemble(members, strong.mean, combine="random(p=0.3x0.7)").eval()


def test_accuracies_are_expectations_over_the_draw(drawn: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    records: dict[str, pd.DataFrame] = {}
    table = evaluate(drawn, images, labels, ["pgd(eps=0.1)"], records=records)
    (found,) = records.values()
    with torch.no_grad():
        right = (drawn.member_logits(images).argmax(-1) == labels).double().numpy()
    np.testing.assert_allclose(found["p_clean"], np.array([0.3, 0.7]) @ right)
    assert table["clean_accuracy"].item() == pytest.approx(100 * found["p_clean"].mean(), abs=1e-3)
    assert table["accuracy"].item() == pytest.approx(100 * found["p_correct"].mean(), abs=1e-3)
    values = set(found["p_correct"].round(6))
    assert values <= {0, 0.3, 0.7, 1} and values & {0.3, 0.7}, "some images fool one member alone"
    assert (found["p_correct"] <= found["p_clean"]).all(), "an attacker may leave the image as it is"
    low, high = mean_interval(found["p_correct"])
    assert (table["ci_low"].item(), table["ci_high"].item()) == pytest.approx((100 * low, 100 * high), abs=1e-3)
    assert table["ci_low"].item() < table["accuracy"].item() < table["ci_high"].item()


def test_a_certain_draw_is_the_member_that_is_drawn(drawn: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    alone = Ensemble([drawn.members[1]], drawn.mean).eval()
    certain = Ensemble(list(drawn.members), drawn.mean, combine="random(p=0x1)").eval()
    attacks = ["pgd(eps=0.1)", "fgsm(eps=0.1)"]
    one, other = (evaluate(model, images, labels, attacks)["accuracy"].tolist() for model in (alone, certain))
    assert one == other


def test_the_worst_case_is_the_smallest_expected_correctness_over_the_attacks(
    drawn: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:20], digits[1][:20]
    single: dict[str, pd.DataFrame] = {}
    evaluate(drawn, images, labels, ["fgsm(eps=0.1)", "pgd(eps=0.1)", "mim(eps=0.1)"], records=single)
    worst: dict[str, pd.DataFrame] = {}
    evaluate(drawn, images, labels, ["pgd(eps=0.1)"], suite="quick", records=worst)
    (found,) = worst.values()
    assert (found["p_correct"] <= np.minimum.reduce([one["p_correct"] for one in single.values()])).all()
    stayed = found["stages"].map(len).to_numpy()
    assert (stayed[found["p_correct"] > 0] == stayed.max()).all(), "an image stays while any member is right"


def test_tier_strong_ends_with_the_attack_for_randomised_ensembles(
    drawn: Ensemble, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worst_case.SUITES, "quick", ("fgsm({ball})",))
    images, labels, records = digits[0][:20], digits[1][:20], dict[str, pd.DataFrame]()
    averaged = Ensemble(list(drawn.members), drawn.mean).eval()
    for model, count in ((drawn, 2), (averaged, 1)):
        evaluate(model, images, labels, ["pgd(eps=0.1)"], suite="quick", records=records)
        (found,) = records.values()
        assert found["stages"].map(len).max() == count
        assert found["broken_by"].str.startswith("arc").any() == (model is drawn)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_plans_that_attack_from_the_rule_of_the_ensemble(
    here: Path, robust_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worst_case.SUITES, "quick", ("fgsm({ball})",))
    specs = {"Drawn": f"{robust_checkpoint}(combine=random)", "Mean": str(robust_checkpoint)}
    chosen = [word for label, spec in specs.items() for word in ("--defense", f"{label}={spec}")]
    options = ["--attack", "fgsm(eps=0.1)", "--samples", "20", "--tier", "strong", "--out", "s"]
    assert run(["run", "demo", *chosen, *options]) == 0
    table = pd.read_csv(here / "s" / "strong.csv")
    names = table.groupby("defense")["attack"].agg(lambda column: [text.partition("(")[0] for text in column])
    assert names["Drawn"] == ["fgsm", "arc"] and names["Mean"] == ["fgsm"]


def test_restarts_lower_the_expected_accuracy(drawn: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    """An image that one member alone still gets right is started again, and its best start is kept."""
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    records: dict[str, pd.DataFrame] = {}
    attacks = [f"pgd@native(eps=0.1,steps=5,step_size=0.04,restarts={count})" for count in (1, 4)]
    evaluate(drawn, images, labels, attacks, records=records)
    once, often = records.values()
    assert often["p_correct"].sum() < once["p_correct"].sum()


# --- intervals and tests ---


def test_counts_keep_clopper_pearson_and_mcnemar() -> None:
    one, other = np.array([1, 1, 1, 0, 1, 1, 0, 1.0]), np.array([0, 1, 0, 0, 0, 0, 0, 0.0])
    assert mean_interval(one) == accuracy_interval(6, 8)
    assert paired_test(one, other) == mcnemar(one, other)


def test_the_interval_of_probabilities_covers_their_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    for shares in ([0.4, 0.3, 0.3], [0.05, 0.1, 0.85]):
        mean = float(np.dot([0, 0.5, 1], shares))
        inside = [
            low <= mean <= high
            for low, high in (mean_interval(random.choice([0, 0.5, 1], 100, p=shares)) for _ in range(300))
        ]
        assert np.mean(inside) >= 0.95


def test_the_test_of_probabilities_finds_a_difference_and_rarely_one_that_is_none() -> None:
    random = np.random.default_rng(0)
    same = [paired_test(random.choice([0, 0.5, 1], 100), random.choice([0, 0.5, 1], 100)) for _ in range(300)]
    assert np.mean(np.array(same) < 0.05) <= 0.05
    one, other = random.choice([0.5, 1], 100), random.choice([0, 0.5], 100)
    assert paired_test(one, other) < 1e-6 and paired_test(one, one) == 1
    difference, low, high = paired_difference(one, other)
    assert low < difference < high and low > 0.3


def test_a_number_of_values_that_is_fixed_makes_the_interval_narrower() -> None:
    values = np.random.default_rng(0).choice([0, 0.5, 1], 500)
    wide, narrow = (sequential.interval(values, fixed=fixed) for fixed in (False, True))
    assert narrow.high - narrow.low < wide.high - wide.low


# --- from files, on the command line ---


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_compares_a_randomised_ensemble_and_keeps_its_images(here: Path, robust_checkpoint: Path) -> None:
    specs = [str(robust_checkpoint), f"{robust_checkpoint}(combine=random(p=0.25x0.75))"]
    options = ["--attack", "fgsm(eps=0.1)", "--samples", "40", "--tier", "strict", "--keep-images", "--out", "a"]
    chosen = [word for spec in specs for word in ("--defense", spec)]
    assert run(["run", "demo", *chosen, *options]) == 0
    table = pd.read_csv(here / "a" / "table.csv").set_index(["defense", "attack"])
    assert table.loc[("robust (random(p=0.25x0.75))", "fgsm"), "training"].endswith("combines random(p=0.25x0.75)")
    accuracy = table.loc[("robust (random(p=0.25x0.75))", "fgsm"), "accuracy"]
    assert accuracy * 40 / 100 % 0.25 == pytest.approx(0, abs=1e-3)
    assert run(["verify", "a", *(word for spec in specs for word in ("--model", spec))]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_comparison_with_a_randomised_ensemble_names_its_test(here: Path, robust_checkpoint: Path) -> None:
    drawn = f"Drawn={robust_checkpoint}(combine=random)"
    words = [
        "compare",
        drawn,
        "--against",
        f"Mean={robust_checkpoint}",
        "--preset",
        "demo",
        "--attack",
        "fgsm(eps=0.1)",
    ]
    assert run([*words, "--samples", "30", "--tier", "strict", "--out", "c"]) == 0
    assert "betting test" in (here / "c" / "comparison.md").read_text(encoding="utf-8")


def test_an_audit_of_a_randomised_ensemble_is_refused(
    here: Path, robust_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"{robust_checkpoint}(combine=random)"
    assert run(["audit", spec, "--dataset", "digits", "--claim", "clean=90", "--samples", "20"]) == 2
    assert "randomised" in capsys.readouterr().err


def test_more_probabilities_than_members_are_bad_input(robust_checkpoint: Path) -> None:
    with pytest.raises(BadInput, match="one each"):
        load_checkpoint(f"{robust_checkpoint}(combine=random(p=0.2x0.2x0.6))")
