"""How an ensemble was trained, in words: the recipe, and every setting that differs from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmark.datasets.catalogue import DATASETS, Entry
from benchmark.datasets.lookup import look_of
from defenses.checkpoints import Provenance
from defenses.members.combination import USUAL
from defenses.training.recipes import RECIPES, Recipe, find_recipe, own_recipe

SAID = ("epochs", "train_images")
"""Settings that `describe_training` describes separately."""


def describe_training(origin: Provenance) -> str:
    """How an ensemble was trained."""
    recipe = origin.recipe
    rule = describe_combination(origin)
    if not recipe:
        return ": ".join(filter(None, ["from outside", origin.recognised])) + rule
    words = f"{recipe['name']} recipe, {origin.epoch} epoch{'s' * (origin.epoch != 1)}"
    words += f" on {recipe['train_images']} images" * bool(recipe.get("train_images"))
    return ", ".join([words, *others_of(origin), f"seed {origin.seed}"]) + rule


def describe_combination(origin: Provenance) -> str:
    """The combination rule after a comma; empty for the default rule."""
    return "" if origin.combine == USUAL.text else f", combines {origin.combine}"


def others_of(origin: Provenance) -> list[str]:
    """Settings that differ from the recipe, without epochs and images."""
    changed = changed_settings(origin)
    others = [f"{name.replace('_', ' ')} {value}" for name, value in changed.items() if name not in SAID]
    return others + ["started from another ensemble"] * bool(origin.started_from)


def changed_settings(origin: Provenance) -> dict[str, Any]:
    """Settings of a training that differ from today's recipe of the same name."""
    name = origin.recipe.get("name")
    if name not in RECIPES:
        return {}
    today = _today(name, origin).as_dict()
    return {setting: value for setting, value in origin.recipe.items() if today.get(setting) != value}


def _today(name: str, origin: Provenance) -> Recipe:
    """Today's recipe of that name; for a user's data, epochs depend on the number of images, which is not stored."""
    entry = DATASETS.get(origin.dataset) if origin.dataset in DATASETS.names() else None
    if isinstance(entry, Entry):
        return find_recipe(name, entry.look)
    recipe = own_recipe(name, look_of(origin.shape), 0)
    return replace(recipe, milestones=tuple(origin.recipe.get("milestones", ())))
