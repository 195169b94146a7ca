"""The attack that evades a detector: it fools, and keeps the diversity that the detector watches."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import prepared
from benchmark.harness.seeding import seeded
from defenses.errors import BadInput
from defenses.members.diversity import log_ensemble_diversity
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]


@pytest.fixture
def forty(digits: Digits) -> Digits:
    return digits[0][:40], digits[1][:40]


def _by_hand(model: Ensemble, attack: NamedAttack, images: Tensor, labels: Tensor) -> Tensor:
    with prepared(model), seeded(0, attack.text, 0):
        return attack.backend()(AttackedModel(model), images.clone(), labels, attack.attack)


def test_the_evasive_attack_stays_in_ball_and_box(ensemble: Ensemble, forty: Digits) -> None:
    attack = parse_attack("evasive(eps=0.2,steps=10)")
    images = _by_hand(ensemble, attack, *forty)
    assert float((images - forty[0]).abs().max()) <= 0.2 + 1e-6
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert torch.equal(images, _by_hand(ensemble, attack, *forty))


def test_the_evasive_attack_fools_and_keeps_diversity_above_that_of_pgd(ensemble: Ensemble, forty: Digits) -> None:
    medians = {}
    for spec in ("pgd(eps=0.2,steps=50)", "evasive(eps=0.2,weight=0)", "evasive(eps=0.2)", "evasive(eps=0.2,weight=4)"):
        images = _by_hand(ensemble, parse_attack(spec), *forty)
        with torch.no_grad(), prepared(ensemble):
            logits = ensemble.member_logits(images)
            predicted = ensemble(images).argmax(-1)
        assert (predicted == forty[1]).float().mean() < 0.2, spec
        medians[spec] = float(log_ensemble_diversity(logits, predicted).median())
    pgd, unweighted, usual, heavy = medians.values()
    assert max(pgd, unweighted) < usual <= heavy


def test_the_evasive_attack_refuses_what_has_no_members(digits: Digits) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images = digits[0][:4]
    with pytest.raises(BadInput, match=r"^[^\n]*members of an ensemble[^\n]*$"):
        evaluate(plain, images, plain(images).argmax(-1), ["evasive(eps=0.1)"])
    for spec in ("evasive(eps=0.1,weight=-1)", "evasive(eps=0.1,weight=nan)", "evasive(eps=0.1,steps=0)"):
        with pytest.raises(BadInput, match=re.compile("weight|steps")):
            parse_attack(spec)


def test_what_the_members_are_asked_is_counted(ensemble: Ensemble, forty: Digits) -> None:
    images, labels = forty
    with prepared(ensemble):
        crafted = craft(ensemble, parse_attack("evasive(eps=0.1,steps=7)"), images, labels.numpy(), 0, seed=0)
        assert crafted.forwards == crafted.backwards == 7 * len(images)
        model = AttackedModel(ensemble)
        with torch.no_grad():
            assert torch.equal(model.member_logits(images), ensemble.member_logits(images))
