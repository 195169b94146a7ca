"""Grids: every defense in every section, on one dataset; options of the user narrow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from benchmark.attacks import NamedAttack
from benchmark.attacks.bounds import Bound
from benchmark.datasets.lookup import find, is_own
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.evaluations.blackbox import BlackBoxSection
from benchmark.evaluations.clean import CleanSection
from benchmark.evaluations.task import Choice, Section
from benchmark.evaluations.whitebox import WhiteBoxSection
from benchmark.evaluations.worst_case import bounds_of
from benchmark.harness.tiers import Tier, check_tier
from benchmark.plan.labels import read_labels
from defenses.errors import BadInput
from defenses.members.networks import same_network
from defenses.training.recipes import find_recipe

if TYPE_CHECKING:
    from benchmark.plan.presets import Preset

Some = TypeVar("Some", bound=Section)


@dataclass(frozen=True)
class Grid:
    """The evaluations of some defenses on one dataset."""

    dataset: str
    defenses: tuple[str, ...]
    tiers: tuple[Tier, ...]
    members: int
    network: str
    recipe: str
    batch_size: int
    sections: tuple[Section, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    """The user's labels for tables, by the spec of the defense."""

    def ensemble(self, spec: str, seed: int, trust: bool = False, accept_changed: bool = False) -> EnsembleRequest:
        """The ensemble of a defense in this grid."""
        return EnsembleRequest(spec, self.dataset, self.network, self.members, self.recipe, seed, trust, accept_changed)

    def section(self, kind: type[Some]) -> Some | None:
        """The section of a kind, if the grid has it."""
        return next((section for section in self.sections if isinstance(section, kind)), None)

    @property
    def rows(self) -> tuple[NamedAttack, ...]:
        """Attacks of the white-box rows that tier strong uses; rows for other tiers only are left out."""
        section = self.section(WhiteBoxSection)
        return tuple(row.named for row in section.rows if not row.tiers or "strong" in row.tiers) if section else ()

    @property
    def strong_bounds(self) -> list[Bound]:
        """Every bound at which tier strong attacks."""
        return bounds_of(self.rows) if "strong" in self.tiers else []


USUAL_RECIPE = "fast"
"""The recipe of a preset that names none, and of our presets on the user's own data or network: recipe `reference`
takes hours, and the project has such ensembles of its own data and networks only."""


@dataclass(frozen=True)
class Wish:
    """The user's changes to a preset; an empty field keeps the value of the preset."""

    tiers: tuple[str, ...] = ()
    defenses: tuple[str, ...] = ()
    """Specs, each with or without a label before it."""
    attacks: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    """The datasets to run: datasets of the preset, or the user's own datasets."""
    batch_size: int | None = None
    network: str = ""
    members: int | None = None
    recipe: str = ""
    surrogate: str | None = None
    """``none`` leaves black-box attacks out."""


def narrow(preset: Preset, wish: Wish) -> Preset:
    """The preset with the user's changes."""
    if wish.batch_size is not None and not 1 <= wish.batch_size < 2**31:
        raise BadInput(f"--batch-size is {wish.batch_size}; it must lie between 1 and {2**31 - 1}")
    if wish.recipe:
        find_recipe(wish.recipe, "tiny")  # refuses an unknown name; the kind of images does not matter
    own = [spec for spec in wish.datasets if is_own(spec)]
    preset = replace(preset, grids=tuple(_grids_on(preset, own))) if own else preset
    held = list(dict.fromkeys(grid.dataset for grid in preset.grids))
    for name in wish.datasets:
        if name not in held:
            raise BadInput(f"preset {preset.name!r} has no dataset {name!r}; it has {' and '.join(held)}")
    ours = not preset.name.endswith(".toml")
    grids = [_narrowed(grid, wish, ours) for grid in preset.grids if not wish.datasets or grid.dataset in wish.datasets]
    if wish.surrogate not in (None, "none") and not any(grid.section(BlackBoxSection) for grid in grids):
        raise BadInput(
            f"--surrogate needs black-box attacks, but preset {preset.name!r} has none here; choose a "
            "preset with black-box attacks, and omit --attack"
        )
    if "strong" in wish.tiers and not any(grid.strong_bounds for grid in grids):
        raise BadInput(
            f"tier strong needs an attack with a bound in L∞, L2 or L1, but preset {preset.name!r} has none; "
            "choose another preset, or name an attack with a bound, such as --attack 'pgd(eps=0.01)'"
        )
    if wish.attacks and not any(_attacks(grid) for grid in grids):
        raise BadInput(f"preset {preset.name!r} has no attacks; omit --attack")
    return replace(preset, grids=tuple(grids))


def _grids_on(preset: Preset, own: list[str]) -> Iterator[Grid]:
    """The grids of a preset, and for each of the user's datasets copies of the grids with the most similar images."""
    yield from preset.grids
    for spec in own:
        about = find(spec)
        alike = [grid for grid in preset.grids if find(grid.dataset).look == about.look]
        first = (alike or preset.grids)[0].dataset
        for grid in preset.grids:
            if grid.dataset == first:
                usual = grid.network == find(first).network
                yield replace(grid, dataset=spec, network=about.network if usual else grid.network)


def _attacks(grid: Grid) -> bool:
    return any(section.attacks for section in grid.sections) or grid.section(CleanSection) is not None


def _narrowed(grid: Grid, wish: Wish, ours: bool) -> Grid:
    """A grid with the user's changes; ``ours`` is true for a preset of the project."""
    other = bool(wish.network) and not same_network(wish.network, grid.network)
    brought = ours and (is_own(grid.dataset) or other)
    choice = Choice(
        attacks=wish.attacks,
        has_rows=grid.section(WhiteBoxSection) is not None,
        has_clean=grid.section(CleanSection) is not None,
        names=frozenset(named.name for section in grid.sections for named in section.attacks),
        surrogate=wish.surrogate,
    )
    found = (section.narrow(choice) for section in grid.sections)
    defenses, labels = read_labels(wish.defenses) if wish.defenses else (grid.defenses, grid.labels)
    return replace(
        grid,
        tiers=tuple(check_tier(tier) for tier in wish.tiers) or grid.tiers,
        defenses=defenses,
        labels=labels,
        network=wish.network or grid.network,
        members=grid.members if wish.members is None else wish.members,
        recipe=wish.recipe or (USUAL_RECIPE if brought else grid.recipe),
        batch_size=wish.batch_size or grid.batch_size,
        sections=tuple(section for section in found if section is not None),
    )
