"""Attacks given in Python: objects of the libraries are taken over, callables come with their bound."""

from __future__ import annotations

from typing import Any

import foolbox
import numpy as np
import pandas as pd
import pytest
import torch
import torchattacks
from art.attacks import evasion
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn

from benchmark import Bound, evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.library_attacks import library_classes
from benchmark.attacks.objects import as_attack
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
ART = PyTorchClassifier(MODEL, nn.CrossEntropyLoss(), input_shape=(1, 8, 8), nb_classes=10, clip_values=(0, 1))
FGSM_L2 = "foolbox:L2FastGradientAttack(eps=0.5)"
GIVEN: dict[str, Any] = {
    "torchattacks:DIFGSM(eps=0.1,steps=7)": torchattacks.DIFGSM(MODEL, eps=0.1, steps=7),
    "torchattacks:APGD(eps=0.5,norm=l2,rho=0.6)": torchattacks.APGD(MODEL, eps=0.5, norm="L2", rho=0.6),
    "torchattacks:GN(std=0.2,bound=l2:0.5)": (torchattacks.GN(MODEL, std=0.2), Bound("l2", 0.5)),
    "torchattacks:GN(std=0.2,bound=none)": (torchattacks.GN(MODEL, std=0.2), None),
    "art:ProjectedGradientDescent(eps=0.2,norm=1,max_iter=3)": evasion.ProjectedGradientDescent(
        ART, norm=1, eps=0.2, max_iter=3
    ),
    "art:DeepFool(max_iter=5)": evasion.DeepFool(ART, max_iter=5),
    "art:BasicIterativeMethod(eps=0.2,targeted=true)": evasion.BasicIterativeMethod(ART, eps=0.2, targeted=True),
    "foolbox:DDNAttack(steps=9)": foolbox.attacks.DDNAttack(steps=9),
    FGSM_L2: (foolbox.attacks.L2FastGradientAttack(), Bound("l2", 0.5)),
    "foolbox:GaussianBlurAttack(distance=linf)": foolbox.attacks.GaussianBlurAttack(distance=foolbox.distances.linf),
}


@pytest.mark.parametrize("text", GIVEN)
def test_an_object_is_the_attack_of_its_spec(text: str) -> None:
    assert as_attack(GIVEN[text]) == parse_attack(text)


def test_an_object_aims_at_targets_where_it_is_told_to() -> None:
    attack = torchattacks.PGD(MODEL, eps=0.1)
    attack.set_mode_targeted_by_label(quiet=True)
    assert as_attack(attack) == parse_attack("torchattacks:PGD(eps=0.1,targeted=true)")
    attack.set_mode_targeted_random(quiet=True)
    with pytest.raises(BadInput, match="set_mode_targeted_by_label"):
        as_attack(attack)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (foolbox.attacks.LinfPGD(), "Bound"),
        (foolbox.attacks.HopSkipJumpAttack(init_attack=foolbox.attacks.L2DeepFoolAttack()), "init_attack"),
        (torchattacks.GN(MODEL), "bound"),
        (torchattacks.VANILA(MODEL), "clean images"),
        (torchattacks.PGDRS(MODEL), "noise_type"),
        ((torchattacks.PGD(MODEL), 0.1), "Bound"),
        (lambda model, images, labels: images, "Bound"),
        ((lambda model, images, labels, how: images, None), "how"),
        (3, "callable"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(given: Any, word: str) -> None:
    with pytest.raises(BadInput) as refusal:
        as_attack(given)
    assert word in str(refusal.value)


def test_objects_of_all_classes_are_taken_over_or_refused_in_words() -> None:
    for one in library_classes("torchattacks").values():
        if not one.left_out:
            given = (one.target(MODEL), None if one.bound_facts.kind != "radius" else Bound("linf", 1.0))
            if one.name.startswith("PGDRS"):  # its object does not keep its noise
                with pytest.raises(BadInput, match=one.name):
                    as_attack(given)
            else:
                assert as_attack(given).name == one.name


def test_a_function_with_its_bound_and_a_class_that_knows_it_are_evaluated(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    def brighter(model: nn.Module, images: Tensor, labels: Tensor, by: float = 0.2) -> Tensor:
        return images + by

    class Sign:
        bound = Bound("linf", 0.1)

        def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            images = images.clone().requires_grad_()
            nn.functional.cross_entropy(model(images), labels).backward()
            assert images.grad is not None
            return (images + 0.1 * images.grad.sign()).detach().clamp(0, 1)

    records: dict[str, pd.DataFrame] = {}
    attacks = [(brighter, Bound("l2", 0.5)), Sign(), "fgsm(eps=0.1)"]
    table = evaluate(ensemble, digits[0][:30], digits[1][:30], attacks, records=records)
    bright, sign, fgsm = records.values()
    assert table["attack"].tolist() == ["brighter", "Sign", "fgsm"] and table["parameters"][0] == ""
    assert (bright["l2"] <= 0.5 + 1e-5).all() and bright["out_of_ball"][bright["attacked"]].all()
    assert np.array_equal(sign["adversarial_prediction"], fgsm["adversarial_prediction"])


def test_an_object_given_to_evaluate_attacks_the_model_that_is_evaluated(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    given: list[Any] = [torchattacks.BIM(MODEL, eps=0.1, steps=3), "torchattacks:BIM(eps=0.1,steps=3)"]
    table = evaluate(ensemble, digits[0][:20], digits[1][:20], given)
    assert table["accuracy"][0] == table["accuracy"][1] < table["clean_accuracy"][0]
    assert torch.equal(MODEL[1].weight.detach(), MODEL[1].weight)  # type: ignore[union-attr,arg-type]
