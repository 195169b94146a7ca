"""How an ensemble was trained, in words: the recipe, and every setting that is not the recipe's."""

from __future__ import annotations

from typing import Any

from benchmark.datasets.catalogue import DATASETS
from defenses.checkpoints import Provenance
from defenses.training.recipes import RECIPES, find_recipe

SAID = ("epochs", "train_images")
"""Settings that `describe_training` has words of its own for."""


def describe_training(origin: Provenance) -> str:
    """How an ensemble was trained."""
    recipe = origin.recipe
    if not recipe:
        return ": ".join(filter(None, ["from outside", origin.recognised]))
    words = f"{recipe['name']} recipe, {origin.epoch} epoch{'s' * (origin.epoch != 1)}"
    words += f" on {recipe['train_images']} images" * bool(recipe.get("train_images"))
    return ", ".join([words, *others_of(origin), f"seed {origin.seed}"])


def others_of(origin: Provenance) -> list[str]:
    """What else is not the recipe's, beside epochs and images."""
    changed = changed_settings(origin)
    others = [f"{name.replace('_', ' ')} {value}" for name, value in changed.items() if name not in SAID]
    return others + ["started from another ensemble"] * bool(origin.started_from)


def changed_settings(origin: Provenance) -> dict[str, Any]:
    """Settings an ensemble was trained with that the recipe of that name does not have today."""
    name = origin.recipe.get("name")
    if name not in RECIPES or origin.dataset not in DATASETS.names():
        return {}
    today = find_recipe(name, DATASETS.get(origin.dataset).look).as_dict()
    return {setting: value for setting, value in origin.recipe.items() if today.get(setting) != value}
