"""Two and three classes: every attack works or says what it needs, and what is left out is said."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchattacks
from torch import Tensor, nn

from benchmark import datasets, evaluate
from benchmark.attacks import ATTACKS, parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import JSMA
from benchmark.attacks.torchattacks_backend import jsma
from benchmark.cells.cell import Cell
from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles.finding import Trained
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Section, Task
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.worst_case import MANY_CLASSES, SUITES, WorstCase, WorstCaseSection, remark, stages
from benchmark.harness.crafting import wrong_labels
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.planning import check, left_out, plan_cells
from benchmark.plan.presets import load_preset
from benchmark.plan.run_request import Request
from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

COUNT = 12
PARAMETERS = {
    "fgsm": "eps=0.4", "bim": "eps=0.4", "pgd": "eps=0.4", "mim": "eps=0.4", "jsma": "gamma=0.3",
    "cw": "c=10,steps=40,lr=0.05", "ead": "c=10,steps=40,lr=0.05", "evasive": "eps=0.4,steps=5",
    "fmn": "norm=l2,steps=40", "ddn": "steps=40",
    "square": "eps=0.4,queries=60", "autoattack": "eps=0.4", "mora": "eps=0.4,steps=10", "arc": "eps=0.4,steps=5",
    "apgd": "eps=0.4,steps=10,loss=pma",
    "apgd-ce": "eps=0.4,steps=10", "apgd-t": "eps=0.4,steps=10", "fab-t": "eps=0.4,steps=10",
}  # fmt: skip
NEEDS_NUMBA = "cascade"


@functools.cache
def _digits(classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits below a number: training images and labels, then test images and labels."""
    data = datasets.load("digits")
    parts = []
    for part in (data.train, data.test):
        chosen = part.labels < classes
        parts += [part.images()[chosen], part.labels[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


@functools.cache
def _trained(classes: int) -> Ensemble:
    images, labels, _, _ = _digits(classes)
    members = []
    with torch.random.fork_rng():
        for seed in range(2):
            torch.manual_seed(seed)
            member = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, classes))
            optimiser = torch.optim.Adam(member.parameters(), 0.01)
            for _ in range(40):
                optimiser.zero_grad()
                nn.functional.cross_entropy(member(images), labels).backward()
                optimiser.step()
            members.append(member)
    return Ensemble(members)


def _evaluated(classes: int, specs: list[str], tier: str = "strict", count: int = COUNT) -> list[dict[str, object]]:
    _, _, images, labels = _digits(classes)
    table = evaluate(_trained(classes), images[:count], labels[:count], specs, tier)
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _variants() -> Iterator[str]:
    """Every attack in every library, away from the label and towards a target."""
    for name in sorted(set(ATTACKS.targets()) & set(PARAMETERS)):
        kind = ATTACKS.get(name)
        for library in kind.backends:
            yield f"{name}@{library}({PARAMETERS[name]})"
            if "targeted" in kind.__dataclass_fields__:
                yield f"{name}@{library}({PARAMETERS[name]},targeted=true)"
    yield "pgd(eps=0.4,loss=margin,restarts=2)"
    yield "pgd(eps=0.4,loss=dlr)"
    yield "pgd(eps=0.4,loss=pma)"
    yield "apgd(eps=0.4,steps=10)"
    yield "mora(eps=0.4,steps=10,variant=reference)"


REFUSED = {("apgd-t", 2), ("apgd-t", 3), ("pgd(eps=0.4,loss=dlr)", 2), ("apgd(eps=0.4,steps=10)", 2)}


def test_the_table_has_every_attack_of_the_benchmark() -> None:
    ours = {name for name in ATTACKS.targets() if ATTACKS.get(name).__module__.startswith("benchmark.")}
    assert ours == {*PARAMETERS, NEEDS_NUMBA}


@pytest.mark.filterwarnings("ignore:.*runs without apgd-t")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("spec", list(_variants()))
def test_every_attack_works_on_two_and_three_classes_or_says_what_it_needs(spec: str, classes: int) -> None:
    named = parse_attack(spec)
    if {(named.name, classes), (spec, classes)} & REFUSED:
        with pytest.raises(
            BadInput, match=rf"needs at least {named.attack.fewest_classes} classes, but the data have {classes}; use"
        ):
            _evaluated(classes, [spec])
        return
    (row,) = _evaluated(classes, [spec])
    assert row["samples"] == COUNT and row["not_finite"] == 0
    weak = named.name == "jsma" or "targeted" in spec  # few scalars, or one class in particular
    assert weak or row["accuracy"] < row["clean_accuracy"]  # type: ignore[operator]


@pytest.mark.parametrize("classes", [2, 3])
def test_autoattack_runs_the_parts_that_exist_and_says_so(classes: int) -> None:
    with pytest.warns(
        UserWarning, match=rf"autoattack\(eps=0.1\) runs without apgd-t, which needs more than {classes}"
    ):
        (row,) = _evaluated(classes, ["autoattack(eps=0.1)"])
    parts = _evaluated(classes, ["apgd-ce(eps=0.1)", "fab-t(eps=0.1)", "square(eps=0.1)"])
    assert row["accuracy"] <= min(part["accuracy"] for part in parts) < 100  # type: ignore[type-var, operator]
    attack = parse_attack("autoattack(eps=0.1)").attack
    assert attack.gradients(64, classes) == sum(
        parse_attack(f"{name}(eps=0.1)").attack.gradients(64, classes) for name in ("apgd-ce", "fab-t", "square")
    )


def test_four_classes_are_enough_for_all_of_autoattack() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs without")
        rows = _evaluated(4, ["autoattack(eps=0.4)", "apgd-t(eps=0.4,steps=10)"], count=8)
    assert [row["accuracy"] for row in rows] == [0, 0]


@pytest.mark.parametrize("classes", [2, 3])
def test_tier_strong_leaves_out_what_needs_more_classes_and_says_so(classes: int) -> None:
    with pytest.warns(UserWarning, match=f"tier strong runs without apgd-t, which needs more than {classes} classes"):
        (row,) = _evaluated(classes, ["pgd(eps=0.1)"], "strong", count=6)
    assert row["attack"] == "worst-case" and row["accuracy"] <= row["clean_accuracy"]  # type: ignore[operator]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_whole_from_four_classes_on(suite: str) -> None:
    bound = Bound("linf", 0.1)
    whole = stages(suite, bound, 2, MANY_CLASSES)
    assert stages(suite, bound, 2, 4) == stages(suite, bound, 2, 1000) == whole
    for classes in (2, 3):
        expected = tuple(stage for stage in whole if stage.named.name != "apgd-t")
        assert stages(suite, bound, 2, classes) == expected
        assert bool(remark(suite, classes)) == (expected != whole)
    assert remark(suite, 4) == ""


def test_the_dlr_loss_towards_a_target_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match="use loss=margin"):
        parse_attack("pgd(eps=0.1,loss=dlr,targeted=true)")


def test_a_model_with_one_output_is_refused_with_the_remedy() -> None:
    _, _, images, labels = _digits(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with pytest.raises(BadInput, match=r"one number per image.*give two logits, such as \(0, z\)"):
        evaluate(model, images[:4], torch.zeros_like(labels[:4]), ["fgsm(eps=0.1)"])


def test_the_library_s_saliency_attack_aims_at_the_next_class_of_any_number(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    model = AttackedModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    images, labels = digits[0][:6], digits[1][:6]
    assert torch.equal(jsma(model, images, labels, JSMA(0.1)), torchattacks.JSMA(model, 0.1, 0.1)(images, labels))


def test_the_only_wrong_label_of_two_is_drawn() -> None:
    labels = np.array([0, 1, 1, 0], dtype=np.int64)
    assert wrong_labels(labels, 2, 0, 5).tolist() == [1, 0, 0, 1]
    drawn = wrong_labels(np.zeros(200, dtype=np.int64), 3, 0, 5)
    assert set(drawn.tolist()) == {1, 2}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "task",
    [
        Detection(None, 5), Detection(parse_attack("pgd(eps=0.1)")), Diversity(),
        Transfer(parse_attack("pgd(eps=0.1)"), 0), Transfer(parse_attack("pgd(eps=0.1,targeted=true)"), 1),
        BlackBox(parse_attack("pgd(eps=0.1,targeted=true)"), "other"),
    ],
    ids=lambda task: task.title,
)  # fmt: skip
def test_other_evaluations_take_few_classes(task: Task, classes: int) -> None:
    """With two classes no vector of other classes differs from another: the diversity is at its floor, not NaN."""
    _, _, images, labels = _digits(classes)
    images, labels, ensemble = images[:COUNT], labels[:COUNT], _trained(classes)
    with prepared(ensemble), torch.no_grad():
        logits = ensemble.member_logits(images)
    with prepared(ensemble):
        subject = Subject(ensemble, ensemble, images, labels.numpy(), logits, ensemble(images), ensemble)
        records = task.batch(subject, Span(0, COUNT), 0)
    for name in ("diversity", "diversity_true", "led"):
        if name in records:
            assert np.isfinite(records[name]).all()
            assert classes > 2 or records[name].nunique() == 1


# --- a run on a dataset of few classes ---


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits, said to have three classes."""
    monkeypatch.setitem(DATASETS._targets, "digits", replace(DATASETS.get("digits"), classes=3))


def _request(attack: str, tier: str) -> Request:
    preset = narrow(load_preset("demo"), Wish(tiers=(tier,), defenses=("baseline",), attacks=(attack,)))
    grids = tuple(replace(grid, sections=tuple(_whole_suite(part) for part in grid.sections)) for grid in preset.grids)
    return Request(replace(preset, grids=grids), 20, (0,), torch.device("cpu"), Path("nowhere"), "")


def _whole_suite(section: Section) -> Section:
    return replace(section, suite="full") if isinstance(section, WorstCaseSection) else section


def _planned(request: Request) -> list[Cell]:
    (grid,) = request.preset.grids
    about = Provenance("baseline", grid.dataset, grid.network, grid.members, (1, 8, 8), 3, weights_sha256="w")
    return plan_cells(grid, Trained("baseline", "baseline", _trained(3), about), request, 0, "checksum")


def test_a_run_refuses_an_attack_that_needs_more_classes_before_it_trains(three: None) -> None:
    with pytest.raises(
        BadInput, match=r"apgd-t\(eps=0.1\) needs at least 4 classes, but the data have 3; use apgd-ce and fab-t"
    ):
        check(_request("apgd-t(eps=0.1)", "strict"))


def test_a_run_says_which_attacks_a_dataset_of_few_classes_leaves_out(three: None) -> None:
    strong, reference = _request("pgd(eps=0.1)", "strong"), _request("autoattack(eps=0.1)", "strict")
    assert "digits: tier strong runs without apgd-t, which needs more than 3 classes" in left_out(strong)
    assert "digits: autoattack(eps=0.1) runs without apgd-t, which needs more than 3 classes" in left_out(reference)


def test_the_stages_of_a_planned_worst_case_fit_the_dataset(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request("pgd(eps=0.1)", "strong")

    def names() -> list[str]:
        (task,) = [cell.task for cell in _planned(request) if isinstance(cell.task, WorstCase)]
        return [stage.named.name for stage in task.stages]

    few = names()
    monkeypatch.setitem(DATASETS._targets, "digits", replace(DATASETS.get("digits"), classes=10))
    assert "apgd-t" in names() and few == [name for name in names() if name != "apgd-t"]
    assert not any("runs without" in line for line in left_out(request))
