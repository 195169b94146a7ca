"""The request for an ensemble: its defense, dataset, networks, recipe and seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmark.datasets.catalogue import Entry
from benchmark.datasets.lookup import find
from defenses.members.networks import canonical_network, find_network
from defenses.training.recipes import Recipe


@dataclass(frozen=True)
class EnsembleRequest:
    """An ensemble as the user requests it."""

    defense: str
    """A spec, or a checkpoint."""
    dataset: str
    network: str = ""
    """A spec; empty means the default network of the dataset."""
    members: int = 3
    recipe: str = "fast"
    seed: int = 0
    trust: bool = False
    """Whether a checkpoint may be a program, which can run code when it is loaded."""
    accept_changed: bool = False
    """Whether to accept an ensemble that was trained with another version of the defense's file."""

    @property
    def about(self) -> Entry:
        """The dataset's entry."""
        return find(self.dataset)

    @property
    def canonical_network(self) -> str:
        """The canonical spec of its network."""
        return canonical_network(self.network or self.about.network)

    @property
    def chosen_recipe(self) -> Recipe:
        """The requested recipe, for the dataset's images."""
        return self.recipe_with()

    def recipe_with(self, **changes: Any) -> Recipe:
        """The recipe with some settings changed.

        A network from outside is trained only on images of full size, because it may not accept smaller ones.
        """
        if find_network(self.network or self.about.network).foreign:
            changes = {"resolutions": (1.0,), **changes}
        return self.about.recipe(self.recipe, **changes)
