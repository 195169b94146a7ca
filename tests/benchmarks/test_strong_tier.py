"""Strong tier: a broken defense, against the same suite on every image to the end."""

from __future__ import annotations

from typing import Any

from benchmark.acceleration import accelerated
from benchmark.evaluation import craft
from benchmark.evaluations import Subject, strong
from benchmark.models import prepared
from benchmark.planning import strong_cell
from defenses.members.ensemble import Ensemble

EPS = 0.1


def test_a_broken_defense(race: Any, note: Any, cifar_shaped: Any) -> None:
    ensemble, images, labels = cifar_shaped(8, "mini-resnet(width=8)")
    fast = accelerated(ensemble, images)
    assert isinstance(fast, Ensemble)
    subject = Subject(ensemble, fast, images, labels, ensemble.member_logits(images), ensemble(images), None)
    base = {"dataset": "", "data_checksum": "", "defense": "broken", "spec": "broken", "members": 3, "network": ""}
    base |= {"training": "", "weights": "", "seed": 0, "batch_size": len(images), "device": "cpu"}
    cell = strong_cell(base, "quick", EPS, len(images))

    def worst_case() -> None:
        with prepared(ensemble), prepared(fast):
            found = strong.batch(subject, cell, None, 0, len(images))
        assert not found["correct"].any(), "the defense is meant to be broken"

    def to_the_end() -> None:
        with prepared(ensemble), prepared(fast):
            for stage in strong.stages("quick", EPS, len(ensemble)):
                number = int(stage.source.removeprefix("net") or 0) - 1 if stage.source != "ensemble" else None
                model = fast if number is None else fast.member(number)
                craft(model, stage.named, images, labels, 0, 0)

    medians = race("suite quick", {"strong": worst_case, "to the end": to_the_end}, rounds=2, warm_up=False)
    share = 100 * medians["strong"] / medians["to the end"]
    note("suite quick", "cost, of the suite on every image", share, "%", "≤ 30")
    assert share < 60
