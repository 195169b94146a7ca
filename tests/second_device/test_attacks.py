"""Every attack of every library in every evaluation and tier leaves the records that it leaves on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmark import datasets
from benchmark.attacks import ATTACKS, NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Task
from benchmark.evaluations.transfer import Transfer, aimed
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, Subject, subject_of
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from tests.second_device.device import calls

IMAGES = 5
SETTINGS = {
    "apgd": "eps=0.2,steps=4,loss=pma",
    "apgd-ce": "eps=0.2,steps=4",
    "apgd-t": "eps=0.2,steps=4,targets=3",
    "autoattack": "eps=0.4",
    "bim": "eps=0.1,steps=3",
    "cascade": "eps=0.4,walks=1",
    "cw": "c=5,steps=4,lr=0.05",
    "ddn": "steps=3",
    "ead": "c=5,steps=10",
    "evasive": "eps=0.1,steps=3",
    "fab-t": "eps=0.2,steps=3,targets=2",
    "fgsm": "eps=0.1",
    "fmn": "norm=l2,steps=3",
    "jsma": "gamma=0.05,eps=0.2",
    "mim": "eps=0.1,steps=3",
    "mora": "eps=0.1,steps=3,targets=2",
    "arc": "eps=0.1,steps=2,targets=2",
    "pgd": "eps=0.1,steps=3",
    "square": "eps=0.2,queries=20",
}
"""Few steps: what matters is where they are computed. An attack that is not here is tested as it is at eps 0.1."""
OTHERS = [
    "pgd@native(eps=0.1,steps=3,restarts=2,loss=margin)",
    "pgd@native(eps=0.1,steps=3,loss=pma)",
    "mora(eps=0.1,steps=3,targets=2,variant=reference)",
    "torchattacks:DIFGSM(eps=0.1,steps=3)",
    "torchattacks:PGDL2(eps=0.5,alpha=0.2,steps=3)",
    "foolbox:L2FMNAttack(steps=3)",
    "foolbox:L2PGD(eps=0.5,steps=3)",
    "art:DeepFool(max_iter=3)",
    "foolbox:LinfinityBrendelBethgeAttack(steps=3)",
]
"""Other parameters, other norms, and classes of the libraries by their own names."""
LONG = ("autoattack", "cascade")
"""Their lengths are fixed: at this eps few images survive the first parts."""
EVALUATIONS = ("paper", "strict", "strong", "blackbox", "transfer", "targeted transfer", "detection")


def _specs() -> list[str]:
    found = []
    for name in ATTACKS.names():
        settings = SETTINGS.get(name, "eps=0.1")
        libraries = ATTACKS.get(name).backends
        found += [f"{name}@{library}({settings})" for library in libraries]
    return found + OTHERS


def _task(named: NamedAttack, evaluation: str) -> Task | None:
    """None where the attack has no place in the evaluation."""
    if evaluation in ("paper", "strict"):
        return WhiteBox(named, evaluation)  # type: ignore[arg-type]
    if evaluation == "strong":
        bound = named.bound or Bound("linf", 0.1)
        return WorstCase(bound, "full", (Stage(named), Stage(named, 1))) if named.bound else None
    if evaluation == "blackbox":
        return BlackBox(named, "0" * 64)
    if evaluation == "detection":
        return Detection(named)
    targeted = evaluation == "targeted transfer"
    if targeted and not hasattr(named.attack, "targeted"):
        return None
    return Transfer(aimed(named, True) if targeted else named, 0)


@pytest.fixture(scope="module")
def subjects(checkpoint: Path, other_checkpoint: Path) -> Iterator[tuple[Subject, Subject]]:
    """The same ensemble, surrogate and images on the CPU and on the second device."""
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(subject_of(_material(checkpoint, other_checkpoint, device)))
            for device in ("cpu", "second")
        )  # type: ignore[misc]


def _material(checkpoint: Path, other: Path, device: str, **changes: object) -> Material:
    usual = Material(
        ensemble=load_checkpoint(checkpoint),
        surrogate=load_checkpoint(other),
        test=datasets.load("digits").test.subset(slice(0, IMAGES)),
        batch_size=IMAGES,
        device=torch.device(device),
        keep_images=True,
        acceleration="folded",
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def _records(task: Task, subject: Subject) -> pd.DataFrame | str:
    try:
        records = task.batch(subject, Span(0, IMAGES), seed=0)
    except BadInput as refusal:
        return str(refusal)
    if "stages" in records:
        records["stages"] = [[{**part, "seconds": 0} for part in parts] for parts in records["stages"]]
    return records.drop(columns="seconds")


def _combinations() -> list[Any]:
    """All of them; a quick one for each library, evaluation and tier is not slow."""
    quick = {f"pgd@{library}" for library in ("torchattacks", "art", "foolbox", "native")}
    found = []
    for number, spec in enumerate(_specs()):
        for place, evaluation in enumerate(EVALUATIONS):
            fast = spec.partition("(")[0] in quick or (number == place and not spec.startswith(LONG))
            found.append(pytest.param(spec, evaluation, marks=() if fast else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("spec", "evaluation"), _combinations())
def test_an_attack_leaves_the_same_records(spec: str, evaluation: str, subjects: tuple[Subject, Subject]) -> None:
    if "BrendelBethge" in spec:
        pytest.importorskip("numba", reason="foolbox builds its Brendel and Bethge attacks only with numba")
    named = parse_attack(spec)
    task = _task(named, evaluation)
    if task is None:
        pytest.skip("the attack has no place in this evaluation")
    before = calls.total()
    here, there = (_records(task, subject) for subject in subjects)
    assert calls.total() > before
    if isinstance(here, str):
        assert there == here
        pytest.skip(f"refused on both: {here}")
    assert isinstance(there, pd.DataFrame), there
    pd.testing.assert_frame_equal(there, here, check_exact=True)


@pytest.mark.parametrize("mode", ["none", pytest.param("compiled", marks=pytest.mark.slow)])
def test_other_accelerations_leave_the_same_records(mode: str, checkpoint: Path, other_checkpoint: Path) -> None:
    task = WhiteBox(parse_attack("pgd(eps=0.1,steps=3)"), "strict")
    found = []
    for device in ("cpu", "second"):
        with subject_of(_material(checkpoint, other_checkpoint, device, acceleration=mode)) as subject:
            found.append(_records(task, subject))
    pd.testing.assert_frame_equal(found[1], found[0], check_exact=True)


def test_diversity_and_clean_detection_are_the_same(subjects: tuple[Subject, Subject]) -> None:
    for task in (Diversity(), Detection(None, IMAGES)):
        here, there = (_records(task, subject) for subject in subjects)
        pd.testing.assert_frame_equal(there, here, check_exact=True)
