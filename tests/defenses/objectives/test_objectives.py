"""Objectives are the paper's formulas: by value, by gradient, and by what minimising them leads to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from defenses.errors import BadInput, RunFailed
from defenses.members.diversity import log_ensemble_diversity
from defenses.members.ensemble import Ensemble
from defenses.objectives import (
    ADP,
    JSD,
    Baseline,
    Defense,
    LabelSmoothing,
    Place,
    Terms,
    checked,
    several_members,
    total,
)
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
    assert list(ADP(0, 0.5).objective(logits, labels)) == ["ece", "led"]
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
    assert list(terms) == ["ece", "jsd"]
    np.testing.assert_allclose(terms["jsd"], -3 * divergence, atol=1e-12)
    np.testing.assert_allclose(terms["ece"], -np.log(probability[:, np.arange(6), labels]).sum(0), atol=1e-12)


@pytest.mark.parametrize("defense", OBJECTIVES, ids=str)
def test_an_objective_is_separable_when_the_loss_is_the_sum_of_the_members_alone(defense: Defense) -> None:
    logits, labels = _random()
    alone = sum(total(defense.objective(member[None], labels)).item() for member in logits)
    together = total(defense.objective(logits, labels)).item()
    assert defense.separable == (together == pytest.approx(alone, rel=1e-9))
    assert next(iter(defense.objective(logits, labels))) == "ece", "the first term of every objective here"


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
        (lambda: ADP(2, 0.5, temperature=math.inf), "temperature is inf"),
        (lambda: LabelSmoothing(0), "target of label-smoothing is 0"),
        (lambda: LabelSmoothing(1.1), "target of label-smoothing is 1.1"),
        (lambda: JSD(-1), "lambda is -1"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(build: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def test_a_weight_may_be_zero_or_small() -> None:
    logits, labels = _random()
    for weight in (0, 0.1):
        assert total(JSD(weight).objective(logits, labels)).isfinite() and ADP(weight, weight).alpha == weight


def test_more_members_than_wrong_classes_are_refused_only_where_diversity_is_asked_for() -> None:
    ADP(2, 0.5).check(9, 10)
    ADP(2, 0).check(10, 10)
    with pytest.raises(BadInput, match=r"10 members cannot .* 9 wrong classes.*use at most 9 members or beta=0"):
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


def test_one_image_is_enough_to_make_a_term_guilty() -> None:
    with pytest.raises(RunFailed, match="term spoiled is nan"):
        total({"fine": torch.ones(3), "spoiled": torch.tensor([1.0, math.nan, 1.0])})


def test_finite_terms_whose_sum_overflows_are_all_named() -> None:
    with pytest.raises(RunFailed, match="term one and other is inf"):
        total({"one": torch.full((2,), 3e38), "other": torch.full((2,), 3e38)})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (lambda logits: logits.sum(), "gives a Tensor; it must give a dict of named loss terms"),
        (lambda logits: {}, "gives a dict; it must give a dict of named loss terms"),
        (
            lambda logits: {"fine": logits.sum((0, 2)), "all": logits.mean()},
            r"term 'all' has shape \(\); it must have one value per image",
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


def test_sound_terms_are_given_back_and_one_of_them_may_be_a_constant() -> None:
    logits, labels = _random()
    terms = {"loss": logits.requires_grad_().sum((0, 2)), "constant": torch.ones(6)}
    assert checked(terms, Broken(), len(labels)) is terms


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"a": torch.ones(3, 8)}, r"a \(3, 8\)"),
        ({"a": torch.ones(8), "b": torch.ones(4)}, r"a \(8,\), b \(4,\)"),
    ],
)
def test_a_loss_of_terms_that_are_not_a_value_per_image_is_refused(terms: Terms, told: str) -> None:
    with pytest.raises(BadInput, match=f"one value per image; the shapes are: {told}$"):
        total(terms)


def test_a_defense_without_an_objective_says_so() -> None:
    logits, labels = _random()
    with pytest.raises(BadInput, match="Defense defines neither objective nor forward"):
        Defense().objective(logits, labels)


def test_several_members_are_asked_for_with_the_reason() -> None:
    several_members("trs", 2, "compares members")
    with pytest.raises(BadInput, match="trs compares members, so it needs at least 2 members; members is 1"):
        several_members("trs", 1, "compares members")


def test_a_defense_that_says_nothing_is_plain_training_from_scratch() -> None:
    defense = Defense()
    assert not (defense.separable or defense.makes_images or defense.attacks or defense.boosts)
    assert Baseline().cost == 1
    assert not Place(0, 10).from_checkpoint
    assert defense.at(Place(0, 10), _two_members(), torch.Generator()) is defense


# --- the loss of several processes ---


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process one of two; what the other adds to each sum is given in its order."""

    def stand(*parts: list[float]) -> None:
        waiting = [torch.tensor(part) for part in parts]
        monkeypatch.setattr("defenses.training.distributed.world_size", lambda: 2)
        monkeypatch.setattr("defenses.training.distributed.summed", lambda values: values + waiting.pop(0))

    return stand


def test_the_losses_of_two_processes_average_to_that_of_the_whole_batch(beside: Callable[..., None]) -> None:
    """Three images here and one there: the whole loss is (1 + 2 + 3 + 10) / 4."""
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    beside([10.0, 1.0])
    here = total({"half": values / 2, "other half": values / 2})
    beside([6.0, 3.0])
    there = total({"whole": torch.tensor([10.0])})
    assert (here.item() + there.item()) / 2 == pytest.approx(4.0)
    here.backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad / 2, torch.full((3,), 1 / 4))


def test_a_process_stops_at_a_loss_that_another_one_cannot_compute(beside: Callable[..., None]) -> None:
    beside([math.nan, 1.0], [0.0, 1.0])
    with pytest.raises(RunFailed, match="term spoiled is nan"):
        total({"fine": torch.ones(3), "spoiled": torch.ones(3)})


# --- the training step, by hand ---


def _two_members() -> Ensemble:
    """Linear, without weights yet: every class is equally likely."""
    members = [nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)) for _ in range(2)]
    for member in members:
        nn.init.zeros_(member[1].weight)
    return Ensemble(members)


@dataclass(frozen=True)
class Relabelling(Baseline):
    """Trains on the other one of two classes."""

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return images, 1 - labels


@pytest.mark.parametrize(("defense", "sign"), [(Baseline(), 1), (Relabelling(), -1)])
def test_a_step_goes_down_the_gradient_of_the_mean_loss_of_its_own_batch(defense: Defense, sign: int) -> None:
    """∂/∂W of the cross-entropy is (p − e_y) xᵀ with p = (½, ½): for y = 0, rows −½ x and +½ x, and its mean here."""
    ensemble = _two_members()
    images = torch.tensor([[1.0, 2.0], [3.0, 0.0]]).reshape(2, 1, 1, 2)
    labels = torch.tensor([0, 0])
    optimiser = torch.optim.SGD(ensemble.parameters(), lr=1)
    for weight in ensemble.parameters():
        weight.grad = torch.full_like(weight, 100.0)  # of an earlier step
    result = defense.step(ensemble, optimiser, images, labels, torch.Generator())
    wanted = sign * torch.tensor([[1.0, 0.5], [-1.0, -0.5]])
    for weight in ensemble.parameters():
        torch.testing.assert_close(weight.detach(), wanted)
    assert result.logits.shape == (2, 2, 2) and not result.logits.any(), "those before the step"
    assert result.labels.tolist() == ([0, 0] if sign == 1 else [1, 1])
    torch.testing.assert_close(result.terms["ece"].detach(), torch.full((2,), 2 * math.log(2)))


def test_terms_are_checked_in_training_and_may_be_asked_for_without_gradients() -> None:
    @dataclass(frozen=True)
    class Mean(Defense):
        def objective(self, logits: Tensor, labels: Tensor) -> Terms:
            return {"mean": logits.mean()}

    images, labels = torch.ones(3, 1, 1, 2), torch.tensor([0, 1, 0])
    with pytest.raises(BadInput, match=r"the objective of Mean: term 'mean' has shape \(\)"):
        Mean().forward(_two_members(), images, labels)
    with torch.no_grad():
        logits, terms = Baseline().forward(_two_members(), images, labels)
    assert logits.shape == (2, 3, 2) and terms["ece"].tolist() == pytest.approx([2 * math.log(2)] * 3)
