"""Attack throughput: the harness against torchattacks, ART and foolbox as a user calls them, same model and images."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmark.attacks import parse_attack
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.acceleration import accelerated
from benchmark.harness.prepared import outputs, predict, prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from defenses.members.ensemble import Ensemble


class Contest:
    """One attack on one model: the harness, checks included, and libraries on the model as it is."""

    def __init__(self, spec: str, ensemble: Ensemble, images: Tensor, labels: Tensor) -> None:
        self.spec, self.ensemble, self.images, self.labels = spec, ensemble, images, labels
        self.fast = accelerated(ensemble, images)
        named = parse_attack(spec)
        self.task = WhiteBox(named, "strict", named.attack.same_in_tiers)
        whole = torch.cat([images[:1], images])  # a batch like most: the very first of a run also keeps pictures
        known, clean = torch.cat([labels[:1], labels]).numpy(), outputs(ensemble, whole, len(whole))
        self.subject = Subject(ensemble, self.fast, whole, known, clean[None], clean, None)
        self.records = pd.DataFrame()
        self.beside = 0.0
        self.found: dict[str, Tensor] = {}

    def harness(self) -> None:
        looks: list[float] = []
        began = self.ensemble.register_forward_pre_hook(lambda *_: looks.append(-time.perf_counter()))
        ended = self.ensemble.register_forward_hook(lambda *_: looks.append(looks.pop() + time.perf_counter()))
        with prepared(self.ensemble), prepared(self.fast), began, ended:
            start = time.perf_counter()
            self.records = self.task.batch(self.subject, Span(1, 1 + len(self.images)), seed=0)
            self.beside = time.perf_counter() - start - looks[0]

    def overhead(self) -> float:
        """Time of checks and records in the last run, as a share of the attack.

        The first look at what the attack made is no overhead: that is where the accuracy comes from.
        """
        attack = self.records["seconds"].sum()
        return (self.beside - attack) / attack

    def library(self, name: str) -> Callable[[], None]:
        attack, _, settings = self.spec.partition("(")
        named = parse_attack(f"{attack}@{name}({settings}")

        def run() -> None:
            torch.manual_seed(0)
            self.found[name] = named.backend()(self.ensemble, self.images.clone(), self.labels, named.attack)

        return run

    def accuracy(self, name: str) -> float:
        if name == "harness":
            return float(self.records["correct"].mean())
        return float((self.predictions(name) == self.labels.numpy()).mean())

    def predictions(self, name: str) -> NDArray[np.int64]:
        return predict(self.ensemble, self.found[name], len(self.images))


@pytest.mark.parametrize("model", ["reference", "cifar_shaped"])
@pytest.mark.parametrize("attack", ["pgd", "bim"])
def test_linf_attacks(race: Any, note: Any, request: pytest.FixtureRequest, attack: str, model: str) -> None:
    """On a trained ensemble, some of whose filters weight decay has killed, and on an untrained one."""
    contest = Contest(f"{attack}(eps=0.03)", *request.getfixturevalue(model)(32))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art", "foolbox")}
    case = f"{attack} 10 steps, {'reference' if model == 'reference' else 'untrained'} ensemble"
    medians = race(case, {"harness": contest.harness, **rivals}, rounds=3, warm_up=False)
    for name, target in (("torchattacks", "≥ 1.4"), ("art", "≥ 3"), ("foolbox", "")):
        note(case, f"speed over bare {name}", medians[name] / medians["harness"], "times", target)
    note(case, "harness beside attack and prediction", 100 * contest.overhead(), "%", "≤ 2")
    if attack == "bim":
        ours = contest.records["adversarial_prediction"].to_numpy()
        assert (ours != contest.labels.numpy()).mean() > 0.5, "an attack that fools nobody would agree with any other"
        for name in rivals:
            same = float((contest.predictions(name) == ours).mean())
            note(case, f"same predictions as {name}", 100 * same, "%", "≥ 100")
            assert same >= 0.9, "rounding may turn a pixel's sign, and with it an image on the boundary; no more"


@pytest.mark.parametrize("spec", ["cw(c=0.1,steps=100)", "ead(c=1,steps=100)"])
def test_minimum_norm_attacks(race: Any, note: Any, reference: Any, spec: str) -> None:
    """A tenth of the paper's 1,000 steps: the libraries' cost per step is what differs."""
    contest = Contest(spec, *reference(8))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art", "foolbox")}
    medians = race(spec, {"harness": contest.harness, **rivals}, rounds=1, warm_up=False)
    for name in rivals:
        target = "≥ 10" if name == "art" else ""
        note(spec, f"speed over bare {name}", medians[name] / medians["harness"], "times", target)
    note(spec, "harness beside attack and prediction", 100 * contest.overhead(), "%", "≤ 2")
    for name in ("harness", *rivals):
        note(spec, f"accuracy left by {name}", 100 * contest.accuracy(name), "%")


def test_jsma(race: Any, note: Any, reference: Any) -> None:
    """The libraries' is another attack (two scalars at a time, a gradient per class): cost at one share of scalars."""
    contest = Contest("jsma(gamma=0.005)", *reference(8))
    rivals = {name: contest.library(name) for name in ("torchattacks", "art")}
    medians = race("jsma", {"harness": contest.harness, **rivals}, rounds=1, warm_up=False)
    for name in rivals:
        note("jsma", f"speed over bare {name}", medians[name] / medians["harness"], "times", "≥ 50")
