"""Find the ensemble a request stands for: a checkpoint that was named, one that is there, or a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import locate
from benchmark.ensembles.provenance import describe_training
from benchmark.ensembles.training import train_ensemble, training_data
from benchmark.harness.prepared import prepared
from benchmark.harness.soundness import check_outside
from benchmark.machine.clock import clock
from benchmark.machine.terminal import visible
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
from defenses.training.estimates import estimate_seconds
from defenses.training.request import TrainingRequest


@dataclass(frozen=True)
class Trained:
    """A trained ensemble and the names it goes by in tables."""

    label: str
    spec: str
    ensemble: Ensemble
    provenance: Provenance

    @property
    def training(self) -> str:
        """How it was trained, in words; the file of a checkpoint may say anything."""
        return visible(describe_training(self.provenance))


def load_outside(spec: str, dataset: str, trust: bool = False) -> Trained:
    """The trained model that a spec names, checked on images like those of the dataset."""
    about = DATASETS.get(dataset)
    ensemble = load_checkpoint(spec, trust=trust, dataset=dataset, shape=about.shape, classes=about.classes)
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
    return Trained(visible(_label(spec)), spec, ensemble, ensemble.provenance)  # a file's name need not be UTF-8


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


def find(request: EnsembleRequest) -> Trained | None:
    """The ensemble of a request, or None when it has to be trained first."""
    if is_checkpoint(request.defense):
        return load_outside(request.defense, request.dataset, request.trust)
    path = locate(request)
    if path is None:
        return None
    named = parse_defense(request.defense)
    wanted: dict[str, Any] = {
        "defense": named.text,
        "dataset": request.dataset,
        "network": request.canonical_network,
        "members": request.members,
    }
    ensemble = load_checkpoint(path, **wanted, defense_digest=named.source_digest)
    return Trained(named.label, named.text, ensemble, read_provenance(path))


def find_or_train(request: EnsembleRequest, device: str, say: Callable[[str], None]) -> Trained:
    """Load the ensemble of a request; where there is none yet, say how long training takes, and train it."""
    trained = find(request)
    if trained is None:
        label, time = parse_defense(request.defense).label, clock(training_seconds(request, device))
        what = f"training {request.members} × {request.network or request.about.network} on {request.dataset}"
        say(f"{label} is not trained yet: {what}, about {time}")
        train_ensemble(request, device=device)
        trained = find(request)
        assert trained is not None
    elif is_checkpoint(request.defense):
        say(f"{request.defense}: {_describe(trained)}")
    return trained


def training_seconds(request: EnsembleRequest, device: str) -> float:
    """How long training would take here, measured on two steps of it."""
    recipe = request.chosen_recipe
    data = training_data(request.dataset, recipe, request.seed)
    named, network = parse_defense(request.defense), request.canonical_network
    return estimate_seconds(TrainingRequest(named, network, request.members, recipe), data, torch.device(device))
