"""What is asked of an ensemble: which defense trained it, on what, with which networks, recipe and seed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmark.datasets.catalogue import DATASETS, Entry
from defenses.members.networks import canonical_network
from defenses.training.recipes import Recipe, find_recipe


@dataclass(frozen=True)
class EnsembleRequest:
    """An ensemble as a user asks for it."""

    defense: str
    """A spec, or a checkpoint."""
    dataset: str
    network: str = ""
    """A spec; empty takes the dataset's own network."""
    members: int = 3
    recipe: str = "fast"
    seed: int = 0
    trust: bool = False
    """Whether a checkpoint may be a program, which can run code when it is loaded."""

    @property
    def about(self) -> Entry:
        """The dataset's entry."""
        return DATASETS.get(self.dataset)

    @property
    def canonical_network(self) -> str:
        """The one text form of its network."""
        return canonical_network(self.network or self.about.network)

    @property
    def chosen_recipe(self) -> Recipe:
        """The recipe of that name, for the dataset's images."""
        return find_recipe(self.recipe, self.about.look)
