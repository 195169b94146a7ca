"""What a training run is asked for: refused when it cannot be trained, or when a folder holds another request."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from defenses.catalogue import NamedDefense
from defenses.checkpoints import FILE_NAME, Provenance, load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.networks import canonical_network
from defenses.objectives import Defense
from defenses.training.data import TrainingData
from defenses.training.recipes import OLDER_RECIPES, Recipe


@dataclass(frozen=True)
class TrainingRequest:
    """Everything that decides the trained weights, beside the data."""

    named: NamedDefense
    network: str
    members: int
    recipe: Recipe
    seed: int = 0
    start_from: Path | None = None
    """A checkpoint whose weights training starts from, or the folder that holds one."""

    def check(self, classes: int) -> None:
        """Raise BadInput when the defense cannot train such an ensemble, or not by this recipe."""
        self.named.defense.check(self.members, classes)
        label, recipe = self.named.label, self.recipe
        if recipe.strategy == "independent" and not self.named.defense.separable:
            raise BadInput(
                f"{label} couples the members, so they cannot be trained independently; "
                "use the simultaneous or the sequential strategy"
            )
        inner = getattr(self.named.defense, "inner", self.named.defense)
        if type(inner).forward is Defense.forward and type(inner).step is Defense.step:
            return
        if recipe.strategy == "sequential":
            raise BadInput(f"{label} owns its forward pass, so it cannot be trained sequentially; use simultaneous")
        if recipe.precision != "float32":
            raise BadInput(f"{label} owns its forward pass, so it is trained in float32, not in {recipe.precision}")

    def provenance(self, data: TrainingData) -> Provenance:
        """The origin that the checkpoint will have; scores and weights are not known yet."""
        return Provenance(
            defense=self.named.text,
            dataset=data.name,
            network=canonical_network(self.network),
            members=self.members,
            shape=data.shape,
            classes=data.classes,
            recipe=self.recipe.as_dict(),
            seed=self.seed,
            defense_digest=self.named.source_digest,
            data_checksum=data.checksum,
            started_from=read_provenance(_file(self.start_from)).weights_sha256 if self.start_from else "",
        )

    def initial_ensemble(self, data: TrainingData) -> Ensemble:
        """The ensemble before the first step: the one in ``start_from``, or freshly initialised members."""
        if self.start_from is None:
            mean = data.train.mean_image()
            return build_ensemble(self.network, self.members, data.shape, data.classes, mean, self.seed)
        network = canonical_network(self.network)
        return load_checkpoint(self.start_from, network=network, members=self.members, dataset=data.name)


def require_same(asked: Provenance, found: dict[str, Any], path: Path) -> None:
    """Refuse to mix two different requests in one folder."""
    result_fields = {"scores", "versions", "weights_sha256", "epoch", "format", "written", "recognised"}
    for name, value in json.loads(json.dumps(asdict(asked))).items():
        there = json.loads(json.dumps(found.get(name)))
        if name == "recipe" and isinstance(there, dict):
            there = {**OLDER_RECIPES, **there}
        if name not in result_fields and there != value:
            if isinstance(value, dict) and isinstance(there, dict):
                key = next(key for key in {**value, **there} if value.get(key) != there.get(key))
                name, value, there = key, value.get(key), there.get(key)
            if name == "defense_digest":
                raise BadInput(
                    f"{path} was made with another version of the defense's file; delete it to train again, "
                    "or give another --out"
                )
            raise BadInput(f"{path} was made with {name} {there!r}, not {value!r}; give another --out or delete it")


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path
