"""The strong tier is the worst case image by image, spends nothing on decided images, and says who broke what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.cells import Cell
from benchmark.cli import run as adp_bench
from benchmark.evaluations import strong
from benchmark.grid import load_preset, narrow, strong_radii
from benchmark.planning import strong_cell
from benchmark.reports import write_report
from benchmark.reports.strong import gap_figures, gap_table, suite_table
from benchmark.reports.tables import read_rows
from benchmark.store import Store
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

MakeCell = Callable[..., Cell]
MakeStore = Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]

EPS = 0.05
SUITE = (
    "fgsm(eps={eps})",
    "pgd(eps={eps})",
    "pgd(eps={eps},steps=20,step_size={step},restarts=2,loss=margin)",
    "pgd@native(eps={eps},steps=10,step_size={step}) from members",
    "square(eps={eps},queries=20)",
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strong.SUITES, "full", SUITE)


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
    texts = [template.format(eps=EPS, step=EPS / 5) for template in SUITE[:3]]
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


def test_survivors_alone_are_attacked_further(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    _, worst = _worst(robust, digits[0][:60], digits[1][:60])
    stages = strong.stages("full", EPS, len(robust))
    assert [stage.source for stage in stages] == ["ensemble"] * 3 + ["net1", "net2", "ensemble"]
    for number, _ in enumerate(stages):
        met = worst["attacked"] & ((worst["broken_at"] < 0) | (worst["broken_at"] >= number))
        assert (worst[f"stage{number:02d}_forwards"] > 0).tolist() == met.tolist()
    total = sum(worst[f"stage{number:02d}_backwards"] for number in range(len(stages)))
    assert np.allclose(total, worst["backwards"])
    assert (worst["backwards"][~worst["attacked"]] == 0).all()


def test_a_broken_defense_costs_a_fraction_of_the_suite(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    records: dict[str, pd.DataFrame] = {}
    evaluate(ensemble, images, labels, ["pgd(eps=0.5)"], tier="strong", records=records)
    (worst,) = records.values()
    texts = [template.format(eps=0.5, step=0.1) for template in SUITE[:3]]
    alone = evaluate(ensemble, images, labels, texts)
    assert worst["correct"].sum() == 0
    assert worst["backwards"].mean() < 0.6 * alone["backwards"].sum()


def test_a_network_by_itself_has_no_members_to_attack(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    plain = nn.Sequential(ensemble.member(0))
    row, worst = _worst(plain, digits[0][:30], digits[1][:30])
    assert row["members"] == 1
    assert "stage03_source_fooled" not in worst
    assert 0 <= row["accuracy"] < row["clean_accuracy"]


def test_the_same_images_in_other_batches_give_nearly_the_same(robust: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    one, _ = _worst(robust, digits[0][:60], digits[1][:60])
    other, _ = _worst(robust, digits[0][:60], digits[1][:60], batch_size=17)
    assert abs(one["accuracy"] - other["accuracy"]) <= 5


def test_attacks_without_a_ball_have_no_strong_tier(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(BadInput, match="none of these has one"):
        evaluate(ensemble, digits[0][:5], digits[1][:5], ["cw(c=1)"], tier="strong")


# --- presets ---


def test_the_strong_tier_goes_with_any_preset_that_has_balls() -> None:
    grid = narrow(load_preset("cifar10-whitebox"), ["strong"], [], []).grids[0]
    assert strong_radii(grid) == [0.02, 0.04, 0.01]
    assert strong_radii(load_preset("cifar10-whitebox").grids[0]) == []
    assert strong_radii(load_preset("cifar10-strong").grids[0]) == [0.01, 0.02, 8 / 255]
    with pytest.raises(BadInput, match="has none"):
        narrow(load_preset("cifar10-whitebox"), ["strong"], [], ["cw"])
    with pytest.raises(BadInput, match="has none"):
        narrow(load_preset("errors"), ["strong"], [], [])


def test_an_identity_changes_with_the_suite_and_a_place_does_not(make_cell: Callable[..., Cell]) -> None:
    template = make_cell("clean")
    names = ("dataset", "data_checksum", "defense", "spec", "members", "network", "training", "weights", "seed")
    base = {name: getattr(template, name) for name in (*names, "batch_size", "device")}
    one = strong_cell(base, "full", 0.1, 50)
    quick = strong_cell(base, "quick", 0.1, 50)
    other = Cell(**{**one.asked(), "settings": {**one.settings, "stages": one.settings["stages"][:-1]}})
    assert len({one.identity, quick.identity, other.identity}) == 3
    assert one.place == other.place != quick.place


def test_every_stage_reads_back_from_its_text() -> None:
    for suite in strong.SUITES:
        for stage in strong.stages(suite, 8 / 255, 3):
            assert strong.read_stage(stage.text) == stage


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
    gap = gap_table(read_rows(store))
    assert gap["defense"].tolist() == ["small", "robust"]
    assert (gap["strong"] <= gap["strict"]).all()
    table = pd.read_csv(folder / "table.csv")
    strict = table[table["tier"] == "strict"]
    assert gap["strict"].tolist() == strict["accuracy"].tolist()
    suite = suite_table(store)
    for defense, rows in suite.groupby("defense", sort=False):
        clean = table[table["defense"] == defense]["clean_accuracy"].iloc[0] * 40 / 100
        row = gap[gap["defense"] == defense].iloc[0]
        assert clean - rows["fooled_first"].sum() == pytest.approx(row["strong"] * 40 / 100)
        assert rows["accuracy_after"].iloc[-1] == row["strong"]
        assert rows["accuracy_after"].is_monotonic_decreasing
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "How far the tiers lie apart" in page and "the worst of the suite" in page
    assert (folder / "figures" / "gap-digits-eps0.05.svg").is_file()
    before = {name: (folder / name).read_bytes() for name in ("strong.csv", "gap.csv", "report.html")}
    write_report(store)
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_the_picture_of_the_gap_says_how_many_images_each_has(make_cell: MakeCell, make_store: MakeStore) -> None:
    settings = {"eps": 0.1, "suite": "full", "stages": []}
    cells = [
        make_cell("strong", name, "worst-case", tier="strong", settings=settings, samples=count)
        for name, count in (("one", 50), ("two", 20))
    ]
    (figure,) = gap_figures(read_rows(make_store([(cell, {"broken_at": -1}) for cell in cells])))
    assert "on the first images, 20 to 50 by defense, ε = 0.1" in figure.words


def test_the_gap_is_between_tiers_and_not_between_attacks(folder: Path, checkpoint: Path) -> None:
    """An attack that tier strict alone has says nothing of what the paper's way of attacking is worth."""
    before = gap_table(read_rows(Store(folder)))
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS},steps=50,step_size=0.01,restarts=2)", "--tier", "strict"]
    asked += ["--samples", "40", "--batch-size", "16", "--out", "run", "--defense", str(checkpoint)]
    assert adp_bench(asked) == 0
    rows = read_rows(Store(folder))
    longer = next(cell for cell in rows.cells if cell.settings.get("restarts") == 2)
    assert 100 * rows.records[longer.identity]["correct"].mean() < before["strict"].iloc[0]
    pd.testing.assert_frame_equal(gap_table(rows), before)


def test_kept_images_fool_the_same_weights_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(folder)
    cell = next(cell for cell in store.asked() if cell.tier == "strong")
    index, images = store.images(cell)
    records = store.read(cell)
    assert images.dtype == np.float32 and "adversarial" not in records
    assert index.tolist() == records["index"][records["attacked"] & ~records["correct"]].tolist()
    assert adp_bench(["verify", str(folder)]) == 0
    assert "fool it as recorded" in capsys.readouterr().out
    path = store.images_path(cell)
    content = safetensors.numpy.load(path.read_bytes())
    content["images"] = np.clip(content["images"] + 0.3, 0, 1)
    path.write_bytes(safetensors.numpy.save(content))
    assert adp_bench(["verify", str(folder)]) == 1
    assert f"further than eps = {EPS}" in capsys.readouterr().out


def test_asking_for_images_later_runs_what_has_none(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Store(folder)
    cell = next(cell for cell in store.asked() if cell.tier == "strong")
    before = store.read(cell)
    store.images_path(cell).unlink()
    defenses = list(dict.fromkeys(cell.spec for cell in store.asked()))
    asked = ["run", "demo", "--attack", f"pgd(eps={EPS})", "--samples", "40", "--batch-size", "16"]
    asked += ["--tier", "paper", "--tier", "strict", "--tier", "strong", "--out", "run"]
    for defense in defenses:
        asked += ["--defense", defense]
    assert adp_bench(asked) == 0
    assert not store.images_path(cell).is_file()
    assert adp_bench([*asked, "--keep-images"]) == 0
    assert store.images_path(cell).is_file()
    timings = [name for name in before if "seconds" in name]
    pd.testing.assert_frame_equal(before.drop(columns=timings), store.read(cell).drop(columns=timings))


def test_a_run_without_kept_images_cannot_be_verified(
    make_cell: Callable[..., Cell],
    make_store: Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = make_store([(make_cell("whitebox", attack="pgd"), {})])
    assert adp_bench(["verify", str(store.folder)]) == 2
    assert "--keep-images" in capsys.readouterr().err


def test_random_numbers_of_images_are_the_images_own() -> None:
    from benchmark.models import AttackedModel

    model = AttackedModel(nn.Identity(), draws=[("a", 0), ("a", 1), ("a", 2)])
    whole = model.uniform(torch.arange(3), (2, 2), 0)
    assert torch.equal(model.uniform(torch.tensor([2]), (2, 2), 0)[0], whole[2])
    assert not torch.equal(model.uniform(torch.tensor([2]), (2, 2), 1)[0], whole[2])
    assert float(whole.min()) >= 0 and float(whole.max()) < 1
