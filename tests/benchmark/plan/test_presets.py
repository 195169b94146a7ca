"""Presets are the paper's tables: every number it published stands beside exactly one planned cell."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch

import benchmark.plan.published
from benchmark import datasets
from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles.finding import Trained
from benchmark.evaluations.clean import CleanSection
from benchmark.evaluations.detection import DetectionSection
from benchmark.evaluations.diversity import DiversitySection
from benchmark.evaluations.transfer import TransferSection
from benchmark.evaluations.whitebox import Row, WhiteBoxSection
from benchmark.plan.grid import Grid
from benchmark.plan.planning import plan_cells
from benchmark.plan.presets import load_preset, preset_names
from benchmark.plan.run_request import Request
from defenses.catalogue import PAPER_DEFENSES, parse_defense
from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.members.ensemble import build_ensemble
from defenses.members.networks import canonical_network
from defenses.training.recipes import find_recipe

CSV = Path(benchmark.plan.published.__file__).with_name("adp_icml2019.csv")
OURS = {"cifar10-strong"}
"""Presets that are no artifact of the paper."""
TABLES = ("table1", "table2", "table3", "table4", "table5")


def _rows(grid: Grid) -> tuple[Row, ...]:
    """The white-box rows of a grid."""
    section = grid.section(WhiteBoxSection)
    return section.rows if section else ()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_names_things_that_exist(name: str) -> None:
    preset = load_preset(name)
    assert preset.title and preset.grids
    for grid in preset.grids:
        assert grid.dataset in datasets.names() and set(grid.tiers) <= {"paper", "strict", "strong"}
        canonical_network(grid.network)
        find_recipe(grid.recipe, DATASETS.get(grid.dataset).look)
        classes = next(row["classes"] for row in datasets.describe() if row["name"] == grid.dataset)
        for spec in grid.defenses:
            parse_defense(spec).defense.check(grid.members, int(str(classes)))
        names = [row.named.text for row in _rows(grid)]
        assert len(set(names)) == len(names)
        assert len({type(section) for section in grid.sections}) == len(grid.sections), "each is there once"
        others = (CleanSection, TransferSection, DetectionSection, DiversitySection)
        assert names or any(grid.section(kind) for kind in others)


def test_the_presets_asked_for_are_there() -> None:
    wanted = {"demo", "mnist-whitebox", "cifar10-whitebox", "cifar100-whitebox", "cifar10-advt", "cifar10-k5", "errors"}
    wanted |= {"cifar10-transfer", "cifar10-detection", "diversity", "cifar10-strong"}
    assert wanted <= set(preset_names())


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_table_2_has_its_15_rows_in_the_papers_order(dataset: str) -> None:
    (grid,) = load_preset(f"{dataset}-whitebox").grids
    assert grid.dataset == dataset and grid.members == 3
    assert grid.defenses == ("baseline", "adp-2-0", "adp-2-0.5", "label-smoothing-0.6"), "the paper's, and the control"
    with open(CSV, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["table"], row["dataset"]) == ("table2", dataset)]
    published = list(dict.fromkeys((row["attack"], row["parameter"], float(row["value"])) for row in rows))
    assert len(published) == 15
    found = []
    for row in _rows(grid):
        key = {"jsma": "gamma", "cw": "c", "ead": "c"}.get(row.named.name, "eps")
        found.append((row.named.name, key, row.named.attack.settings()[key]))
    assert found == published


def test_paper_sample_counts_are_the_papers() -> None:
    counts = {"fgsm": 10000, "bim": 10000, "pgd": 10000, "mim": 10000, "cw": 1000, "ead": 1000}
    for name in set(preset_names()) - OURS:
        for grid in load_preset(name).grids:
            if grid.dataset == "digits":
                continue
            for row in _rows(grid):
                expected = counts.get(row.named.name, 100 if grid.dataset == "mnist" else 200)
                assert row.amount.paper_samples == expected, (name, row)
                assert 0 < row.amount.samples <= expected


def test_the_demo_covers_every_defense_and_attack_of_the_paper() -> None:
    (grid,) = load_preset("demo").grids
    assert {*PAPER_DEFENSES, "label-smoothing-0.6"} <= set(grid.defenses)
    attacks = {row.named.name for row in _rows(grid)}
    assert attacks == {"fgsm", "bim", "pgd", "mim", "jsma", "cw", "ead"}
    assert set(grid.tiers) == {"paper", "strict", "strong"}


def _planned(grid: Grid) -> list[tuple[str, float]]:
    """(what, published) of every cell of a grid that has a published number, each tier counted once."""
    request = Request(load_preset("demo"), "all", (0,), torch.device("cpu"), Path("nowhere"), "")
    found: dict[tuple[object, ...], float] = {}
    for spec in grid.defenses:
        named = parse_defense(spec)
        about = Provenance(named.text, grid.dataset, grid.network, grid.members, (1, 8, 8), 10)
        ensemble = build_ensemble("mini-resnet(width=1)", 1, (1, 8, 8), 10)
        for cell in plan_cells(grid, Trained(named.label, named.text, ensemble, about), request, 0, "checksum"):
            if cell.published is not None:
                ensemble_of = (cell.images.dataset, cell.ensemble.members, cell.ensemble.defense)
                what = (*ensemble_of, cell.task.name, cell.task.parameters)
                assert found.setdefault(what, cell.published) == cell.published, "the same in every tier"
    return [(repr(what), number) for what, number in found.items()]


def test_every_published_accuracy_stands_beside_exactly_one_planned_cell() -> None:
    planned: Counter[str] = Counter()
    numbers: list[float] = []
    for name in set(preset_names()) - OURS:
        for grid in load_preset(name).grids:
            for what, number in _planned(grid):
                planned[what] += 1
                numbers.append(number)
    assert max(planned.values()) == 1
    with open(CSV, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] in TABLES]
    expected = [
        float(row["published"]) if row["metric"] == "accuracy" else round(100 - float(row["published"]), 4)
        for row in rows
    ]
    assert sorted(numbers) == sorted(expected) and len(expected) == 164


def test_an_unknown_preset_is_bad_input() -> None:
    with pytest.raises(BadInput, match="unknown preset 'dem'; did you mean demo"):
        load_preset("dem")
