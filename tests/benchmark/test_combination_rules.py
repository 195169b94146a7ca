"""Attacks, judgement and evaluations follow the rule by which an ensemble combines its members."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import MORA
from benchmark.attacks.native.mora import mora
from benchmark.cli import run
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.transfer import Transfer
from benchmark.harness.acceleration import accelerated
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, subject_of
from defenses.checkpoints import load_checkpoint
from defenses.members.combination import RULES
from defenses.members.ensemble import Ensemble
from defenses.members.images import LabelledImages

COUNT = 40
ALL = Span(0, COUNT)


class MeanOfLogits(nn.Module):
    """Written by hand: the average of the members' logits, as other people's ensembles have it."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.first, self.second = ensemble.members
        self.register_buffer("mean", ensemble.mean)

    def forward(self, images: Tensor) -> Tensor:
        inputs = images - self.mean
        return (self.first(inputs) + self.second(inputs)) / 2


@pytest.fixture
def three(checkpoint: Path, robust_checkpoint: Path) -> Ensemble:
    """Three members, two of which tend to be right under attack."""
    (first, _), others = load_checkpoint(checkpoint).members, load_checkpoint(robust_checkpoint)
    return Ensemble([first, *others.members], others.mean).eval()


def _with(ensemble: Ensemble, rule: str) -> Ensemble:
    return Ensemble(list(ensemble.members), ensemble.mean, ensemble.std, rule).eval()


def _vote(member_logits: Tensor) -> NDArray[np.int64]:
    """Majorities in numpy; of tied classes the one with the largest sum of probabilities."""
    probabilities = torch.softmax(member_logits.double(), -1).numpy()
    winners = []
    for image in range(probabilities.shape[1]):
        votes = np.bincount(probabilities[:, image].argmax(-1), minlength=probabilities.shape[-1])
        tied = np.flatnonzero(votes == votes.max())
        winners.append(tied[probabilities[:, image, tied].sum(0).argmax()])
    return np.array(winners)


@pytest.mark.parametrize(
    "spec", ["pgd(eps=0.1)", "pgd@art(eps=0.1)", "bim@foolbox(eps=0.1)", "apgd-ce(eps=0.1,steps=10)"]
)
def test_an_attack_on_averaged_logits_is_the_attack_on_a_model_that_averages_them_by_hand(
    spec: str, robust_checkpoint: Path, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    ensemble = _with(load_checkpoint(robust_checkpoint), "logits")
    by_hand = MeanOfLogits(ensemble).eval()
    with prepared(ensemble), prepared(by_hand):
        ours, theirs = (craft(model, parse_attack(spec), images, labels.numpy(), 0, 0) for model in (ensemble, by_hand))
        predictions = [model(one.images).argmax(-1) for model, one in ((ensemble, ours), (by_hand, theirs))]
        usual = craft(_with(ensemble, "probabilities"), parse_attack(spec), images, labels.numpy(), 0, 0)
    same = (ours.images - theirs.images).abs().flatten(1).amax(1) < 1e-5
    assert same.all(), "image by image"
    assert torch.equal(*predictions) and 0 < (predictions[0] == labels).sum() < COUNT
    assert not torch.equal(ours.images, usual.images), "the mean of the probabilities is another model"


def test_the_table_of_an_ensemble_is_that_of_the_model_by_hand(
    robust_checkpoint: Path, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    ensemble = _with(load_checkpoint(robust_checkpoint), "logits")
    attacks = ["fgsm(eps=0.1)", "pgd(eps=0.1)", "mim(eps=0.1)"]
    ours, theirs = (evaluate(model, images, labels, attacks) for model in (ensemble, MeanOfLogits(ensemble)))
    assert ours["accuracy"].tolist() == theirs["accuracy"].tolist()


@pytest.mark.parametrize(
    "spec", ["pgd(eps=0.1)", "apgd-ce(eps=0.1,steps=10)", "square(eps=0.2,queries=50)", "mora(eps=0.1)"]
)
def test_an_ensemble_that_votes_is_attacked_and_judged_by_its_votes(
    spec: str, three: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]
    ensemble, records = _with(three, "votes"), {}
    table = evaluate(ensemble, images, labels, [spec], records=records, acceleration="none")
    (found,) = records.values()
    with torch.no_grad():
        assert (found["clean_prediction"] == _vote(ensemble.member_logits(images))).all()
    right = found["clean_prediction"].to_numpy() == labels.numpy()
    with prepared(ensemble):
        crafted = craft(
            ensemble, parse_attack(spec), images[right], labels.numpy()[right], 0, 0, rows=np.flatnonzero(right)
        )
        judged = _vote(ensemble.member_logits(crafted.images))
    assert (found["adversarial_prediction"][right] == judged).all()
    assert table["accuracy"].item() == pytest.approx(100 * (judged == labels.numpy()[right]).sum() / COUNT)
    assert (judged != labels.numpy()[right]).any(), "the attack has a direction to go"
    assert not found["zero_gradient"][right].any()


@pytest.mark.parametrize("rule", ["logits", "votes"])
def test_mora_follows_the_ensemble_unless_told_otherwise(
    rule: str, three: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:COUNT], digits[1][:COUNT]

    def attacked(average: str, combine: str) -> Tensor:
        model = AttackedModel(_with(three, combine).requires_grad_(False), draws=range(COUNT))
        return mora(model, images, labels, MORA(0.05, steps=5, targets=0, average=average))  # type: ignore[arg-type]

    followed = attacked("ensemble", rule)
    assert torch.equal(followed, attacked(rule, "probabilities"))
    assert not torch.equal(followed, attacked("probabilities", rule))
    assert torch.equal(attacked("probabilities", rule), attacked("ensemble", "probabilities"))


def test_cells_of_mora_are_named_as_before_and_come_back_as_they_were() -> None:
    assert MORA(0.03).settings() == {"eps": 0.03, "steps": 100, "targets": 9, "average": "probabilities"}
    for average in ("ensemble", "probabilities", "logits", "votes"):
        attack = MORA(0.03, average=average)  # type: ignore[arg-type]
        assert MORA.from_settings(attack.settings()) == attack
        assert parse_attack(f"mora(eps=0.03,average={average})").attack == attack
    assert parse_attack("mora(eps=0.03)").text == "mora@native(eps=0.03)"


@pytest.mark.parametrize("rule", RULES)
def test_the_fast_copy_predicts_by_the_same_rule(rule: str, three: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    ensemble, images = _with(three, rule), digits[0][:COUNT]
    said: list[str] = []
    with prepared(ensemble):
        fast = accelerated(ensemble, images, "folded", said.append)
    assert fast is not ensemble and not said
    assert isinstance(fast, Ensemble) and fast.combination == ensemble.combination
    torch.testing.assert_close(fast(images), ensemble(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_transfer_and_detection_judge_by_the_rule(rule: str, three: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    ensemble = _with(three, rule)
    test = LabelledImages((255 * digits[0][:COUNT]).round().to(torch.uint8), digits[1][:COUNT])
    material = Material(ensemble, None, test, COUNT, torch.device("cpu"), False, "folded")
    with subject_of(material) as subject:
        assert (subject.clean == ensemble(subject.images).detach().argmax(-1).numpy()).all()
        transfer = Transfer(parse_attack("fgsm(eps=0.2)"), 0).batch(subject, ALL, 0)
        predictions = np.stack([transfer[f"prediction_net{k}"] for k in (1, 2, 3)])
        if rule == "votes":
            agreed = (predictions[0] == predictions[1]) | (predictions[0] == predictions[2])
            assert agreed.any() and (transfer["prediction_ensemble"][agreed] == predictions[0][agreed]).all()
        detection = Detection(None, COUNT // 2).batch(subject, ALL, 0)
        prediction = ensemble(subject.images).detach().double().exp().numpy()
    np.testing.assert_allclose(detection["confidence"], prediction.max(-1), rtol=1e-4)
    np.testing.assert_allclose(detection["entropy"], (prediction * np.log(prediction)).sum(-1), atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_run_holds_an_ensemble_under_several_rules(here: Path, robust_checkpoint: Path) -> None:
    specs = [str(robust_checkpoint), *(f"{robust_checkpoint}(combine={rule})" for rule in ("logits", "votes"))]
    options = ["--attack", "fgsm(eps=0.1)", "--samples", "30", "--tier", "strict", "--keep-images", "--out", "a"]
    chosen = [word for spec in specs for word in ("--defense", spec)]
    assert run(["run", "demo", *chosen, *options]) == 0
    table = pd.read_csv(here / "a" / "table.csv")
    table = table[table["attack"] == "fgsm"]
    assert sorted(table["defense"]) == ["robust", "robust (logits)", "robust (votes)"]
    trained = dict(zip(table["defense"], table["training"], strict=True))
    assert trained["robust (votes)"] == trained["robust"] + ", combines votes"
    assert run(["run", "demo", *chosen, *options]) == 0, "the same cells are found again"
    assert run(["verify", "a", *(word for spec in specs for word in ("--model", spec))]) == 0
