"""Strong tier: a broken defense, against the same suite on every image to the end."""

from __future__ import annotations

from typing import Any

import torch

from benchmark.attacks.bounds import Bound
from benchmark.evaluations.worst_case import WorstCase, stages
from benchmark.harness.acceleration import accelerated
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from defenses.members.ensemble import Ensemble

BOUND = Bound("linf", 0.1)


def test_a_broken_defense(race: Any, note: Any, cifar_shaped: Any) -> None:
    ensemble, images, labels = cifar_shaped(8, "mini-resnet(width=8)")
    fast = accelerated(ensemble, images)
    assert isinstance(fast, Ensemble)
    known = labels.numpy()
    with torch.no_grad():
        subject = Subject(ensemble, fast, images, known, ensemble.member_logits(images), ensemble(images), None)
    task = WorstCase(BOUND, "quick", stages("quick", BOUND, len(ensemble), 10))

    def worst_case() -> None:
        with prepared(ensemble), prepared(fast):
            found = task.batch(subject, Span(0, len(images)), seed=0)
        assert not found["correct"].any(), "the defense is meant to be broken"

    def to_the_end() -> None:
        with prepared(ensemble), prepared(fast):
            for stage in task.stages:
                model = fast if stage.member is None else fast.member(stage.member)
                craft(model, stage.named, images, known, 0, 0)

    medians = race("suite quick", {"strong": worst_case, "to the end": to_the_end}, rounds=2, warm_up=False)
    share = 100 * medians["strong"] / medians["to the end"]
    note("suite quick", "cost, of the suite on every image", share, "%", "≤ 30")
    assert share < 60
