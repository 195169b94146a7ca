"""Find the ensemble a defense spec stands for: a checkpoint that was named, one that is there, or a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmark.training import ENSEMBLES, clock, default_folder, train_ensemble, training_data
from defenses.catalogue import parse_defense
from defenses.checkpoints import FILE_NAME, Provenance, load_checkpoint, read_provenance
from defenses.ensemble import Ensemble
from defenses.errors import BadInput
from defenses.networks import canonical_network
from defenses.recipes import find_recipe
from defenses.training import estimate_seconds

REFERENCE = Path("results/checkpoints")
"""Ensembles that come with the project, in the same layout as `ENSEMBLES`."""


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
        recipe = self.provenance.recipe
        if not recipe:
            return "from outside"
        images = f" on {recipe['train_images']} images" if recipe.get("train_images") else ""
        start = ", started from another ensemble" if self.provenance.started_from else ""
        return f"{recipe['name']} recipe, {self.provenance.epoch} epochs{images}{start}, seed {self.provenance.seed}"


def is_checkpoint(spec: str) -> bool:
    """True when a defense spec is the path of a checkpoint."""
    return spec.endswith((".safetensors", ".pth")) or (Path(spec) / FILE_NAME).is_file()


def load_outside(spec: str, dataset: str) -> Trained:
    """The ensemble of a checkpoint that was named by its path; its file or folder names it in tables."""
    ensemble = load_checkpoint(spec)
    assert ensemble.provenance is not None
    if ensemble.provenance.dataset != dataset:
        raise BadInput(f"{spec} was trained on {ensemble.provenance.dataset}; this run attacks {dataset}")
    path = Path(spec).resolve()
    label = path.parent.name if path.name == FILE_NAME else path.name if path.is_dir() else path.stem
    return Trained(label, spec, ensemble, ensemble.provenance)


def locate(spec: str, dataset: str, network: str, members: int, recipe: str, seed: int) -> Path | None:
    """Where the trained ensemble is, or None when it has to be trained first."""
    named = parse_defense(spec)
    named.defense.check(members, 10**9)
    folder = default_folder(named, dataset, canonical_network(network), members, find_recipe(recipe, dataset), seed)
    for root in (REFERENCE, ENSEMBLES):
        path = root / folder.relative_to(ENSEMBLES) / FILE_NAME
        if path.is_file():
            return path
    return None


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
    if is_checkpoint(spec):
        return load_outside(spec, dataset)
    named = parse_defense(spec)
    path = locate(spec, dataset, network, members, recipe, seed)
    if path is None:
        chosen = find_recipe(recipe, dataset)
        data = training_data(dataset, chosen, seed)
        seconds = estimate_seconds(named, data, network, members, chosen, torch.device(device))
        say(f"{named.label} is not trained yet: training {members} × {network} on {dataset}, about {clock(seconds)}")
        path = train_ensemble(spec, dataset, network, members, recipe, seed=seed, device=device)
    wanted = {"defense": named.text, "dataset": dataset, "network": canonical_network(network), "members": members}
    ensemble = load_checkpoint(path, **wanted, defense_digest=named.source_digest)
    return Trained(named.label, named.text, ensemble, read_provenance(path))
