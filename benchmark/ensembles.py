"""Find the ensemble a defense spec stands for: a checkpoint that was named, one that is there, or a new one."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.datasets.catalogue import DATASETS
from benchmark.models import check_outside, prepared
from benchmark.training import CHANGED, ENSEMBLES, clock, default_folder, train_ensemble, training_data
from defenses.catalogue import parse_defense
from defenses.checkpoints import (
    EXAMPLE_RESNET18,
    FILE_NAME,
    Provenance,
    is_checkpoint,
    load_checkpoint,
    named_files,
    read_provenance,
)
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, has_features
from defenses.members.networks import canonical_network
from defenses.training.estimates import estimate_seconds
from defenses.training.recipes import RECIPES, find_recipe
from defenses.training.request import TrainingRequest

REFERENCE = Path("results/checkpoints")
"""Ensembles that come with the project, in the same layout as `ENSEMBLES`."""
BESIDE = Path(__file__).parents[1] / REFERENCE
"""The same beside the source, for who works in another folder."""


def references() -> list[Path]:
    """Where ensembles that come with the project may be."""
    here = REFERENCE.is_dir() and BESIDE.is_dir() and REFERENCE.samefile(BESIDE)
    return [REFERENCE] if here else [REFERENCE, BESIDE]


@dataclass(frozen=True)
class Trained:
    """A trained ensemble and the names it goes by in tables."""

    label: str
    spec: str
    ensemble: Ensemble
    provenance: Provenance

    @property
    def training(self) -> str:
        """How it was trained, in words."""
        return describe_training(self.provenance)


def describe_training(origin: Provenance) -> str:
    """How an ensemble was trained, in words: the recipe, and every setting that is not the recipe's."""
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


SAID = ("epochs", "train_images")
"""Settings that `describe_training` has words of its own for."""


def load_outside(spec: str, dataset: str) -> Trained:
    """The trained model that a spec names, checked on images like those of the dataset."""
    about = DATASETS.get(dataset)
    ensemble = load_checkpoint(spec, dataset=dataset, shape=about.shape, classes=about.classes)
    assert ensemble.provenance is not None
    if ensemble.provenance.recognised:
        images = torch.rand(8, *about.shape, generator=torch.Generator().manual_seed(0))
        with prepared(ensemble):
            for number, member in enumerate(ensemble.members, 1):
                try:
                    check_outside(member, ensemble.normalise(images), about.classes)
                except BadInput as error:
                    place = spec if len(ensemble) == 1 else f"member {number} of {spec}"
                    raise BadInput(f"{place}: {error}") from error
    return Trained(_label(spec), spec, ensemble, ensemble.provenance)


def _label(spec: str) -> str:
    """What tables call a trained model: its file, its folder, or the function that makes it."""
    if ".py:" in spec:
        return spec.rpartition(":")[2]
    if spec == EXAMPLE_RESNET18:
        return spec
    path, *others = (path.resolve() for path in named_files(spec)[0])
    label = path.parent.name if path.name == FILE_NAME else path.name if path.is_dir() else path.stem
    return f"{label} and {len(others)} more" if others else label


def _describe(trained: Trained) -> str:
    """What a spec was recognised as, and what can not be done with it."""
    origin = trained.provenance
    words = origin.recognised or f"adp-benchmark, {origin.members} × {origin.network}, {trained.training}"
    featureless = not all(has_features(member) for member in trained.ensemble.members)
    return words + ("; without features(images), so not in the map of features" if featureless else "")


def changed_settings(origin: Provenance) -> dict[str, Any]:
    """Settings an ensemble was trained with that the recipe of that name does not have today."""
    name = origin.recipe.get("name")
    if name not in RECIPES:
        return {}
    today = find_recipe(name, origin.dataset).as_dict()
    return {setting: value for setting, value in origin.recipe.items() if today.get(setting) != value}


def locate(spec: str, dataset: str, network: str, members: int, recipe: str, seed: int) -> Path | None:
    """Where the trained ensemble is, or None when it has to be trained first.

    A reference ensemble that was trained on less than the recipe says is better than none, and says so in tables.
    """
    named = parse_defense(spec)
    named.defense.check(members, 10**9)
    folder = default_folder(named, dataset, canonical_network(network), members, find_recipe(recipe, dataset), seed)
    for root in (*references(), ENSEMBLES):
        path = root / folder.relative_to(ENSEMBLES) / FILE_NAME
        if path.is_file():
            return path
    shortened = f"{dataset}/{glob.escape(folder.name)}-{CHANGED}-*/{FILE_NAME}"
    return next((path for root in references() for path in sorted(root.glob(shortened))), None)


def find(spec: str, dataset: str, network: str, members: int, recipe: str, seed: int) -> Trained | None:
    """The ensemble of a spec, or None when it has to be trained first."""
    if is_checkpoint(spec):
        return load_outside(spec, dataset)
    path = locate(spec, dataset, network, members, recipe, seed)
    if path is None:
        return None
    named = parse_defense(spec)
    wanted = {"defense": named.text, "dataset": dataset, "network": canonical_network(network), "members": members}
    ensemble = load_checkpoint(path, **wanted, defense_digest=named.source_digest)
    return Trained(named.label, named.text, ensemble, read_provenance(path))


def find_or_train(
    spec: str,
    dataset: str,
    network: str,
    members: int,
    recipe: str,
    seed: int,
    device: str,
    say: Callable[[str], None],
) -> Trained:
    """Load the ensemble of a spec; where there is none yet, say how long training takes, and train it."""
    trained = find(spec, dataset, network, members, recipe, seed)
    if trained is None:
        seconds = training_seconds(spec, dataset, network, members, recipe, seed, device)
        label = parse_defense(spec).label
        say(f"{label} is not trained yet: training {members} × {network} on {dataset}, about {clock(seconds)}")
        train_ensemble(spec, dataset, network, members, recipe, seed=seed, device=device)
        trained = find(spec, dataset, network, members, recipe, seed)
        assert trained is not None
    elif is_checkpoint(spec):
        say(f"{spec}: {_describe(trained)}")
    return trained


def training_seconds(spec: str, dataset: str, network: str, members: int, recipe: str, seed: int, device: str) -> float:
    """How long training would take here, measured on two steps of it."""
    chosen = find_recipe(recipe, dataset)
    data = training_data(dataset, chosen, seed)
    request = TrainingRequest(parse_defense(spec), network, members, chosen, seed)
    return estimate_seconds(request, data, torch.device(device))
