"""Find the ensemble of a request: a named checkpoint, an existing ensemble, or a newly trained one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmark.datasets.catalogue import Entry
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import WHERE_REFERENCES, locate, references
from benchmark.ensembles.own_labels import own_label
from benchmark.ensembles.provenance import describe_combination, describe_training
from benchmark.ensembles.training import train_ensemble, training_data, usable_recipe
from benchmark.harness.prepared import prepared
from benchmark.harness.soundness import check_outside
from benchmark.machine.clock import clock
from benchmark.machine.terminal import visible
from benchmark.machine.waiting import saying
from defenses.catalogue import parse_defense
from defenses.checkpoints import (
    Provenance,
    is_checkpoint,
    load_checkpoint,
    read_provenance,
)
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.members.layers import has_features
from defenses.training.estimates import estimate_seconds
from defenses.training.request import TrainingRequest
from defenses.user_functions import is_in_file


@dataclass(frozen=True)
class Trained:
    """A trained ensemble and its names in tables."""

    label: str
    spec: str
    ensemble: Ensemble
    provenance: Provenance
    changed: bool = False
    """Whether the defense's file has changed since the training."""

    @property
    def training(self) -> str:
        """How it was trained, in words; control characters from the checkpoint are escaped."""
        return visible(
            describe_training(self.provenance) + self.changed * ", with another version of the defense's file"
        )


def load_outside(spec: str, about: Entry, trust: bool = False, network: str = "") -> Trained:
    """Load the trained model of a spec, and check it on random images of the dataset's shape.

    ``network`` is the network that the user named, for checkpoints whose members are code in a file.
    """
    ensemble = load_checkpoint(
        spec,
        trust=trust,
        network_file=network if is_in_file(network) else "",
        dataset=about.name,
        shape=about.shape,
        classes=about.classes,
    )
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
    return Trained(own_label(spec), spec, ensemble, ensemble.provenance)


def _describe(trained: Trained) -> str:
    """The recognised kind of a checkpoint, and its limitation if it has one."""
    origin = trained.provenance
    words = f"adp-benchmark, {origin.members} × {origin.network}, {trained.training}"
    if origin.recognised:
        words = origin.recognised + describe_combination(origin)
    featureless = not all(has_features(member) for member in trained.ensemble.members)
    return words + ("; it has no features(images), so the feature map omits it" if featureless else "")


def find(request: EnsembleRequest) -> Trained | None:
    """The ensemble of a request, or None when it has to be trained first."""
    if is_checkpoint(request.defense):
        return load_outside(request.defense, request.about, request.trust, request.network)
    path = locate(request)
    if path is None:
        return None
    named = parse_defense(request.defense)
    wanted: dict[str, Any] = {
        "defense": named.text,
        "dataset": request.about.name,
        "network": request.canonical_network,
        "members": request.members,
    }
    ensemble = load_checkpoint(path, network_file=request.canonical_network, **wanted)
    origin = read_provenance(path)
    changed = not named.is_of(origin.defense_digest)
    if changed and not request.accept_changed:
        raise BadInput(
            f"{path} was trained with another version of the defense's file; delete its folder to train it again, "
            "or use it unchanged with --accept-changed-defense"
        )
    return Trained(named.label, named.text, ensemble, origin, changed)


def find_or_train(request: EnsembleRequest, device: str, say: Callable[[str], None]) -> Trained:
    """Load the ensemble of a request; if there is none yet, print the expected training time and train it."""
    trained = find(request)
    if trained is None:
        with saying(f"measuring how long training {own_label(request.defense)} takes", say):
            seconds = training_seconds(request, device)
        announce(request, seconds, say)
        train_ensemble(request, device=device)
        trained = find(request)
        assert trained is not None
    elif is_checkpoint(request.defense):
        say(f"{request.defense}: {_describe(trained)}")
    return trained


def announce(request: EnsembleRequest, seconds: float, say: Callable[[str], None]) -> None:
    """Say that an ensemble is not trained yet, and how long the training will take."""
    label = parse_defense(request.defense).label + (f", seed {request.seed}," if request.seed else "")
    what = f"training {request.members} × {request.network or request.about.network} on {request.about.name}"
    shorter = "; --recipe fast is shorter" * (request.chosen_recipe.name == "reference")
    say(f"{label} is not trained yet: {what}, about {clock(seconds)}{shorter}")
    if not any(folder.is_dir() for folder in references()):
        say(WHERE_REFERENCES)


def training_seconds(request: EnsembleRequest, device: str) -> float:
    """Expected training time on this machine, from two measured steps."""
    recipe, _ = usable_recipe(request, torch.device(device))
    data = training_data(request.dataset, recipe, request.seed)
    named, network = parse_defense(request.defense), request.canonical_network
    return estimate_seconds(TrainingRequest(named, network, request.members, recipe), data, torch.device(device))
