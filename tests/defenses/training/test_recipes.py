"""Recipes hold the paper's numbers, vary what is asked, and refuse what makes no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmark.datasets.catalogue import DATASETS
from defenses.errors import BadInput
from defenses.training.recipes import find_recipe, paper


@pytest.mark.parametrize(("dataset", "epochs"), [("cifar10", 180), ("cifar100", 180), ("mnist", 40)])
def test_the_papers_recipe_is_the_authors_code(dataset: str, epochs: int) -> None:
    recipe = paper(DATASETS.get(dataset).look)
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.adam_eps) == (epochs, 64, 1e-3, 1e-7)
    assert (recipe.weight_decay, recipe.shift, recipe.flip, recipe.select) == (2e-4, 0.1, True, "last")


def test_steps_divide_the_learning_rate_by_ten_after_each_milestone() -> None:
    recipe = paper("colour")
    rates = [recipe.learning_rate_at(epoch, 0.0) for epoch in (0, 79, 80, 119, 120, 160, 179)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-6, 1e-6])


def test_one_cycle_rises_once_to_its_peak_and_falls_to_almost_nothing() -> None:
    recipe = find_recipe("fast", "tiny")
    rates = [recipe.learning_rate_at(0, step / 200) for step in range(201)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(recipe.learning_rate)
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[0] < max(rates) / 10 and 0 <= rates[-1] < max(rates) / 50


def test_image_sizes_get_equal_shares_of_the_epochs() -> None:
    recipe = find_recipe("fast", "tiny", epochs=6, resolutions=(0.5, 1.0))
    assert [recipe.scale_at(epoch) for epoch in range(6)] == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("epochs", "expected"), [(1, [1.0]), (2, [0.75, 1.0]), (4, [0.625, 0.75, 1.0, 1.0])])
def test_training_ends_on_whole_images_however_few_epochs_there_are(epochs: int, expected: list[float]) -> None:
    recipe = find_recipe("fast", "colour", epochs=epochs)
    assert [recipe.scale_at(epoch) for epoch in range(epochs)] == expected


def test_settings_can_be_changed_and_none_leaves_them() -> None:
    recipe = find_recipe("fast", "grey", epochs=7, batch_size=None)
    assert recipe.epochs == 7 and recipe.batch_size == find_recipe("fast", "grey").batch_size


def test_a_recipe_survives_json() -> None:
    record = find_recipe("fast", "colour").as_dict()
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 1}, "batch_size is 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"freeze_patience": -1}, "freeze_patience is -1"),
        ({"validation": -1}, "validation is -1"),
        ({"train_images": -1}, "train_images is -1"),
        ({"select": "validation"}, "give --validation N"),
        ({"select": "test"}, "unknown select 'test'; .*test-accuracy"),
        ({"strategy": "sequentiel"}, "unknown strategy 'sequentiel'; did you mean sequential"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find_recipe("fast", "tiny", **changes)


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="unknown recipe 'papper'; did you mean paper"):
        find_recipe("papper", "tiny")
