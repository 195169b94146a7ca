"""The strong tier is the worst case image by image, spends nothing on decided images, and says who broke what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound, Norm
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.cli import run as adp_bench
from benchmark.evaluations import worst_case
from benchmark.evaluations.task import Setting
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import (
    WorstCase,
    WorstCaseSection,
    from_wide,
    long_stages,
    read_stage,
    stages,
)
from benchmark.findings.results import Results, read_results
from benchmark.findings.suites import suite_table
from benchmark.findings.tier_gap import gap_table
from benchmark.harness.acceleration import InBfloat16
from benchmark.harness.prepared import answers, predict, prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.presets import load_preset
from benchmark.reports import write_report
from benchmark.reports.figures.gap import gap_figures
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.training.precision import require_bfloat16

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
MakeResults = Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Results]
MakeStore = Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]

EPS = 0.05
SUITE = (
    "fgsm({ball})",
    "pgd({ball})",
    "pgd({ball},steps=20,step_size={step},restarts=2,loss=margin)",
    "pgd@native({ball},steps=10,step_size={step}) from members",
    "square({ball},queries=20)",
)


WRITTEN = dict(worst_case.SUITES)
"""The suites as they are, which the tests below run in a short form."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worst_case.SUITES, "full", SUITE)


@pytest.fixture
def robust(robust_checkpoint: Path) -> Ensemble:
    return load_checkpoint(robust_checkpoint)


def _worst(model: nn.Module, images: Tensor, labels: Tensor, **others: Any) -> tuple[pd.Series[Any], pd.DataFrame]:
    records: dict[str, pd.DataFrame] = {}
    table = evaluate(model, images, labels, [f"pgd(eps={EPS})"], tier="strong", records=records, **others)
    (frame,) = records.values()
    return table.iloc[0], frame


def test_the_worst_case_is_at_most_every_attack_of_the_suite_image_by_image(
    robust: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    row, worst = _worst(robust, images, labels)
    assert 0 < row["accuracy"] < row["clean_accuracy"]
    singles: dict[str, pd.DataFrame] = {}
    texts = [template.format(ball=f"eps={EPS}", step=EPS / 5) for template in SUITE[:3]]
    evaluate(robust, images, labels, texts, records=singles)
    for frame in singles.values():
        assert not (worst["correct"] & ~frame["correct"]).any()


def test_every_image_that_falls_is_credited_to_the_attack_that_came_first(
    robust: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    row, worst = _worst(robust, images, labels)
    singles: dict[str, pd.DataFrame] = {}
    evaluate(robust, images, labels, [f"fgsm(eps={EPS})"], records=singles)
    (fgsm,) = singles.values()
    assert (worst["broken_at"] == 0).tolist() == (fgsm["attacked"] & ~fgsm["correct"]).tolist()
    broken = worst["attacked"] & ~worst["correct"]
    assert (worst["broken_by"] != "").tolist() == broken.tolist()
    assert (worst["linf"][broken] <= EPS + 1e-6).all() and (worst["linf"][broken] > 0).all()
    assert row["accuracy"] == pytest.approx(100 * (1 - (broken.sum() + (~worst["attacked"]).sum()) / 60), abs=1e-3)


@pytest.fixture
def bfloat16() -> None:
    try:
        require_bfloat16(torch.device("cpu"))
    except BadInput as error:
        pytest.skip(str(error))


def test_a_pass_in_bfloat16_lowers_the_worst_case_or_leaves_it_image_by_image(
    bfloat16: None, robust: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    full, usual = _worst(robust, images, labels)
    row, reduced = _worst(robust, images, labels, acceleration="reduced")
    assert not (reduced["correct"] & ~usual["correct"]).any()
    assert row["accuracy"] <= full["accuracy"]
    count = len(worst_case.FIRST_PASS)
    first = reduced["broken_at"].between(0, count - 1)
    assert first.any() and reduced["broken_by"][first].str.endswith(" in bfloat16").all()
    assert not reduced["broken_by"][~first].str.contains("bfloat16").any()
    with prepared(robust):
        again = predict(robust, images, 60)
    assert (again == labels.numpy()).tolist() == reduced["attacked"].tolist()
    every = count + len(stages("full", Bound("linf", EPS), 2, 10))
    survivors = reduced["attacked"] & reduced["correct"]
    assert survivors.any() and {len(parts) for parts in reduced["stages"][survivors]} == {every}, "the whole suite"


def test_what_fools_the_copy_in_bfloat16_alone_does_not_count(
    bfloat16: None, ensemble: Ensemble, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is always wrong: its attacks stop at once, and the float32 ensemble is not fooled by where."""
    monkeypatch.setattr(InBfloat16, "forward", lambda self, inputs: -self.network(inputs.bfloat16()).float())
    _, usual = _worst(ensemble, digits[0][:30], digits[1][:30])
    _, reduced = _worst(ensemble, digits[0][:30], digits[1][:30], acceleration="reduced")
    first = reduced["broken_at"].between(0, len(worst_case.FIRST_PASS) - 1)
    assert first.sum() < usual["attacked"].sum() / 2
    assert not (reduced["correct"] & ~usual["correct"]).any()


def test_survivors_alone_are_attacked_further(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    _, worst = _worst(robust, digits[0][:60], digits[1][:60])
    suite = stages("full", Bound("linf", EPS), len(robust), 10)
    assert [stage.member for stage in suite] == [None] * 3 + [0, 1, None]
    spent = long_stages(worst)
    assert set(spent["stage"]) == set(range(len(suite)))
    for number, _ in enumerate(suite):
        met = worst["attacked"] & ((worst["broken_at"] < 0) | (worst["broken_at"] >= number))
        here = spent[spent["stage"] == number]
        assert here["index"].tolist() == worst["index"][met].tolist()
        assert (here["forwards"] > 0).all()
    for name in ("forwards", "backwards", "seconds"):
        total = spent.groupby("index")[name].sum().reindex(worst["index"], fill_value=0.0)
        assert np.allclose(total, worst[name])
    assert (worst["backwards"][~worst["attacked"]] == 0).all()


def test_a_broken_defense_costs_a_fraction_of_the_suite(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    records: dict[str, pd.DataFrame] = {}
    evaluate(ensemble, images, labels, ["pgd(eps=0.5)"], tier="strong", records=records)
    (worst,) = records.values()
    texts = [template.format(ball="eps=0.5", step=0.1) for template in SUITE[:3]]
    alone = evaluate(ensemble, images, labels, texts)
    assert worst["correct"].sum() == 0
    assert worst["backwards"].mean() < 0.6 * alone["backwards"].sum()


def test_a_network_by_itself_has_no_members_to_attack(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    plain = nn.Sequential(ensemble.member(0))
    row, worst = _worst(plain, digits[0][:30], digits[1][:30])
    assert row["members"] == 1
    met = long_stages(worst)
    assert set(met["stage"]) == set(range(4)) and met["source_fooled"].isna().all()
    assert 0 <= row["accuracy"] < row["clean_accuracy"]


def test_the_same_images_in_other_batches_give_nearly_the_same(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    one, _ = _worst(robust, digits[0][:60], digits[1][:60])
    other, _ = _worst(robust, digits[0][:60], digits[1][:60], batch_size=17)
    assert abs(one["accuracy"] - other["accuracy"]) <= 5


def test_attacks_without_a_ball_have_no_strong_tier(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(BadInput, match="needs an attack with a bound"):
        evaluate(ensemble, digits[0][:5], digits[1][:5], ["cw(c=1)"], tier="strong")


# --- suites ---


@pytest.mark.parametrize("suite", WRITTEN)
@pytest.mark.parametrize("eps", [0.1, 8 / 255])
def test_a_suite_is_its_attacks_in_order_within_the_bound(
    suite: str, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worst_case.SUITES, suite, WRITTEN[suite])
    found = stages(suite, Bound("linf", eps), 3, 10)
    names = [template.partition("(")[0].partition("@")[0] for template in WRITTEN[suite]]
    place = next(n for n, template in enumerate(WRITTEN[suite]) if template.endswith(" from members"))
    assert [stage.named.name for stage in found] == [*names[:place], *["pgd"] * 3, *names[place + 1 :]]
    assert [stage.member for stage in found] == [None] * place + [0, 1, 2] + [None] * (len(names) - place - 1)
    assert {stage.named.bound for stage in found} == {Bound("linf", eps)}
    assert len(set(found)) == len(found)
    assert names[:3] == ["fgsm", "bim", "pgd"], "what the paper has, first"
    assert {"mora", "apgd-ce", "square"} <= set(names)
    long = [stage.named.attack.settings() for stage in found if stage.named.attack.settings().get("step_size")]
    assert len(long) == {"full": 6, "quick": 5}[suite] and {
        (settings["steps"], settings["step_size"]) for settings in long
    } == {(50, eps / 5)}
    assert found[-1].named.attack.query_only, "the witness against masked gradients is the last"


@pytest.mark.parametrize("suite", WRITTEN)
def test_every_stage_of_the_suites_as_they_are_reads_back(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worst_case.SUITES, suite, WRITTEN[suite])
    for stage in stages(suite, Bound("linf", 8 / 255), 3, 10):
        assert read_stage(stage.written()) == stage
        assert ("from net" in stage.label) == (stage.member is not None)


def test_the_full_suite_has_what_its_sketch_has_at_full_length() -> None:
    names = {suite: {template.partition("(")[0] for template in WRITTEN[suite]} for suite in WRITTEN}
    assert names["quick"] <= names["full"] and {"apgd-t", "fab-t"} <= names["full"] - names["quick"]


def test_members_are_attacked_one_by_one_where_there_are_several() -> None:
    bound = Bound("linf", EPS)
    assert [stage.member for stage in stages("full", bound, 1, 10)] == [None] * 4
    assert [stage.member for stage in stages("full", bound, 4, 10)] == [None, None, None, 0, 1, 2, 3, None]


@pytest.mark.parametrize("suite", ["full", "quick"])
@pytest.mark.parametrize(("bound", "more"), [("linf", ["arc"]), ("l2", ["arc"]), ("l1", [])])
def test_a_randomised_ensemble_is_also_attacked_by_the_attack_made_for_it(
    suite: str, bound: Norm, more: list[str], make_cell: MakeCell
) -> None:
    limit = Bound(bound, 0.5)

    def planned(randomised: bool) -> WorstCase:
        rows = parse_attack(f"pgd(eps=0.5,norm={limit.norm})")
        setting = Setting(3, 10, ("strong",), (rows,), lambda amount: 5, 5, lambda named, classifier: None)
        ((task, *_),) = WorstCaseSection(suite=suite).plan(replace(setting, randomised=randomised))
        assert isinstance(task, WorstCase)
        return task

    usual, drawn = planned(False), planned(True)
    assert usual.stages == stages(suite, limit, 3, 10), "other ensembles keep their cells"
    assert drawn.stages[: len(usual.stages)] == usual.stages
    last = drawn.stages[len(usual.stages) :]
    assert [stage.named.name for stage in last] == more
    assert {stage.named.bound for stage in drawn.stages} == {limit}
    assert all(read_stage(stage.written()) == stage for stage in last)
    one, other = make_cell(usual), make_cell(drawn)
    assert one.line == other.line and one.circumstances == other.circumstances, "the two can be compared"
    assert (one.identity != other.identity) == bool(more)


def test_the_attack_for_randomised_ensembles_lowers_the_worst_case_where_gradients_of_the_mean_cancel() -> None:
    """Two members with nearly opposite normals: a step along the gradient of the mean fools the nearer one alone."""

    class Plane(nn.Module):
        def __init__(self, slope: float, bias: float) -> None:
            super().__init__()
            self.slope, self.bias = slope, bias

        def forward(self, images: Tensor) -> Tensor:
            first, second, *_ = images.flatten(1).T
            height = 40 * (self.slope * first + second + self.bias)
            return torch.stack([torch.zeros_like(height), height], -1)

    model = Ensemble([Plane(4.0, -2.55), Plane(-4.0, 1.4)], combine="random").eval()
    images, labels, limit = torch.full((4, 1, 2, 2), 0.5), np.zeros(4, dtype=np.int64), Bound("linf", 0.2)
    with prepared(model), torch.no_grad():
        logits = model.member_logits(images)
        outputs, right = answers(model, images, labels, 4)
        subject = Subject(model, model, images, labels, logits, outputs, None, expected=right)
        for randomised, wanted in ((False, 0.5), (True, 0.0)):
            suite = tuple(
                stage
                for stage in stages("full", limit, 2, 2, randomised=randomised)
                if stage.named.name in ("fgsm", "arc")
            )
            with torch.enable_grad():
                found = WorstCase(limit, "full", suite).batch(subject, Span(0, 4), 0)
            assert (found["p_correct"] == wanted).all(), randomised
    assert (found["broken_by"].str.startswith("arc")).all() and (found["broken_at"] == len(suite) - 1).all()


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown suite 'ful'; did you mean full"):
        stages("ful", Bound("linf", EPS), 2, 10)


@pytest.mark.parametrize(
    ("text", "label", "member"),
    [
        ("gone@someones(eps=0.1,warmth=3) [3.1]", "gone(eps=0.1,warmth=3)", None),
        ("gone@someones(eps=0.1,warmth=3) from net2 [3.1]", "gone(eps=0.1,warmth=3) from net2", 1),
        ("gone@someones []", "gone", None),
        ("pgd@torchattacks(eps=0.1,warmth=3) from net1 [0.9]", "pgd(eps=0.1,warmth=3) from net1", 0),
        ("pgd@elsewhere(eps=0.1) [1]", "pgd(eps=0.1)", None),
        ("pgd@torchattacks(eps=0.1) [0.9]", "pgd(eps=0.1)", None),
    ],
)
def test_a_stage_of_another_time_keeps_its_words(text: str, label: str, member: int | None) -> None:
    stage = read_stage(text)
    assert stage.written() == text and stage.label == label and stage.member == member
    assert read_stage(stage.written()) == stage and len({stage, read_stage(text)}) == 1


@pytest.mark.parametrize("text", ["", "pgd@native(eps=0.1)", "pgd@native(eps=0.1) from net1"])
def test_what_is_no_stage_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="cannot read the stage"):
        read_stage(text)


# --- what every stage did, image by image ---

BROKEN_AT = (-1, 0, 2, -1, 4, 3)
"""Of six images: the first is not attacked, the fourth is left standing."""
MEMBERS = (None, None, 0, 1, None)
"""Of five stages: the third is made on the first member, the fourth on the second."""


def _log() -> list[list[dict[str, Any]]]:
    log: list[list[dict[str, Any]]] = []
    for image, broken_at in enumerate(BROKEN_AT):
        met = 0 if image == 0 else len(MEMBERS) if broken_at < 0 else broken_at + 1
        log.append(
            [
                {
                    "stage": number,
                    "forwards": 10.0 * number + 1,
                    "backwards": 10.0 * number,
                    "seconds": 0.5 + number,
                    "source_fooled": None if MEMBERS[number] is None else image % 2 == 0,
                }
                for number in range(met)
            ]
        )
    return log


def _wide(log: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The columns that the first version had for what stages did: 0 and False where an image was not there any more."""
    columns: dict[str, Any] = {}
    for number, member in enumerate(MEMBERS):
        there = [next((part for part in parts if part["stage"] == number), None) for parts in log]
        for name in ("forwards", "backwards", "seconds"):
            columns[f"stage{number:02d}_{name}"] = [part[name] if part else 0.0 for part in there]
        if member is not None:
            columns[f"stage{number:02d}_source_fooled"] = [bool(part and part["source_fooled"]) for part in there]
    return columns


@pytest.fixture
def six(make_cell: MakeCell) -> Cell:
    return make_cell(WorstCase(Bound("linf", EPS), "full", stages("full", Bound("linf", EPS), 2, 10)), samples=6)


@pytest.fixture
def told(six: Cell, make_records: MakeRecords) -> pd.DataFrame:
    attacked = [False] + [True] * 5
    broken = {"attacked": attacked, "broken_at": BROKEN_AT, "correct": [False, False, False, True, False, False]}
    return make_records(six, {**broken, "broken_by": "", "stages": _log()})


def test_stages_become_a_long_table_with_a_row_for_each_image_they_met(told: pd.DataFrame) -> None:
    table = long_stages(told.assign(index=told["index"] + 100))
    assert list(table) == ["index", "stage", "forwards", "backwards", "seconds", "source_fooled"]
    met = [(101, 0)] + [(102, n) for n in range(3)] + [(103, n) for n in range(5)] + [(104, n) for n in range(5)]
    met += [(105, n) for n in range(4)]
    assert list(zip(table["index"], table["stage"], strict=True)) == met
    assert table["forwards"].tolist() == [10.0 * number + 1 for _, number in met]
    own = table[table["stage"].isin([2, 3])]
    assert own["source_fooled"].tolist() == [index % 2 == 0 for index in own["index"]]
    assert table[~table["stage"].isin([2, 3])]["source_fooled"].isna().all()


def test_a_long_table_of_nothing_has_its_columns(told: pd.DataFrame) -> None:
    none = long_stages(told.iloc[:1])
    assert none.empty and list(none) == ["index", "stage", "forwards", "backwards", "seconds", "source_fooled"]


@pytest.mark.parametrize("rows", [slice(0, 6), slice(2, 5), slice(1, 2), slice(0, 1)], ids=str)
def test_wide_records_of_the_first_version_become_the_same_long_table(told: pd.DataFrame, rows: slice) -> None:
    wide = told.drop(columns="stages").assign(**_wide(_log())).iloc[rows]
    before = wide.copy()
    found = from_wide(wide)
    pd.testing.assert_frame_equal(wide, before)
    assert not any(name.startswith("stage0") for name in found)
    pd.testing.assert_frame_equal(found.drop(columns="stages"), told.drop(columns="stages").iloc[rows])
    pd.testing.assert_frame_equal(long_stages(found), long_stages(told.iloc[rows]))


def test_records_that_are_not_wide_are_left_as_they_are(told: pd.DataFrame) -> None:
    assert from_wide(told) is told


def test_a_file_of_the_first_version_is_read_as_one_of_today(
    six: Cell, told: pd.DataFrame, make_store: MakeStore
) -> None:
    store = make_store([])
    store.write(six, told)
    today = store.read(six)
    pd.testing.assert_frame_equal(long_stages(today), long_stages(told))
    store.write(six, told.drop(columns="stages").assign(**_wide(_log())))
    old = store.read(six)
    pd.testing.assert_frame_equal(long_stages(old), long_stages(told))
    pd.testing.assert_frame_equal(old.drop(columns="stages"), today.drop(columns="stages"))


def test_what_a_run_found_is_the_same_from_a_wide_file(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    """The real records of a suite, as the first version would have had them."""
    _, worst = _worst(robust, digits[0][:60], digits[1][:60])
    table = long_stages(worst)
    columns: dict[str, Any] = {}
    for number, stage in enumerate(stages("full", Bound("linf", EPS), len(robust), 10)):
        here = table[table["stage"] == number].set_index("index").reindex(worst["index"])
        for name in ("forwards", "backwards", "seconds"):
            columns[f"stage{number:02d}_{name}"] = here[name].fillna(0.0).to_numpy()
        if stage.member is not None:
            columns[f"stage{number:02d}_source_fooled"] = (here["source_fooled"] == True).to_numpy()  # noqa: E712
    found = from_wide(worst.drop(columns="stages").assign(**columns))
    pd.testing.assert_frame_equal(long_stages(found), table)
    pd.testing.assert_frame_equal(found[list(worst)].drop(columns="stages"), worst.drop(columns="stages"))


# --- presets ---


def test_the_strong_tier_goes_with_any_preset_that_has_balls() -> None:
    def linf(*radii: float) -> list[Bound]:
        return [Bound("linf", radius) for radius in radii]

    grid = narrow(load_preset("cifar10-whitebox"), Wish(tiers=("strong",))).grids[0]
    assert grid.strong_bounds == linf(0.02, 0.04, 0.01)
    assert load_preset("cifar10-whitebox").grids[0].strong_bounds == []
    assert load_preset("cifar10-strong").grids[0].strong_bounds == linf(0.01, 0.02, 8 / 255)
    with pytest.raises(BadInput, match="has none"):
        narrow(load_preset("cifar10-whitebox"), Wish(tiers=("strong",), attacks=("cw",)))
    with pytest.raises(BadInput, match="has none"):
        narrow(load_preset("errors"), Wish(tiers=("strong",)))


def _task(suite: str, eps: float, members: int = 2) -> WorstCase:
    bound = Bound("linf", eps)
    return WorstCase(bound, suite, stages(suite, bound, members, 10))


def test_an_identity_changes_with_the_suite_and_a_place_does_not(make_cell: MakeCell) -> None:
    full = _task("full", 0.1)
    one, quick = make_cell(full), make_cell(_task("quick", 0.1))
    other = make_cell(replace(full, stages=full.stages[:-1]))
    assert len({one.identity, quick.identity, other.identity}) == 3
    assert one.place == other.place != quick.place


@pytest.mark.parametrize("bound", [Bound("linf", 8 / 255), Bound("l2", 0.5), Bound("l1", 4)])
def test_every_stage_reads_back_from_its_text(bound: Bound) -> None:
    for suite in worst_case.SUITES:
        for stage in stages(suite, bound, 3, 10, reduced=True):
            assert read_stage(stage.written()) == stage
            assert stage.reduced == (" in bfloat16" in stage.label)


def test_a_lineup_names_the_attacks_and_not_the_bound() -> None:
    wanted = "fgsm, pgd, pgd(steps=20,restarts=2,loss=margin), pgd from members, square(queries=20)"
    assert _task("full", 0.1).lineup == _task("full", 0.2, members=3).lineup == wanted


def test_only_the_strong_tier_has_other_cells_with_a_pass_in_bfloat16(
    bfloat16: None, here: Path, checkpoint: Path
) -> None:
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS})", "--samples", "10", "--defense", str(checkpoint)]
    asked += ["--tier", "strict", "--tier", "strong", "--out", "run"]
    assert adp_bench(asked) == 0
    before = {path.name for path in (here / "run" / "cells").iterdir()}
    assert adp_bench([*asked, "--acceleration", "reduced"]) == 0
    new = {path.name for path in (here / "run" / "cells").iterdir()} - before
    assert len(new) == 1 and new.pop().startswith("strong")
    strong = pd.read_csv(here / "run" / "strong.csv")
    assert strong["attack"].str.endswith(" in bfloat16").sum() == len(worst_case.FIRST_PASS)
    assert "in bfloat16" in (here / "run" / "table.md").read_text(encoding="utf-8")


# --- a run ---


@pytest.fixture
def folder(here: Path, checkpoint: Path, robust_checkpoint: Path) -> Path:
    """A run of two defenses in all three tiers, with its images kept."""
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS})", "--samples", "40", "--batch-size", "16", "--keep-images"]
    asked += ["--tier", "paper", "--tier", "strict", "--tier", "strong", "--out", "run"]
    for defense in (checkpoint, robust_checkpoint):
        asked += ["--defense", str(defense)]
    assert adp_bench(asked) == 0
    return here / "run"


def test_a_run_shows_how_far_the_tiers_lie_apart_and_who_broke_what(folder: Path) -> None:
    store = Store(folder)
    results = read_results(store)
    gap = gap_table(results)
    assert gap["defense"].tolist() == ["small", "robust"]
    assert (gap["strong"] <= gap["strict"]).all()
    table = pd.read_csv(folder / "table.csv")
    strict = table[table["tier"] == "strict"]
    assert gap["strict"].tolist() == strict["accuracy"].tolist()
    suite = suite_table(results)
    for defense, rows in suite.groupby("defense", sort=False):
        clean = table[table["defense"] == defense]["clean_accuracy"].iloc[0] * 40 / 100
        row = gap[gap["defense"] == defense].iloc[0]
        assert clean - rows["fooled_first"].sum() == pytest.approx(row["strong"] * 40 / 100)
        assert rows["accuracy_after"].iloc[-1] == row["strong"]
        assert rows["accuracy_after"].is_monotonic_decreasing
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Accuracy by tier" in page and "worst case" in page
    assert (folder / "figures" / "gap-digits-eps0.05.svg").is_file()
    before = {name: (folder / name).read_bytes() for name in ("strong.csv", "gap.csv", "report.html")}
    write_report(store)
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_the_picture_of_the_gap_says_how_many_images_each_has(make_cell: MakeCell, make_results: MakeResults) -> None:
    task = WorstCase(Bound("linf", 0.1), "full", ())
    cells = [make_cell(task, name, samples=count) for name, count in (("one", 50), ("two", 20))]
    (figure,) = gap_figures(gap_table(make_results([(cell, {"broken_at": -1}) for cell in cells])))
    assert "first 20 to 50 test images, by defense, ε=0.1" in figure.words


def test_the_gap_is_between_tiers_and_not_between_attacks(folder: Path, checkpoint: Path) -> None:
    """An attack that tier strict alone has says nothing of what the paper's way of attacking is worth."""
    before = gap_table(read_results(Store(folder)))
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS},steps=50,step_size=0.01,restarts=2)", "--tier", "strict"]
    asked += ["--samples", "40", "--batch-size", "16", "--out", "run", "--defense", str(checkpoint)]
    assert adp_bench(asked) == 0
    results = read_results(Store(folder))
    attacked = [(cell, cell.task.attack) for cell in results.cells]
    longer = next(cell for cell, named in attacked if named and named.attack.settings().get("restarts") == 2)
    assert 100 * results.records[longer]["correct"].mean() < before["strict"].iloc[0]
    pd.testing.assert_frame_equal(gap_table(results), before)


def test_kept_images_fool_the_same_weights_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(folder)
    cell = next(cell for cell in store.asked() if isinstance(cell.task, WorstCase))
    index, images = store.images(cell)
    records = store.read(cell)
    assert images.dtype == np.float32 and "adversarial" not in records
    assert index.tolist() == records["index"][records["attacked"] & ~records["correct"]].tolist()
    models = [
        word for spec in dict.fromkeys(cell.ensemble.spec for cell in store.asked()) for word in ("--model", spec)
    ]
    assert adp_bench(["verify", str(folder)]) == 2, "what a manifest names is never loaded"
    assert "--model" in capsys.readouterr().err
    assert adp_bench(["verify", str(folder), *models]) == 0
    assert "as recorded" in capsys.readouterr().out
    path = store.images_path(cell)
    content = safetensors.numpy.load(path.read_bytes())
    content["images"] = np.clip(content["images"] + 0.3, 0, 1)
    path.write_bytes(safetensors.numpy.save(content))
    assert adp_bench(["verify", str(folder), *models]) == 3
    assert re.search(rf"[1-9]\d* images lie outside the bound linf:{EPS}\b", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_file_that_only_the_manifest_names_does_not_run(command: str, here: Path, checkpoint: Path) -> None:
    asked = ["run", "demo", "--attack", f"fgsm(eps={EPS})", "--tier", "strict", "--samples", "8", "--keep-images"]
    assert adp_bench([*asked, "--defense", str(checkpoint), "--out", "run"]) == 0
    (here / "evil.py").write_text("open('EXECUTED', 'w')\ndef load(): ...\n")
    store = Store(here / "run")
    for spec in ("evil.py:load", str(here / "evil.py:load"), "evil.py:Net(a=1)"):
        named = [replace(cell, ensemble=replace(cell.ensemble, spec=spec, network=spec)) for cell in store.asked()]
        store.write_manifest(named, store.manifest())
        assert adp_bench([command, "run"]) == (0 if command == "report" else 2)
        assert not (here / "EXECUTED").exists()


def test_asking_for_images_later_runs_what_has_none(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Store(folder)
    cell = next(cell for cell in store.asked() if isinstance(cell.task, WorstCase))
    before = store.read(cell)
    store.images_path(cell).unlink()
    defenses = list(dict.fromkeys(cell.ensemble.spec for cell in store.asked()))
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS})", "--samples", "40", "--batch-size", "16"]
    asked += ["--tier", "paper", "--tier", "strict", "--tier", "strong", "--out", "run"]
    for defense in defenses:
        asked += ["--defense", defense]
    assert adp_bench(asked) == 0
    assert not store.images_path(cell).is_file()
    assert adp_bench([*asked, "--keep-images"]) == 0
    assert store.images_path(cell).is_file()
    after = store.read(cell)
    pd.testing.assert_frame_equal(before.drop(columns=["seconds", "stages"]), after.drop(columns=["seconds", "stages"]))
    stages_before, stages_after = (long_stages(records).drop(columns="seconds") for records in (before, after))
    assert len(stages_before) > len(before)
    pd.testing.assert_frame_equal(stages_before, stages_after)


def test_a_run_without_kept_images_cannot_be_verified(
    make_cell: MakeCell, make_store: MakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store([(make_cell(WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")), {})])
    assert adp_bench(["verify", str(store.folder)]) == 2
    assert "--keep-images" in capsys.readouterr().err
