"""Theorem 2 in both directions and Corollary 1 give the paper's figures."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from defenses.errors import BadInput
from defenses.theory import alpha_from_confidence, confidence_from_alpha, optimal_predictions


@pytest.mark.parametrize(
    ("members", "classes", "confidence"), [(3, 10, 0.588), (5, 10, 0.754), (8, 10, 0.903), (3, 100, 0.369)]
)
def test_alpha_two_leads_to_the_known_confidences(members: int, classes: int, confidence: float) -> None:
    assert confidence_from_alpha(members, classes, 2) == pytest.approx(confidence, abs=5e-4)


def test_the_papers_imagenet_example_needs_alpha_0_61() -> None:
    assert alpha_from_confidence(5, 1000, 0.9) == pytest.approx(0.61, abs=0.005)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 2.0, 50.0, 1e6])
@pytest.mark.parametrize(("members", "classes"), [(1, 2), (3, 10), (20, 100)])
def test_the_two_directions_undo_each_other(members: int, classes: int, alpha: float) -> None:
    confidence = confidence_from_alpha(members, classes, alpha)
    assert 1 / classes < confidence <= 1
    if confidence < 1 - 1e-12:
        assert alpha_from_confidence(members, classes, confidence) == pytest.approx(alpha, rel=1e-3)


def test_more_regularisation_means_less_confidence() -> None:
    found = [confidence_from_alpha(3, 10, alpha) for alpha in (0.5, 1, 2, 4, 8)]
    assert found == sorted(found, reverse=True)


def test_corollary_1_gives_each_member_its_own_wrong_classes() -> None:
    rows = optimal_predictions(3, 10, 2, label=4)
    confidence = confidence_from_alpha(3, 10, 2)
    np.testing.assert_allclose(rows.sum(1), 1)
    np.testing.assert_allclose(rows[:, 4], confidence)
    wrong = np.delete(rows, 4, axis=1)
    assert ((wrong > 0).sum(0) == 1).all() and ((wrong > 0).sum(1) == 3).all()
    np.testing.assert_allclose(wrong[wrong > 0], 3 * (1 - confidence) / 9)
    np.testing.assert_allclose(rows.mean(0)[1], (1 - confidence) / 9)


def test_a_partition_may_be_chosen() -> None:
    rows = optimal_predictions(2, 5, 1, label=0, partition=[[1, 4], [2, 3]])
    assert (rows[0] > 0).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alpha_from_confidence(0, 10, 0.9), "members is 0"),
        (lambda: alpha_from_confidence(3, 1, 0.9), "classes is 1"),
        (lambda: alpha_from_confidence(3, 10, 1.0), "confidence 1 is out of range"),
        (lambda: alpha_from_confidence(3, 10, 0.1), "confidence 0.1 is out of range"),
        (lambda: confidence_from_alpha(3, 10, -2), "alpha -2 is out of range"),
        (lambda: confidence_from_alpha(3, 10, float("nan")), "alpha nan is out of range"),
        (lambda: optimal_predictions(4, 10, 2), "4 does not divide 9"),
        (lambda: optimal_predictions(0, 10, 2), "members is 0"),
        (lambda: optimal_predictions(3, 10, 2, label=10), "label is 10"),
        (lambda: optimal_predictions(3, 10, 2, partition=[[1], [2], [3]]), "3 sets of 3"),
    ],
)
def test_impossible_questions_are_refused(call: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()


def test_alpha_is_computed_without_loading_torch_or_scipy() -> None:
    program = (
        "import sys; from defenses.theory import alpha_from_confidence; alpha_from_confidence(5, 1000, 0.9);"
        "print(*(name for name in ('torch', 'scipy') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
