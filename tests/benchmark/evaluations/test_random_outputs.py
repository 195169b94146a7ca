"""A model with random output is judged by draws that did not choose its image, so the estimate is not too low."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.evaluations import worst_case
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.task import Task
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase
from benchmark.findings.statistics import mean_interval
from benchmark.harness.prepared import DRAWS, answers, prepared
from benchmark.harness.records import AFRESH, Span
from benchmark.harness.seeding import seeded
from benchmark.harness.subject import Subject
from benchmark.harness.tiers import as_strict
from defenses.members.ensemble import Ensemble

COUNT, BATCH = 400, 100
SUITE = ("pgd@native({ball},steps=1)", "pgd@native({ball},steps=2)", "pgd@native({ball},steps=3)")


class Coin(nn.Module):
    """Two classes; the right class 0 wins with a fixed probability, whatever the image is."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, images: Tensor) -> Tensor:
        side = torch.where(torch.rand(len(images)) < self.chance, 1.0, -1.0) + 0 * images.flatten(1).sum(1)
        return torch.stack([side, -side], 1)


IMAGES, LABELS = torch.full((COUNT, 1, 2, 2), 0.5), torch.zeros(COUNT, dtype=torch.int64)


def _subject(chance: float) -> Subject:
    model = Coin(chance)
    with prepared(model), seeded(0, "clean", 0):
        outputs, right = answers(model, IMAGES, LABELS.numpy(), COUNT, DRAWS)
    whole = cast(Ensemble, model.eval())
    return Subject(
        whole, model, IMAGES, LABELS.numpy(), outputs[None], outputs, surrogate=model, draws=DRAWS, expected=right
    )


def _records(task: Task, subject: Subject) -> pd.DataFrame:
    return pd.concat([task.batch(subject, Span(first, first + BATCH), 0) for first in range(0, COUNT, BATCH)])


TASKS: list[Task] = [
    WhiteBox(parse_attack("pgd@native(eps=0.1,steps=2)"), "strict"),
    WhiteBox(parse_attack("cw(c=0.01,steps=2)"), "strict", shared_images=True),
    WorstCase(
        Bound("linf", 0.1),
        "full",
        tuple(Stage(parse_attack(text.format(ball="eps=0.1"))) for text in SUITE),
    ),
    BlackBox(parse_attack("pgd@native(eps=0.1,steps=2)"), "0" * 64),
]


@pytest.mark.parametrize("chance", [0.5, 0.05])
@pytest.mark.parametrize("task", TASKS, ids=["strict", "shared images", "worst case", "black-box"])
def test_the_interval_of_a_model_that_ignores_the_image_contains_its_accuracy(task: Task, chance: float) -> None:
    found = _records(task, _subject(chance))
    low, high = mean_interval(found["p_correct"])
    assert low <= chance <= high
    assert (found["correct"] == (found["adversarial_prediction"] == found["label"])).all()


def test_evaluate_reports_such_a_model_at_its_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worst_case.SUITES, "quick", SUITE)
    for suite in (None, "quick"):
        torch.manual_seed(0)
        row = evaluate(Coin(0.5).eval(), IMAGES, LABELS, ["pgd@native(eps=0.1,steps=2)"], suite=suite).iloc[0]
        assert row["ci_low"] <= 50 <= row["ci_high"] and row["clean_accuracy"] != row["accuracy"]


def test_records_of_tier_paper_become_those_that_tier_strict_makes() -> None:
    """Runs with both tiers convert the records, and a run with tier strict alone attacks."""
    named, subject = parse_attack("cw(c=0.01,steps=2)"), _subject(0.5)
    paper = _records(WhiteBox(named, "paper"), subject)
    strict = _records(WhiteBox(named, "strict", shared_images=True), subject)
    assert set(AFRESH) <= set(paper) and not set(AFRESH) & set(strict)
    drawn = ["seconds", "unstable"]  # a second look uses any draws
    pd.testing.assert_frame_equal(as_strict(paper).drop(columns=drawn), strict.drop(columns=drawn))


def test_batches_are_judged_by_different_draws() -> None:
    found = _records(TASKS[0], _subject(0.5))["p_correct"].to_numpy().reshape(-1, BATCH)
    assert all(not np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("combine", ["probabilities", "random"])
def test_other_models_are_judged_once(
    combine: str, ensemble: Ensemble, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("judged by new draws")

    monkeypatch.setattr("benchmark.harness.crafting.judged_afresh", refuse)
    model = Ensemble(list(ensemble.members), ensemble.mean, combine=combine).eval()
    monkeypatch.setitem(worst_case.SUITES, "quick", SUITE)
    for settings in ({"tier": "paper"}, {"tier": "strict"}, {"suite": "quick"}):
        table = evaluate(model, digits[0][:5], digits[1][:5], ["pgd@native(eps=0.1,steps=2)"], **settings)  # type: ignore[arg-type]
        assert table["samples"].item() == 5
