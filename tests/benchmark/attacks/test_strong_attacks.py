"""The strong attacks do what they are described as, each checked against a computation of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.native.ascent import pgd
from benchmark.attacks.native.losses import LOSSES
from benchmark.attacks.native.mora import GAP, leverage, mixed_loss, reference_loss, runner_up_leverage, smooth
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import prepared
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.combination import Logits, Probabilities, Votes
from defenses.members.ensemble import Ensemble

EPS = 0.05


@pytest.fixture
def robust(robust_checkpoint: Path) -> Ensemble:
    return load_checkpoint(robust_checkpoint)


# --- losses ---


def test_losses_equal_a_computation_in_numpy_with_the_class_left_out() -> None:
    generator = np.random.default_rng(0)
    logits = np.log(generator.dirichlet(np.ones(10) * 0.2, size=64))  # log-probabilities: all below 0
    labels = generator.integers(0, 10, 64)
    margin = np.array([np.delete(row, y).max() - row[y] for row, y in zip(logits, labels, strict=True)])
    ordered = -np.sort(-logits, axis=1)
    ratio = margin / (ordered[:, 0] - ordered[:, 2])
    entropy = -(logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(64), labels]
    given = torch.from_numpy(logits), torch.from_numpy(labels)
    assert np.allclose(LOSSES["margin"](*given).numpy(), margin)
    assert np.allclose(LOSSES["dlr"](*given).numpy(), ratio)
    assert np.allclose(LOSSES["ce"](*given).numpy(), entropy)
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gap = np.array([np.delete(row, y).max() - row[y] for row, y in zip(chance, labels, strict=True)])
    assert np.allclose(LOSSES["pma"](*given).numpy(), gap)


def test_the_probability_margin_of_an_ensemble_worked_out_by_hand() -> None:
    """Members say (.7, .2, .1) and (.1, .8, .1): the mean is (.4, .5, .1)."""
    members = torch.tensor([[[0.7, 0.2, 0.1]], [[0.1, 0.8, 0.1]]], dtype=torch.float64).log()
    output = smooth(members, Probabilities()).expand(3, 3)
    found = LOSSES["pma"](output, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(found, torch.tensor([0.1, -0.1, 0.4], dtype=torch.float64))


def test_the_gradient_of_the_probability_margin_is_right_also_where_the_label_is_certain() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(6) % 5
    assert torch.autograd.gradcheck(lambda given: LOSSES["pma"](given, labels), logits)
    certain = torch.tensor([[30.0, 1.0, 0.0, -1.0]])  # p_y rounds to 1 in float32
    gradients = []
    for kind in (torch.float32, torch.float64):
        point = certain.to(kind).requires_grad_()
        gradients.append(torch.autograd.grad(LOSSES["pma"](point, torch.tensor([0])).sum(), point)[0])
    assert gradients[0][0, 0] < 0
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-5, atol=0)


class _Opposed(nn.Module):
    """Class 1 gains from brightness, class 2 loses three times as much: cross-entropy falls with it, PMA rises.

    Probabilities (.5, .3, .2) at the clean image, brightness 0.5: ∂CE = .3 · 1 − .2 · 3 = −.3, and with m = −.3 the
    mean slope, ∂(p₁ − p₀) = .3 (1 − m) − .5 (0 − m) = .24.
    """

    def forward(self, images: Tensor) -> Tensor:
        brightness = images.flatten(1).mean(1) - 0.5
        base = torch.tensor([0.5, 0.3, 0.2]).log()
        return base + torch.stack([0 * brightness, brightness, -3 * brightness], dim=1)


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        ("pgd(eps=0.01,restarts=2)", -1),
        ("pgd(eps=0.01,loss=pma)", 1),
        ("apgd(eps=0.01,steps=10,loss=ce)", -1),
        ("apgd(eps=0.01,steps=10,loss=pma)", 1),
        ("apgd(eps=0.01,steps=10,loss=margin)", 1),
    ],
)
def test_an_ascent_follows_the_loss_that_it_is_asked_for(spec: str, way: int) -> None:
    named = parse_attack(spec)
    images = torch.full((3, 1, 4, 4), 0.5)
    model = AttackedModel(_Opposed(), draws=range(3), clean=images)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    named.backend()(model, images.clone(), torch.zeros(3, dtype=torch.int64), named.attack)
    steps = [part for part in seen if part.shape == images.shape]
    assert (steps[-1].mean() - 0.5).sign() == way
    assert (steps[-1] - 0.5).abs().max() == pytest.approx(0.01, abs=1e-6)


def test_apgd_on_cross_entropy_is_apgd_ce(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    found = []
    for spec in ("apgd-ce(eps=0.05,steps=10)", "apgd(eps=0.05,steps=10,loss=ce)"):
        named = parse_attack(spec)
        torch.manual_seed(0)  # both draw their start from the same number
        with prepared(ensemble):
            found.append(named.backend()(AttackedModel(ensemble), digits[0][:10], digits[1][:10], named.attack))
    assert torch.equal(*found)


@pytest.mark.parametrize("loss", ["margin", "dlr", "pma"])
def test_a_margin_has_a_gradient_where_logits_are_log_probabilities(loss: str) -> None:
    logits = torch.log_softmax(torch.tensor([[9.0, 2.0, 1.0, 0.5]]), -1).requires_grad_()
    (gradient,) = torch.autograd.grad(LOSSES[loss](logits, torch.tensor([0])).sum(), logits)
    assert gradient[0, 0] < 0 < gradient[0, 1]


# --- PGD with restarts ---


def test_one_start_without_early_success_is_the_library_pgd(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    """Same start, same steps, an eps too small to fool: torchattacks' PGD arrives at the same point."""
    import torchattacks

    images, labels = digits[0][:20], digits[1][:20]
    named = parse_attack("pgd@native(eps=0.001)")
    with prepared(ensemble):
        right = ensemble(images).argmax(-1) == labels
        images, labels = images[right], labels[right]
        ours = craft(ensemble, named, images, labels.numpy(), 0, 0).images
        model = AttackedModel(ensemble, draws=[(0, named.text, row) for row in range(len(images))])
        start = model.uniform(torch.arange(len(images)), images.shape[1:], 0)
        library = torchattacks.PGD(AttackedModel(ensemble), eps=0.001, alpha=0.0001, steps=10, random_start=False)
        moved = (images + 0.001 * (2 * start - 1)).clamp(0, 1)
        theirs = moved.clone()
        for _ in range(10):  # the library's own step, from our start; its ball is around what it is given
            library.steps = 1
            stepped = library(theirs, labels)
            theirs = torch.minimum(torch.maximum(stepped, images - 0.001), images + 0.001).clamp(0, 1)
    assert (ours - theirs).abs().max() < 1e-6
    assert (ours - images).abs().max() <= 0.001 + 1e-7


def test_what_happens_to_an_image_does_not_depend_on_its_batch(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:30], digits[1][:30]
    named = parse_attack(f"pgd(eps={EPS},steps=10,step_size=0.01,restarts=2)")
    rows = np.array([3, 11, 25])
    with prepared(robust):
        whole = craft(robust, named, images, labels.numpy(), 0, 0).images[rows]
        part = craft(robust, named, images[rows], labels.numpy()[rows], 0, 0, rows=rows).images
    assert torch.allclose(whole, part, atol=1e-6)


def test_restarts_are_spent_on_survivors_alone(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    spent, left = {}, {}
    for restarts in (1, 4):
        attack = parse_attack(f"pgd@native(eps={EPS},steps=10,step_size=0.01,restarts={restarts})").attack
        with prepared(robust):
            model = AttackedModel(robust, draws=range(60))  # both begin from the same points
            left[restarts] = int((robust(pgd(model, images, labels, attack)).argmax(-1) == labels).sum())
        spent[restarts] = model.backwards
    assert 0 < left[4] <= left[1] < 60
    assert spent[1] < spent[4] <= spent[1] + 3 * 10 * left[1]


def test_an_image_that_is_fooled_is_left_alone(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images = digits[0][:30]
    with prepared(ensemble):
        model = AttackedModel(ensemble)
        pgd(model, images, (ensemble(images).argmax(-1) + 1) % 10, parse_attack("pgd@native(eps=0.001)").attack)
    assert (model.forwards, model.backwards) == (30, 30)  # one look: every label is wrong from the start


def test_a_targeted_start_counts_as_done_when_the_target_is_predicted(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    records: dict[str, object] = {}
    evaluate(ensemble, images, labels, ["pgd@native(eps=0.5,steps=40,step_size=0.05,targeted=true)"], records=records)
    (frame,) = records.values()
    hit = (frame["adversarial_prediction"] == frame["target"])[frame["attacked"]]  # type: ignore[index]
    assert hit.mean() > 0.8


@pytest.mark.parametrize("library", ["torchattacks", "art", "foolbox"])
def test_a_library_refuses_restarts_it_does_not_have(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor], library: str
) -> None:
    with pytest.raises(BadInput, match="use pgd@native"):
        evaluate(ensemble, digits[0][:5], digits[1][:5], [f"pgd@{library}(eps=0.1,loss=margin)"])


def test_restarts_and_losses_choose_the_native_attack() -> None:
    assert parse_attack("pgd(eps=0.1)").library == "torchattacks"
    assert parse_attack("pgd(eps=0.1,restarts=2)").library == "native"
    assert parse_attack("pgd(eps=0.1,loss=dlr)").library == "native"


# --- MORA ---


def test_leverage_is_the_label_s_entry_of_the_gradient_of_the_mean_probability() -> None:
    torch.manual_seed(0)
    members = torch.randn(3, 8, 5, dtype=torch.float64)
    labels = members.mean(0).argmax(-1)
    members[:, torch.arange(8), labels] += 3  # all right, so that all count
    point = members.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(smooth(point, Probabilities())[torch.arange(8), labels].sum(), point)
    entry = gradient[:, torch.arange(8), labels]
    assert torch.allclose(leverage(members, labels), entry / entry.sum(0))


def test_members_that_are_wrong_have_no_leverage_unless_all_are() -> None:
    members = torch.tensor([[[2.0, 0, 0]], [[0, 2.0, 0]], [[0, 0, 2.0]]]).expand(3, 2, 3)
    weights = leverage(members, torch.tensor([0, 1]))
    assert weights[:, 0].tolist() == [1, 0, 0]
    assert weights[:, 1].tolist() == [0, 1, 0]
    nobody = leverage(members[:2], torch.tensor([2, 2]))
    assert torch.allclose(nobody, torch.full((2, 2), 0.5))


def test_the_loss_of_mora_has_a_gradient_where_the_average_is_saturated() -> None:
    """Three members, each sure by 200: the averaged cross-entropy is flat in float32, MORA's loss is not."""
    members = torch.zeros(3, 1, 4)
    members[..., 0] = 200.0
    point = members.clone().requires_grad_()
    labels = torch.tensor([0])
    (flat,) = torch.autograd.grad(nn.functional.nll_loss(smooth(point, Probabilities()), labels), point)
    (steep,) = torch.autograd.grad(mixed_loss(point, smooth(point, Probabilities()), labels, None, 0.5).sum(), point)
    assert flat.abs().max() == 0
    assert steep.abs().max() > 1e-6


def test_the_reference_weights_members_by_the_runner_up_at_a_temperature_of_a_fifth() -> None:
    """Three classes, label 0, runner-up 1. At z/0.2 the members' logits are (5, 0, −∞) and (10, 0, −∞): p₁ is
    1/(1+e⁵) and 1/(1+e¹⁰). A third member is wrong and counts nothing."""
    members = torch.tensor([[[1.0, 0, -99]], [[2.0, 0, -99]], [[0.0, 1, -99]]], dtype=torch.float64)
    first, second = (1 / (1 + np.exp(gap)) for gap in (5, 10))
    entries = np.array([first * (1 - first), second * (1 - second), 0])
    found = runner_up_leverage(members, smooth(members, Probabilities()), torch.tensor([0]))
    assert np.allclose(found[:, 0].numpy(), entries / entries.sum())


def test_the_loss_of_the_reference_worked_out_in_numpy() -> None:
    """One factor for all members, that of the largest gap; the output is one more member; targets have plain
    cross-entropy."""
    members = np.array([[[40.0, 20.0, 0.0]], [[3.0, 2.0, 0.0]]])  # gaps 20 and 1: the factor is 1/2 for both
    chance = np.exp(members) / np.exp(members).sum(-1, keepdims=True)
    output = np.log(chance.mean(0))
    tamed = np.concatenate([members / 2, output[None]])
    sharp = np.exp(tamed / 0.2 - (tamed / 0.2).max(-1, keepdims=True))
    rival = (sharp / sharp.sum(-1, keepdims=True))[..., 1]
    weights = rival * (1 - rival) / (rival * (1 - rival)).sum(0)
    gap = output[0, 0] - output[0, 1]
    mixed = 0.75 * output / gap + 0.25 * (weights[..., None] * tamed).sum(0)
    wanted = np.log(np.exp(mixed).sum()) - mixed[0, 0]
    given = torch.from_numpy(members), torch.from_numpy(output), torch.tensor([0])
    assert reference_loss(*given, None, 0.25).item() == pytest.approx(wanted)
    assert reference_loss(*given, torch.tensor([2]), 0.25).item() == pytest.approx(output[0, 2])


def test_the_variant_of_mora_changes_no_identity_of_the_other() -> None:
    usual, other = parse_attack("mora(eps=0.03)"), parse_attack("mora(eps=0.03,variant=reference)")
    assert "variant" not in usual.settings() and parse_attack("mora(eps=0.03,variant=derived)").text == usual.text
    assert other.settings()["variant"] == "reference" and other.text == "mora@native(eps=0.03,variant=reference)"
    assert type(other.attack).from_settings(other.settings()) == other.attack


def test_votes_are_counted_alike_however_sure_a_member_is() -> None:
    members = torch.tensor([[[100.0, 0, 0]], [[0.0, 1, 0]], [[0.0, 2, 0]]])
    assert smooth(members, Probabilities()).argmax(-1).item() == 1
    assert smooth(members, Logits()).argmax(-1).item() == 0
    votes = smooth(members, Votes()).exp()
    assert votes.argmax(-1).item() == 1
    assert votes[0, 1] == pytest.approx(2 / 3, abs=0.01)
    assert GAP == 10


def test_mora_breaks_a_saturated_ensemble_that_pgd_leaves_standing(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    """Logits times 400: float32 has no gradient of the averaged cross-entropy left."""

    class Saturated(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: Tensor) -> Tensor:
            return 400 * self.inner(inputs)

    members = [Saturated(member) for member in ensemble.members]
    saturated = Ensemble(members, ensemble.mean, ensemble.std)
    images, labels = digits[0][:40], digits[1][:40]
    table = evaluate(saturated, images, labels, ["pgd(eps=0.2)", "mora(eps=0.2,steps=40,targets=0)"])
    weak, strong = table["accuracy"]
    assert strong <= weak / 2


def test_mora_takes_a_single_network_for_an_ensemble_of_one(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    table = evaluate(ensemble.member(0), digits[0][:30], digits[1][:30], ["mora(eps=0.2,steps=20,targets=1)"])
    plain = nn.Sequential(*[ensemble.member(0)])
    again = evaluate(plain, digits[0][:30], digits[1][:30], ["mora(eps=0.2,steps=20,targets=1)"])
    assert table["accuracy"][0] == again["accuracy"][0] < 50


# --- reference AutoAttack ---


def test_autoattack_is_pyautoattack_image_by_image(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    import pyautoattack

    images, labels = digits[0][:12], digits[1][:12]
    records: dict[str, object] = {}
    named = parse_attack(f"autoattack(eps={EPS})")
    evaluate(robust, images, labels, [named.text], records=records)
    frame = records[named.text]
    right = torch.tensor(frame["attacked"].to_numpy())  # type: ignore[index]
    with prepared(robust):
        reference = pyautoattack.AutoAttack(robust, eps=EPS, seed=0)
        _, predicted = reference.run_standard_evaluation(images[right], labels[right], batch_size=12)
    direct = (predicted == labels[right]).numpy()
    assert direct.sum() > 0
    assert direct.tolist() == frame["correct"][frame["attacked"]].tolist()  # type: ignore[index]


def test_autoattack_leaves_the_debugger_s_trace_function_alone(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    def trace(*event: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        evaluate(ensemble, digits[0][:3], digits[1][:3], ["autoattack(eps=0.9)"])
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "spec", ["apgd-ce(eps=0.08,steps=20)", "apgd-t(eps=0.08,steps=10)", "square(eps=0.3,queries=150)"]
)
def test_libraries_agree_about_the_parts_of_autoattack(
    robust: Ensemble, digits: tuple[Tensor, Tensor], spec: str
) -> None:
    name, _, parameters = spec.partition("(")
    images, labels = digits[0][:60], digits[1][:60]
    attacks = [spec, f"{name}@torchattacks({parameters}"]
    table = evaluate(robust, images, labels, attacks)
    assert abs(table["accuracy"][0] - table["accuracy"][1]) <= 10
    assert table["accuracy"][0] < table["clean_accuracy"][0] - 5
    assert (table["unmoved"] == 0).all()


def test_survivors_of_the_reference_that_come_back_unmoved_are_no_sign_of_a_broken_attack(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    row = evaluate(ensemble, digits[0][:20], digits[1][:20], ["apgd-ce(eps=0.0001,steps=5)"]).iloc[0]
    assert row["accuracy"] == row["clean_accuracy"]
    assert row["unmoved"] == 0
    assert row["flags"] == ""


@pytest.mark.parametrize(
    "spec",
    ["apgd-ce(eps=0.1)", "apgd-t(eps=0.1)", "fab-t(eps=0.1,steps=5)", "square(eps=0.1,queries=20)", "mora(eps=0.1)"],
)
def test_attacks_leave_the_global_generators_as_they_were(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor], spec: str
) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    evaluate(ensemble, digits[0][:4], digits[1][:4], [spec])
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


# --- the cascade ---


def test_the_cascade_says_what_it_needs(
    robust: Ensemble, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    with pytest.raises(BadInput, match=r"constraints\.txt -e .\.\[cascade\]"):
        evaluate(robust, digits[0][:20], digits[1][:20], ["cascade(eps=0.01)"])


def test_the_cascade_is_at_least_as_strong_as_its_first_part(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    pytest.importorskip("numba", reason="numba, which foolbox's boundary walk needs, is not installed")
    images, labels = digits[0][:6], digits[1][:6]
    first = f"pgd@native(eps={EPS},steps=20,step_size={EPS / 10},restarts=3)"
    records: dict[str, object] = {}
    table = evaluate(robust, images, labels, [first, f"cascade(eps={EPS},walks=1)"], records=records)
    assert table["accuracy"][1] <= table["accuracy"][0]
    assert table["out_of_ball"][1] == 0
