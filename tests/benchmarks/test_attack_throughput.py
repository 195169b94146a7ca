"""Attack throughput: the harness against torchattacks, ART and foolbox as a user calls them, same model and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark.acceleration import accelerated
from benchmark.attacks import parse_attack
from benchmark.evaluation import attack_batch
from benchmark.models import outputs, predict, prepared
from defenses.ensemble import Ensemble


class Contest:
    """One attack on one model: the harness, checks included, and libraries on the model as it is."""

    def __init__(self, spec: str, ensemble: Ensemble, images: Tensor, labels: Tensor) -> None:
        self.spec, self.ensemble, self.images, self.labels = spec, ensemble, images, labels
        self.fast = accelerated(ensemble, images)
        self.clean = outputs(ensemble, images, len(images))
        self.records = pd.DataFrame()
        self.found: dict[str, Tensor] = {}

    def harness(self) -> None:
        with prepared(self.ensemble), prepared(self.fast):
            named = parse_attack(self.spec)
            self.records = attack_batch(
                self.ensemble, named, "strict", self.images, self.labels, self.clean, 0, 0, 10, self.fast
            )

    def library(self, name: str) -> Callable[[], None]:
        attack, _, settings = self.spec.partition("(")
        named = parse_attack(f"{attack.partition('@')[0]}@{name}({settings}")

        def run() -> None:
            torch.manual_seed(0)
            self.found[name] = named.backend()(self.ensemble, self.images.clone(), self.labels, named.attack)

        return run

    def accuracy(self, name: str) -> float:
        if name == "harness":
            return float(self.records["correct"].mean())
        return float((self.predictions(name) == self.labels).float().mean())

    def predictions(self, name: str) -> Tensor:
        return predict(self.ensemble, self.found[name], len(self.images))


@pytest.mark.parametrize("attack", ["pgd", "bim"])
def test_linf_attacks(race: Any, note: Any, cifar_shaped: Any, attack: str) -> None:
    contest = Contest(f"{attack}(eps=0.03)", *cifar_shaped(8))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art", "foolbox")}
    medians = race(f"{attack} 10 steps", {"harness": contest.harness, **rivals}, rounds=3, warm_up=False)
    for name, target in (("torchattacks", "≥ 1.4"), ("art", "≥ 3"), ("foolbox", "")):
        note(f"{attack} 10 steps", f"speed over bare {name}", medians[name] / medians["harness"], "times", target)
    beside = medians["harness"] / contest.records["seconds"].sum() - 1
    note(f"{attack} 10 steps", "harness beside the attack itself", 100 * beside, "%", "≤ 2")
    if attack == "bim":
        ours = torch.tensor(contest.records["adversarial_prediction"].tolist())
        assert (ours != contest.labels).float().mean() > 0.5, "an attack that fools nobody would agree with any other"
        for name in rivals:
            same = (contest.predictions(name) == ours).float().mean().item()
            note("bim 10 steps", f"same predictions as {name}", 100 * same, "%", "≥ 100")
            assert same >= 0.9, "rounding may turn a pixel's sign, and with it an image on the boundary; no more"


@pytest.mark.parametrize("spec", ["cw(c=10,steps=20)", "ead(c=10,steps=20)"])
def test_minimum_norm_attacks(race: Any, note: Any, cifar_shaped: Any, spec: str) -> None:
    """A short run of the paper's 1,000 steps: the libraries' cost per step is what differs."""
    contest = Contest(spec, *cifar_shaped(4))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art")}
    medians = race(spec, {"harness": contest.harness, **rivals}, rounds=2, warm_up=False)
    note(spec, "speed over bare torchattacks", medians["torchattacks"] / medians["harness"], "times")
    note(spec, "speed over bare art", medians["art"] / medians["harness"], "times", "≥ 10")
    for name in ("harness", *rivals):
        note(spec, f"accuracy left by {name}", 100 * contest.accuracy(name), "%")


def test_jsma(race: Any, note: Any, cifar_shaped: Any) -> None:
    """The libraries' is another attack (two scalars at a time, a gradient per class): cost at one share of scalars."""
    contest = Contest("jsma(gamma=0.003)", *cifar_shaped(4))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art")}
    medians = race("jsma", {"harness": contest.harness, **rivals}, rounds=2, warm_up=False)
    for name in rivals:
        note("jsma", f"speed over bare {name}", medians[name] / medians["harness"], "times", "≥ 50")
