"""Strong tier: a broken defense, against the same suite on every image to the end; each image against AutoAttack."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmark.attacks import parse_attack
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


@pytest.mark.parametrize(("kind", "radius"), [("surviving", 1e-4), ("broken", 0.1)])
def test_against_plain_autoattack(race: Any, note: Any, cifar_shaped: Any, kind: str, radius: float) -> None:
    """The whole suite, which contains AutoAttack's parts, and AutoAttack as it is, on the same copy."""
    ensemble, images, labels = cifar_shaped(4, "mini-resnet(width=4)", 2)
    fast = accelerated(ensemble, images)
    bound, known = Bound("linf", radius), labels.numpy()
    assert isinstance(fast, Ensemble)
    with torch.no_grad():
        subject = Subject(ensemble, fast, images, known, ensemble.member_logits(images), ensemble(images), None)
    task = WorstCase(bound, "full", stages("full", bound, len(ensemble), 10))
    plain = parse_attack(f"autoattack(eps={radius:g})")
    left: dict[str, int] = {}

    def worst_case() -> None:
        with prepared(ensemble), prepared(fast):
            left["strong"] = int(task.batch(subject, Span(0, len(images)), seed=0)["correct"].sum())

    def autoattack() -> None:
        with prepared(ensemble), prepared(fast):
            crafted = craft(fast, plain, images, known, 0, 0)
            left["autoattack"] = int((ensemble(crafted.images).argmax(-1) == labels).sum())

    case = f"full suite, {kind} images"
    medians = race(case, {"strong": worst_case, "autoattack": autoattack}, rounds=1, warm_up=False)
    assert set(left.values()) == {len(images) if kind == "surviving" else 0}
    note(case, "speed over plain AutoAttack, for an image", medians["autoattack"] / medians["strong"], "times")
