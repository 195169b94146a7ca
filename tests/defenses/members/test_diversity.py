"""Diversity measures agree with plain float64 arithmetic, and stay finite where that arithmetic gives up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from defenses.members.diversity import (
    ensemble_entropy,
    jensen_shannon,
    log_ensemble_diversity,
    log_mean_probability,
    non_maximal_predictions,
    without_label,
)

Array = NDArray[np.float64]


def _random(members: int, images: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(members * classes)
    logits = 3 * torch.randn(members, images, classes, generator=generator, dtype=dtype)
    return logits, torch.randint(classes, (images,), generator=generator)


def _softmax(logits: Tensor) -> Array:
    raised = np.exp(logits.double().numpy())
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _led(logits: Tensor, labels: Tensor) -> Array:
    """The definition, word by word: probabilities, entry deleted, divided by the norm, determinant."""
    found = []
    for n, label in enumerate(labels.tolist()):
        rows = np.delete(_softmax(logits)[:, n], label, axis=1)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        found.append(np.linalg.slogdet(rows @ rows.T + 1e-6 * np.eye(len(rows)))[1])
    return np.array(found)


@pytest.mark.parametrize(("members", "classes"), [(1, 10), (2, 3), (3, 10), (5, 10), (8, 10), (4, 100)])
def test_led_is_the_log_determinant_of_the_normalised_wrong_class_probabilities(members: int, classes: int) -> None:
    logits, labels = _random(members, 50, classes)
    np.testing.assert_allclose(log_ensemble_diversity(logits, labels), _led(logits, labels), atol=1e-9)


@pytest.mark.parametrize(("members", "floor"), [(2, -13.12), (3, -26.53), (5, -53.65), (8, -94.63)])
def test_identical_members_have_the_lowest_diversity_there_is(members: int, floor: float) -> None:
    logits, labels = _random(1, 20, 10)
    led = log_ensemble_diversity(logits.expand(members, -1, -1), labels)
    np.testing.assert_allclose(led, floor, atol=0.005)


def test_float32_logits_reach_the_floor_within_a_tenth_of_a_nat() -> None:
    logits, labels = _random(1, 200, 10, torch.float32)
    np.testing.assert_allclose(log_ensemble_diversity(logits.expand(5, -1, -1), labels), -53.65, atol=0.1)


def test_members_with_disjoint_wrong_classes_have_diversity_zero() -> None:
    logits = torch.full((3, 1, 10), -60.0)
    for member in range(3):
        logits[member, 0, 1 + 3 * member : 4 + 3 * member] = 0.0
    assert log_ensemble_diversity(logits, torch.tensor([0])).item() == pytest.approx(0, abs=1e-5)


def test_led_does_not_depend_on_the_true_logit_nor_on_the_order_of_members() -> None:
    logits, labels = _random(4, 30, 10)
    moved = logits.clone()
    moved[:, torch.arange(30), labels] += 40 * torch.rand(4, 30, dtype=torch.float64)
    torch.testing.assert_close(log_ensemble_diversity(moved, labels), log_ensemble_diversity(logits, labels))
    torch.testing.assert_close(log_ensemble_diversity(logits.flip(0), labels), log_ensemble_diversity(logits, labels))


def test_the_label_is_deleted_and_the_order_kept() -> None:
    values = torch.arange(10.0).reshape(2, 1, 5)
    assert without_label(values, torch.tensor([2])).tolist() == [[[0, 1, 3, 4]], [[5, 6, 8, 9]]]


def test_wrong_class_predictions_have_length_one_even_where_probabilities_underflow() -> None:
    logits = torch.zeros(2, 1, 4)
    logits[0, 0] = torch.tensor([1000.0, 2.0, 1.0, 0.0])
    vectors = non_maximal_predictions(logits, torch.tensor([0]))
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(2, 1))
    expected = torch.tensor([2.0, 1.0, 0.0]).exp()
    torch.testing.assert_close(vectors[0, 0], expected / expected.norm())


def test_the_mean_probability_its_entropy_and_the_js_divergence_agree_with_numpy() -> None:
    logits, _ = _random(3, 40, 10)
    probability = _softmax(logits)
    mean = probability.mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    np.testing.assert_allclose(log_mean_probability(logits), np.log(mean), atol=1e-12)
    np.testing.assert_allclose(ensemble_entropy(logits), entropy, atol=1e-12)
    divergence = (probability * np.log(probability / mean)).sum(-1).mean(0)
    np.testing.assert_allclose(jensen_shannon(logits), divergence, atol=1e-12)


def test_members_sure_of_different_classes_have_js_divergence_log_k() -> None:
    logits = 1000 * torch.eye(4)[:, None, :]
    assert jensen_shannon(logits).item() == pytest.approx(math.log(4), rel=1e-6)
    assert jensen_shannon(logits[:1].expand(4, -1, -1)).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_gaps_of_a_thousand_give_finite_values_and_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (1000 * (2 * torch.rand(3, 64, 10, generator=generator, dtype=dtype) - 1)).requires_grad_()
    labels = torch.randint(10, (64,), generator=generator)
    for values in (log_ensemble_diversity(logits, labels), ensemble_entropy(logits), jensen_shannon(logits)):
        assert values.isfinite().all()
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert gradient.isfinite().all()


def test_logits_that_are_not_numbers_give_a_diversity_that_is_not_a_number() -> None:
    logits, labels = _random(3, 4, 10)
    logits[1, 2, 5] = math.nan
    assert log_ensemble_diversity(logits, labels).isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize("members", [2, 5, 8])
def test_the_floor_of_the_diversity_is_that_of_the_eigenvalues(members: int) -> None:
    """Identical members have a Gram matrix of ones: eigenvalues K + 1e-6 and, K − 1 times, 1e-6."""
    logits, labels = _random(1, 20, 10)
    led = log_ensemble_diversity(logits.expand(members, -1, -1), labels)
    np.testing.assert_allclose(led, math.log(members + 1e-6) + (members - 1) * math.log(1e-6), rtol=0, atol=4e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_measure_has_the_precision_of_the_logits(dtype: torch.dtype) -> None:
    """So that it can be added to the other terms of a loss, whatever it is computed in."""
    logits, labels = _random(3, 4, 10, dtype)
    found = (log_ensemble_diversity(logits, labels), ensemble_entropy(logits), jensen_shannon(logits))
    assert [values.dtype for values in found] == [dtype] * 3
    assert [values.shape for values in found] == [(4,)] * 3
