"""Training requests: refused if the ensemble cannot be trained, or if the folder holds another request."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from defenses.catalogue import NamedDefense
from defenses.checkpoints import FILE_NAME, Provenance, load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members.combination import USUAL
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.networks import canonical_network, check_network, find_network
from defenses.objectives import Defense
from defenses.training.data import TrainingData
from defenses.training.recipes import OLDER_RECIPES, Recipe


@dataclass(frozen=True)
class TrainingRequest:
    """Everything that decides the trained weights, except the data."""

    named: NamedDefense
    network: str
    members: int
    recipe: Recipe
    seed: int = 0
    start_from: Path | None = None
    """The checkpoint, or its folder, whose weights are the start of training."""
    accept_changed: bool = False
    """Resume a training that used another version of the defense's file."""

    def check(self, classes: int) -> None:
        """Raise BadInput if the defense cannot train this ensemble, or not with this recipe."""
        self.named.defense.check(self.members, classes)
        label, recipe = self.named.label, self.recipe
        if recipe.strategy == "independent" and not self.named.defense.separable:
            raise BadInput(
                f"{label} couples the members, so they cannot be trained independently; "
                "use the simultaneous or the sequential strategy"
            )
        if recipe.strategy == "sequential" and has_own_forward(self.named.defense):
            raise BadInput(
                f"{label} has its own forward pass, so it cannot be trained sequentially; use --strategy simultaneous"
            )
        if recipe.precision != "float32" and needs_float32(self.named.defense):
            raise BadInput(f"{label} has its own forward pass, so it needs --precision float32, not {recipe.precision}")

    def provenance(self, data: TrainingData) -> Provenance:
        """The origin that the checkpoint will have; scores and weights are not known yet."""
        network = find_network(self.network)
        return Provenance(
            defense=self.named.text,
            dataset=data.name,
            network=network.text,
            members=self.members,
            shape=data.shape,
            classes=data.classes,
            recipe=self.recipe.as_dict(),
            seed=self.seed,
            defense_digest=self.named.source_digest,
            data_checksum=data.checksum,
            network_digest=network.digest,
            started_from=read_provenance(_file(self.start_from)).weights_sha256 if self.start_from else "",
        )

    def continued(self, asked: Provenance, found: dict[str, Any], path: Path) -> Provenance:
        """The origin of a run that continues from the folder's content; BadInput if that belongs to another request.

        If two versions of the defense's file trained the ensemble, its ``defense_digest`` is a digest of both, so that
        it matches neither version.
        """
        before = str(found.get("defense_digest"))
        same = self.named.is_of(before)
        if same or self.accept_changed:
            found = {**found, "defense_digest": asked.defense_digest}
        require_same(asked, found, path)
        both = hashlib.sha256(f"{before} {asked.defense_digest}".encode()).hexdigest()
        return asked if same else replace(asked, defense_digest=both)

    def initial_ensemble(self, data: TrainingData) -> Ensemble:
        """The ensemble before the first step: the one in ``start_from``, or freshly initialised members."""
        check_network(self.network, data.shape, data.classes)
        if self.start_from is None:
            mean = data.train.mean_image()
            return build_ensemble(self.network, self.members, data.shape, data.classes, mean, self.seed)
        network = canonical_network(self.network)
        ensemble = load_checkpoint(
            self.start_from, network_file=network, network=network, members=self.members, dataset=data.name
        )
        ensemble.combination = USUAL  # the rule matters in evaluation only; the new ensemble gets its own
        return ensemble


def has_own_forward(defense: Defense) -> bool:
    """True if the defense replaces the forward pass or the training step."""
    inner = getattr(defense, "inner", defense)
    return type(inner).forward is not Defense.forward or type(inner).step is not Defense.step


def needs_float32(defense: Defense) -> bool:
    """True if the defense may use the members in another way than the ensemble does, which sets their precision."""
    return has_own_forward(defense) and not getattr(defense, "inner", defense).in_bfloat16


def require_same(asked: Provenance, found: dict[str, Any], path: Path) -> None:
    """Raise BadInput if the folder holds another request."""
    result_fields = {"scores", "versions", "weights_sha256", "epoch", "format", "written", "recognised", "combine"}
    for name, value in json.loads(json.dumps(asdict(asked))).items():
        there = json.loads(json.dumps(found.get(name, "" if name == "network_digest" else None)))
        if name == "recipe" and isinstance(there, dict):
            there = {**OLDER_RECIPES, **there}
        if name not in result_fields and there != value:
            if isinstance(value, dict) and isinstance(there, dict):
                key = next(key for key in {**value, **there} if value.get(key) != there.get(key))
                name, value, there = key, value.get(key), there.get(key)
            if name == "defense_digest":
                raise BadInput(
                    f"{path} was made with another version of the defense's file; delete it to train again, "
                    "give another --out, or use it unchanged with --accept-changed-defense"
                )
            if name == "network_digest":
                raise BadInput(
                    f"{path} was made with another version of the network's file; delete it to train again, "
                    "or give another --out"
                )
            raise BadInput(f"{path} was made with {name} {there!r}, not {value!r}; give another --out or delete it")


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path
