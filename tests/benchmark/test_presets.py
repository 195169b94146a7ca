"""Presets are the paper's tables: every number it published stands beside exactly one planned cell."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch

import benchmark.published
from benchmark import datasets
from benchmark.ensembles import Trained
from benchmark.grid import Grid, load_preset, narrow, preset_names
from benchmark.planning import Request, plan_cells
from defenses.catalogue import PAPER_DEFENSES, parse_defense
from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.members.ensemble import build_ensemble
from defenses.members.networks import canonical_network
from defenses.training.recipes import find_recipe

CSV = Path(benchmark.published.__file__).with_name("adp_icml2019.csv")
OURS = {"cifar10-strong"}
"""Presets that are no artifact of the paper."""
TABLES = ("table1", "table2", "table3", "table4", "table5")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_names_things_that_exist(name: str) -> None:
    preset = load_preset(name)
    assert preset.title and preset.grids
    for grid in preset.grids:
        assert grid.dataset in datasets.names() and set(grid.tiers) <= {"paper", "strict", "strong"}
        canonical_network(grid.network)
        find_recipe(grid.recipe, grid.dataset)
        classes = next(row["classes"] for row in datasets.describe() if row["name"] == grid.dataset)
        for spec in grid.defenses:
            parse_defense(spec).defense.check(grid.members, int(str(classes)))
        names = [planned.named and planned.named.text for planned in grid.attacks]
        assert len(set(names)) == len(names)
        assert names or grid.transfer or grid.detection or grid.diversity


def test_the_presets_asked_for_are_there() -> None:
    wanted = {"demo", "mnist-whitebox", "cifar10-whitebox", "cifar100-whitebox", "cifar10-advt", "cifar10-k5", "errors"}
    wanted |= {"cifar10-transfer", "cifar10-detection", "diversity", "cifar10-strong"}
    assert wanted <= set(preset_names())


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_table_2_has_its_15_rows_in_the_papers_order(dataset: str) -> None:
    (grid,) = load_preset(f"{dataset}-whitebox").grids
    assert grid.dataset == dataset and grid.defenses == ("baseline", "adp-2-0", "adp-2-0.5") and grid.members == 3
    with open(CSV, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["table"], row["dataset"]) == ("table2", dataset)]
    published = list(dict.fromkeys((row["attack"], row["parameter"], float(row["value"])) for row in rows))
    assert len(published) == 15
    found = []
    for planned in grid.attacks:
        assert planned.named is not None
        key = {"jsma": "gamma", "cw": "c", "ead": "c"}.get(planned.named.name, "eps")
        found.append((planned.named.name, key, planned.named.settings()[key]))
    assert found == published


def test_paper_sample_counts_are_the_papers() -> None:
    counts = {"fgsm": 10000, "bim": 10000, "pgd": 10000, "mim": 10000, "cw": 1000, "ead": 1000}
    for name in set(preset_names()) - OURS:
        for grid in load_preset(name).grids:
            if grid.dataset == "digits":
                continue
            for planned in grid.attacks:
                if planned.named is None:
                    continue
                expected = counts.get(planned.named.name, 100 if grid.dataset == "mnist" else 200)
                assert planned.paper_samples == expected, (name, planned)
                assert 0 < planned.samples <= expected


def test_the_demo_covers_every_defense_and_attack_of_the_paper() -> None:
    (grid,) = load_preset("demo").grids
    assert {*PAPER_DEFENSES, "label-smoothing-0.6"} <= set(grid.defenses)
    attacks = {planned.named.name for planned in grid.attacks if planned.named}
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
                what = (cell.dataset, cell.members, cell.attack, cell.parameters, cell.defense)
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


# --- narrowing ---


def test_a_name_takes_the_presets_rows_and_a_spec_is_taken_as_it_is() -> None:
    preset = narrow(load_preset("cifar10-whitebox"), ["strict"], ["jsd"], ["pgd", "cw(c=3)"], 25)
    (grid,) = preset.grids
    texts = [planned.named.label for planned in grid.attacks if planned.named]
    assert texts == ["pgd(eps=0.01)", "pgd(eps=0.02)", "cw(c=3)"]
    assert [planned.samples for planned in grid.attacks] == [500, 500, 100]
    assert (grid.tiers, grid.defenses, grid.batch_size) == (("strict",), ("jsd",), 25)


def test_without_wishes_a_preset_stays_as_it_is() -> None:
    preset = load_preset("demo")
    assert narrow(preset, [], [], []) == preset


def test_an_unknown_preset_is_bad_input() -> None:
    with pytest.raises(BadInput, match="unknown preset 'dem'; did you mean demo"):
        load_preset("dem")
