"""Objectives are the paper's formulas: by value, by gradient, and by what minimising them leads to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from defenses.errors import BadInput, RunFailed
from defenses.members.diversity import log_ensemble_diversity
from defenses.objectives import ADP, JSD, Baseline, Defense, LabelSmoothing, Terms, checked, total
from defenses.theory import confidence_from_alpha

OBJECTIVES = [
    Baseline(),
    ADP(2, 0),
    ADP(0, 0.5),
    ADP(2, 0.5),
    ADP(2, 0.5, temperature=10),
    LabelSmoothing(0.6),
    LabelSmoothing(1),
    JSD(1),
]


def _random(members: int = 3, images: int = 6, classes: int = 10, scale: float = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = scale * torch.randn(members, images, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (images,), generator=generator)


def _probability(logits: Tensor) -> np.ndarray:
    raised = np.exp(logits.numpy())
    return np.asarray(raised / raised.sum(-1, keepdims=True))


@pytest.mark.parametrize("defense", OBJECTIVES, ids=str)
def test_gradients_are_those_of_finite_differences(defense: Defense) -> None:
    logits, labels = _random()
    assert torch.autograd.gradcheck(lambda z: total(defense.objective(z, labels)), logits.requires_grad_())


@pytest.mark.parametrize("defense", OBJECTIVES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_gaps_of_a_thousand_give_finite_losses_and_gradients(defense: Defense, dtype: torch.dtype) -> None:
    random, labels = _random(images=40)
    winner_takes_all = torch.nn.functional.one_hot(labels, 10).expand(3, -1, -1) * 1000.0
    one_is_wrong = winner_takes_all.clone()
    one_is_wrong[0] = one_is_wrong[0].roll(1, -1)
    for logits in (500 * random, winner_takes_all, one_is_wrong):
        values = logits.to(dtype).detach().requires_grad_()
        loss = total(defense.objective(values, labels))
        (gradient,) = torch.autograd.grad(loss, values)
        assert gradient.isfinite().all()


def test_ece_sums_cross_entropy_over_members_and_averages_over_images() -> None:
    logits, labels = _random()
    true = _probability(logits)[:, np.arange(6), labels]
    assert total(Baseline().objective(logits, labels)).item() == pytest.approx(-np.log(true).sum(0).mean())


def test_adp_is_ece_minus_weighted_entropy_minus_weighted_diversity() -> None:
    logits, labels = _random()
    probability = _probability(logits)
    mean = probability.mean(0)
    losses = []
    for n, label in enumerate(labels.tolist()):
        rows = np.delete(probability[:, n], label, axis=1)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        led = np.linalg.slogdet(rows @ rows.T + 1e-6 * np.eye(3))[1]
        entropy = -(mean[n] * np.log(mean[n])).sum()
        losses.append(-np.log(probability[:, n, label]).sum() - 2 * entropy - 0.5 * led)
    terms = ADP(2, 0.5).objective(logits, labels)
    assert list(terms) == ["ece", "entropy", "led"]
    assert total(terms).item() == pytest.approx(np.mean(losses))


def test_a_weight_of_zero_removes_its_term() -> None:
    logits, labels = _random()
    assert list(ADP(2, 0).objective(logits, labels)) == ["ece", "entropy"]
    assert total(ADP(0, 0).objective(logits, labels)) == total(Baseline().objective(logits, labels))


def test_temperature_divides_the_logits_of_every_term() -> None:
    logits, labels = _random()
    warm = total(ADP(2, 0.5, temperature=4).objective(logits, labels))
    assert warm == total(ADP(2, 0.5).objective(logits / 4, labels))
    assert warm != total(ADP(2, 0.5).objective(logits, labels))


def test_label_smoothing_is_cross_entropy_against_the_smoothed_label() -> None:
    logits, labels = _random()
    wanted = np.full((6, 10), 0.4 / 9)
    wanted[np.arange(6), labels] = 0.6
    expected = -(wanted * np.log(_probability(logits))).sum(-1).sum(0).mean()
    assert total(LabelSmoothing(0.6).objective(logits, labels)).item() == pytest.approx(expected)


def test_label_smoothing_of_one_is_the_baseline() -> None:
    logits, labels = _random()
    expected = total(Baseline().objective(logits, labels))
    torch.testing.assert_close(total(LabelSmoothing(1).objective(logits, labels)), expected)


def test_jsd_rewards_divergence_by_lambda() -> None:
    logits, labels = _random()
    probability = _probability(logits)
    mean = probability.mean(0)
    divergence = (probability * np.log(probability / mean)).sum(-1).mean(0)
    terms = JSD(3).objective(logits, labels)
    np.testing.assert_allclose(terms["jsd"], -3 * divergence, atol=1e-12)


def _minimise(defense: Defense, start: Tensor, label: int = 0) -> Tensor:
    """Probabilities (K, L) after direct minimisation of the loss over free logits of one image."""
    logits = start.clone().requires_grad_()
    options = {"tolerance_grad": 1e-10, "tolerance_change": 1e-14, "line_search_fn": "strong_wolfe"}
    optimiser = torch.optim.LBFGS([logits], max_iter=150, **options)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = total(defense.objective(logits, torch.tensor([label])))
        value.backward()
        return value

    for _ in range(4):  # beginning again clears a line search that stalled
        optimiser.step(loss)
    return logits.detach().softmax(-1)[:, 0]


@pytest.mark.parametrize(
    ("members", "classes", "published"), [(3, 10, 0.588), (5, 10, 0.754), (8, 10, 0.903), (3, 100, 0.369)]
)
def test_minimising_adp_without_diversity_lands_on_theorem_2(members: int, classes: int, published: float) -> None:
    start = 0.3 * torch.randn(members, 1, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = _minimise(ADP(2, 0), start).mean(0)
    assert mean[0].item() == pytest.approx(published, abs=6e-4)
    assert mean[0].item() == pytest.approx(confidence_from_alpha(members, classes, 2), abs=1e-5)
    torch.testing.assert_close(mean[1:], (1 - mean[0]).expand(classes - 1) / (classes - 1), atol=1e-5, rtol=0)


def test_minimising_adp_with_diversity_lands_on_corollary_1() -> None:
    confidence = confidence_from_alpha(3, 10, 2)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        start = 0.3 * torch.randn(3, 1, 10, dtype=torch.float64, generator=generator)
        found = _minimise(ADP(2, 0.5), start, label=4)
        led = log_ensemble_diversity(found.log()[:, None], torch.tensor([4]))
        assert led.item() == pytest.approx(0, abs=1e-5)
        np.testing.assert_allclose(found[:, 4], confidence, atol=1e-5)
        private = (found > 0.05) & (torch.arange(10) != 4)
        assert private.sum(0).tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1, 1], "every wrong class belongs to one member"
        assert private.sum(1).tolist() == [3, 3, 3]
        np.testing.assert_allclose(found[private], 3 * (1 - confidence) / 9, atol=1e-5)
        np.testing.assert_allclose(found[(~private) & (torch.arange(10) != 4)], 0, atol=1e-5)


def test_label_smoothing_trains_to_its_target_on_every_member() -> None:
    start = torch.randn(3, 1, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(_minimise(LabelSmoothing(0.6), start)[:, 0], 0.6, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ADP(-1, 0), "alpha is -1"),
        (lambda: ADP(2, -0.5), "beta is -0.5"),
        (lambda: ADP(math.inf, 0), "alpha is inf"),
        (lambda: ADP(2, 0.5, temperature=0), "temperature is 0"),
        (lambda: LabelSmoothing(0), "target of label-smoothing is 0"),
        (lambda: LabelSmoothing(1.1), "target of label-smoothing is 1.1"),
        (lambda: JSD(-1), "lambda is -1"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(build: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def test_more_members_than_wrong_classes_are_refused_only_where_diversity_is_asked_for() -> None:
    ADP(2, 0.5).check(9, 10)
    ADP(2, 0).check(10, 10)
    with pytest.raises(BadInput, match=r"10 members cannot .* 9 wrong classes.*beta=0"):
        ADP(2, 0.5).check(10, 10)


@dataclass(frozen=True)
class Broken(Defense):
    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return {"fine": logits.sum((0, 2)) * 0, "spoiled": torch.log(logits.sum((0, 2)) * 0)}


def test_a_loss_that_is_not_finite_names_the_term_and_only_that() -> None:
    logits, labels = _random()
    with pytest.raises(RunFailed, match=r"term spoiled is -?inf") as caught:
        total(Broken().objective(logits, labels))
    assert "fine" not in str(caught.value)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (lambda logits: logits.sum(), "gives a Tensor; it must give a dict of named loss terms"),
        (lambda logits: {}, "gives a dict; it must give a dict of named loss terms"),
        (
            lambda logits: {"fine": logits.sum((0, 2)), "all": logits.mean()},
            r"term 'all' has shape \(\); it must have a",
        ),
        (lambda logits: {"each": logits.sum(2)}, r"term 'each' has shape \(\d, \d+\); .*sum over the members"),
        (lambda logits: {"one": 3.0}, "term 'one' has type float"),
        (lambda logits: {"cut": logits.detach().sum((0, 2))}, "has no gradient"),
    ],
)
def test_terms_that_are_not_a_value_per_image_are_refused_by_name(
    terms: Callable[[Tensor], Terms], message: str
) -> None:
    logits, labels = _random()
    with pytest.raises(BadInput, match=f"the objective of Broken.*{message}"):
        checked(terms(logits.requires_grad_()), Broken(), len(labels))


@pytest.mark.parametrize("terms", [{"a": torch.ones(3, 8)}, {"a": torch.ones(8), "b": torch.ones(4)}])
def test_a_loss_of_terms_that_are_not_a_value_per_image_is_refused(terms: Terms) -> None:
    with pytest.raises(BadInput, match="a value per image each; here they have shapes: a "):
        total(terms)


def test_a_defense_without_an_objective_says_so() -> None:
    logits, labels = _random()
    with pytest.raises(BadInput, match="Defense defines neither objective nor forward"):
        Defense().objective(logits, labels)
