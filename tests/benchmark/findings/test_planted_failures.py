"""Planted failures: a model or an attack with a known defect raises the flag of that defect; sound ones raise none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark import datasets, evaluate
from benchmark.attacks import ATTACKS
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import Attack
from benchmark.findings.checks import CHECKS
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]
EPS = 0.1
MUCH_INK = 0.342


def _flags(table: pd.DataFrame) -> list[set[str]]:
    """The names of the flags of each row."""
    return [{part.partition(":")[0] for part in row.split("; ") if part} for row in table["flags"]]


def _raised(model: nn.Module, digits: Digits, *attacks: str, tier: str = "strict", count: int = 100) -> set[str]:
    found = _flags(evaluate(model, digits[0][:count], digits[1][:count], list(attacks), tier=tier))
    names = set().union(*found)
    assert names <= set(CHECKS)
    return names


# --- sound evaluations ---

ORDINARY = [
    *(f"{attack}(eps={eps})" for attack in ("fgsm", "bim", "pgd", "mim") for eps in (0.05, 0.1, 0.3)),
    "pgd(eps=0.5)",
    "cw(c=5,steps=20,lr=0.05,abort_early=false)",
    "ead(c=5,steps=20)",
    "jsma(gamma=0.2,eps=0.2)",
]


@pytest.fixture(scope="module")
def networks() -> list[nn.Module]:
    """Two small networks trained in the ordinary way, and one trained on adversarial images."""
    return [_trained(0), _trained(1), _trained(2, eps=0.1)]


def _trained(seed: int, eps: float = 0.0) -> nn.Module:
    train = datasets.load("digits").train
    images, labels = train.images(), train.labels
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip
        optimiser = torch.optim.Adam(model.parameters())
        batches = -(-len(labels) // 64)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, epochs=12, steps_per_epoch=batches)
        for _ in range(12):
            for rows in torch.randperm(len(labels)).split(64):
                batch = _ascent(model, images[rows], labels[rows], eps).clamp(0, 1) if eps else images[rows]
                optimiser.zero_grad()
                functional.cross_entropy(model(batch), labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
    return model.eval()


@pytest.fixture
def plain(networks: list[nn.Module]) -> nn.Module:
    return networks[0]


@pytest.mark.parametrize("tier", ["strict", "paper"])
@pytest.mark.parametrize("kind", ["network", "ensemble", "robust network"])
def test_sound_attacks_on_an_ordinary_model_raise_no_flag(
    kind: str, tier: str, networks: list[nn.Module], digits: Digits
) -> None:
    models = {"network": networks[0], "ensemble": Ensemble(networks[:2]), "robust network": networks[2]}
    table = evaluate(models[kind], digits[0][:200], digits[1][:200], ORDINARY, tier=tier)
    assert table["clean_accuracy"].iloc[0] > 95, "the model has learnt something"
    assert table.set_index("parameters").loc["eps=0.3", "accuracy"].min() < 20, "and the attacks are attacks"
    assert table.loc[table["flags"] != "", ["attack", "parameters", "accuracy", "flags"]].to_dict("records") == []


# --- models with a known defect ---


class Changed(nn.Module):
    """A model whose input or output goes through a function."""

    def __init__(
        self,
        inner: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda images: images,
        after: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, images: Tensor) -> Tensor:
        return self.after(self.inner(self.before(images)))


def _only_some(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change the images with much ink: a few in a hundred, and none of the first eight."""
    return torch.where(images.mean((1, 2, 3), keepdim=True) > MUCH_INK, change(images), images)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, lambda logits: 1000 * logits),
        (None, lambda logits: 30 * torch.softmax(100 * logits, -1)),
        (None, lambda logits: torch.log_softmax(logits, -1).exp().clamp(1e-3, 1 - 1e-3).log()),
        (lambda images: (images * 16).round() / 16, None),
        (lambda images: images.detach(), None),
        (lambda images: _only_some(images, Tensor.detach), None),
        (None, lambda logits: logits.detach()),
    ],
    ids=["huge logits", "saturated probabilities", "clamp", "quantised", "detached", "partly detached", "output"],
)
def test_a_model_that_stops_the_gradient_is_flagged(
    before: Callable[[Tensor], Tensor] | None,
    after: Callable[[Tensor], Tensor] | None,
    plain: nn.Module,
    digits: Digits,
) -> None:
    functions = {"before": before, "after": after}
    model = Changed(plain, **{name: function for name, function in functions.items() if function})
    assert "zero-gradient" in _raised(model, digits, f"bim(eps={EPS})")


def test_probabilities_instead_of_logits_are_refused(plain: nn.Module, digits: Digits) -> None:
    with pytest.raises(BadInput, match="gives probabilities"):
        _raised(Changed(plain, after=lambda logits: torch.softmax(100 * logits, -1)), digits, f"bim(eps={EPS})")


def test_a_model_that_draws_its_output_is_flagged_until_the_attack_averages_draws(
    plain: nn.Module, digits: Digits
) -> None:
    noisy = Changed(plain, lambda images: images + 0.1 * torch.randn_like(images))
    assert "randomised-output" in _raised(noisy, digits, f"bim(eps={EPS})")
    assert "randomised-output" not in _raised(noisy, digits, f"bim(eps={EPS},eot=5)")


def test_a_model_that_draws_some_of_its_outputs_is_flagged(plain: nn.Module, digits: Digits) -> None:
    def noisy(images: Tensor) -> Tensor:
        return _only_some(images, lambda chosen: chosen + 0.02 * torch.randn_like(chosen))

    assert torch.equal(noisy(digits[0][:8]), digits[0][:8]), "the first look at the model does not see it"
    assert "randomised-output" in _raised(Changed(plain, noisy), digits, f"bim(eps={EPS})")


def test_a_false_gradient_is_betrayed_by_an_attack_without_one(plain: nn.Module, digits: Digits) -> None:
    """Rounding with a gradient made up for it: alive everywhere, and pointing backwards."""

    def rounded(images: Tensor) -> Tensor:
        return (images * 16).round().div(16).detach() - (images - images.detach())

    attacks = [f"bim(eps={EPS})", f"pgd(eps={EPS})", f"square(eps={EPS},queries=300)"]
    found = _raised(Changed(plain, rounded), digits, *attacks)
    assert {"query-only-wins", "wrong-way"} <= found and "zero-gradient" not in found


def test_a_false_gradient_is_betrayed_by_accuracy_where_there_can_be_none(plain: nn.Module, digits: Digits) -> None:
    model = Changed(plain, lambda images: images.detach() - (images - images.detach()))
    assert "not-at-chance" in _raised(model, digits, "bim(eps=0.5)")


# --- attacks with a known defect ---


@dataclass(frozen=True)
class Planted(Attack):
    """A defect inside an eps-ball."""

    eps: float

    @property
    def bound(self) -> Bound:
        return Bound("linf", self.eps)


def _ascent(model: nn.Module, images: Tensor, labels: Tensor, step: float) -> Tensor:
    images = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(model(images), labels), images)
    return (images + step * gradient.sign()).detach()


def does_nothing(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return images


def moves_one_image(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return torch.cat([_ascent(model, images[:1], labels[:1], attack.eps).clamp(0, 1), images[1:]])


def leaves_the_ball(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return _ascent(model, images, labels, 2 * attack.eps).clamp(0, 1)


def leaves_the_box(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return _ascent(model, images, labels, attack.eps)


def takes_the_label_for_a_target(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return _ascent(model, images, labels, -attack.eps).clamp(0, 1)


def gives_nan(model: nn.Module, images: Tensor, labels: Tensor, attack: Planted) -> Tensor:
    return images / 0 * 0


def _attack(function: Callable[..., Tensor]) -> type[Attack]:
    @dataclass(frozen=True)
    class Here(Planted):
        backends: ClassVar[dict[str, str]] = {"native": f"{__name__}:{function.__name__}"}

    return Here


DEFECTS = {
    "does-nothing": (does_nothing, "unmoved"),
    "moves-one-image": (moves_one_image, "unmoved"),
    "leaves-the-ball": (leaves_the_ball, "out-of-ball"),
    "leaves-the-box": (leaves_the_box, "out-of-box"),
    "takes-the-label-for-a-target": (takes_the_label_for_a_target, "wrong-way"),
    "gives-nan": (gives_nan, "not-finite"),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks of this module, registered for the time of a test."""
    monkeypatch.setattr(ATTACKS, "_targets", dict(ATTACKS._targets))
    for name, (function, _) in DEFECTS.items():
        ATTACKS.register(name, _attack(function))


@pytest.mark.parametrize("tier", ["strict", "paper"])
@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name, (_, flag) in DEFECTS.items()])
def test_an_attack_with_a_defect_is_flagged_by_its_name(
    name: str, flag: str, tier: str, plain: nn.Module, digits: Digits, planted: None
) -> None:
    found = _raised(plain, digits, f"{name}(eps={EPS})", tier=tier)
    also = {"unmoved"} if flag == "not-finite" else set()  # what is not finite is replaced by the clean image
    assert found == {flag} | also


def test_an_attack_without_a_gradient_does_not_beat_sound_ones(plain: nn.Module, digits: Digits) -> None:
    assert _raised(plain, digits, f"bim(eps={EPS})", f"square(eps={EPS},queries=300)") == set()


def test_an_iterative_attack_that_is_stuck_is_betrayed_by_a_single_step(plain: nn.Module, digits: Digits) -> None:
    stuck = evaluate(plain, *(part[:100] for part in digits), [f"fgsm(eps={EPS})", f"pgd(eps={EPS},step_size=1e-6)"])
    assert _flags(stuck) == [set(), {"single-step-wins"}]


class _Unsure(nn.Module):
    """The same predictions with a hundredth of the confidence, and so of the gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images) / 100


def test_an_attack_whose_constant_is_too_small_to_begin_is_told_from_one_that_failed(
    plain: nn.Module, digits: Digits
) -> None:
    part = [values[:50] for values in digits]
    plain_row = evaluate(plain, *part, ["ead(c=1,steps=50)"]).iloc[0]
    small, scaled = (
        row for _, row in evaluate(_Unsure(plain), *part, ["ead(c=1,steps=50)", "ead(c=100,steps=50)"]).iterrows()
    )
    assert "never-left" not in plain_row["flags"] and plain_row["accuracy"] < 90
    assert small["accuracy"] == small["clean_accuracy"] and "never took a step on" in small["flags"]
    assert "never-left" not in scaled["flags"] and scaled["accuracy"] < 90


def test_too_few_steps_are_betrayed_by_more(plain: nn.Module, digits: Digits) -> None:
    short, long = f"pgd(eps={EPS},steps=2,step_size=0.01)", f"pgd(eps={EPS},steps=20,step_size=0.01)"
    assert _flags(evaluate(plain, *(part[:100] for part in digits), [short, long])) == [{"not-converged"}, set()]


def test_a_larger_ball_that_is_not_searched_is_betrayed_by_a_smaller_one(plain: nn.Module, digits: Digits) -> None:
    specs = ["bim(eps=0.1)", "pgd(eps=0.1)", "pgd(eps=0.2,step_size=1e-4)"]
    assert "not-monotone" in _flags(evaluate(plain, *(part[:100] for part in digits), specs))[2]


def test_the_paper_s_labels_push_wrong_images_back_to_right(digits: Digits) -> None:
    """A linear model that is often wrong, in a ball so large that only what is pushed back is right."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(3):
        optimiser.zero_grad()
        functional.cross_entropy(model(digits[0][200:]), digits[1][200:]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert _raised(model, digits, "bim(eps=0.2)", tier="paper", count=200) == {"predicted-label-floor"}
    assert _raised(model, digits, "bim(eps=0.2)", tier="strict", count=200) == set()
