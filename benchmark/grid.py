"""Presets: a named grid of cells is a TOML file; the command line narrows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.tiers import check_tier
from defenses.errors import BadInput
from defenses.registry import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).with_name("presets")


@dataclass(frozen=True)
class PlannedAttack:
    """An attack of a grid; None stands for no attack, the clean accuracy of every member."""

    named: NamedAttack | None
    samples: int
    """How many images a CPU attacks in a reasonable time."""
    paper_samples: int
    """How many the paper attacked; 0 means the whole test set."""
    tiers: tuple[str, ...] = ()
    """Only these tiers; empty takes the grid's."""


@dataclass(frozen=True)
class Section:
    """An evaluation other than white-box attacks: its attacks and its number of images."""

    attacks: tuple[NamedAttack, ...]
    samples: int
    paper_samples: int
    suite: str = ""
    """For the strong tier: which attacks it is made of."""


STRONG = Section((), samples=200, paper_samples=0, suite="full")
"""The strong tier where a preset does not say otherwise."""


@dataclass(frozen=True)
class Grid:
    """Every defense under every attack, in every tier, on one dataset."""

    dataset: str
    defenses: tuple[str, ...]
    attacks: tuple[PlannedAttack, ...]
    tiers: tuple[str, ...]
    members: int
    network: str
    recipe: str
    batch_size: int
    strong: Section = STRONG
    """Where the tiers include ``strong``: the worst case over a suite at each eps of the attacks."""
    blackbox: Section | None = None
    """Attacks made on a surrogate: a baseline ensemble trained with another seed, unless the user names one."""
    transfer: Section | None = None
    """Fig. 3: every member attacked alone, every member and the ensemble judged."""
    detection: Section | None = None
    """The ROC figure: scores of clean and of adversarial images."""
    diversity: Section | None = None
    """Fig. 1, Fig. 4 and appendix B.3: no attack."""


@dataclass(frozen=True)
class Preset:
    """One artifact of the paper, or one of ours."""

    name: str
    title: str
    grids: tuple[Grid, ...]


def preset_names() -> list[str]:
    """Every preset there is."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read a preset by name."""
    if name not in preset_names():
        raise BadInput(f"unknown preset {name!r}; {did_you_mean(name, preset_names())}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return Preset(name, content["title"], tuple(_grid(entry) for entry in content["grid"]))


def _section(entry: dict[str, Any] | None) -> Section | None:
    if entry is None:
        return None
    attacks = tuple(parse_attack(text) for text in entry.get("attacks", []))
    return Section(attacks, entry.get("samples", 0), entry.get("paper_samples", 0), entry.get("suite", "full"))


def _grid(entry: dict[str, Any]) -> Grid:
    attacks = []
    for item in entry.get("attacks", []):
        named = None if item["spec"] == "none" else parse_attack(item["spec"])
        tiers = tuple(check_tier(tier) for tier in item.get("tiers", []))
        attacks.append(PlannedAttack(named, item.get("samples", 0), item.get("paper_samples", 0), tiers))
    return Grid(
        dataset=entry["dataset"],
        defenses=tuple(entry["defenses"]),
        attacks=tuple(attacks),
        tiers=tuple(check_tier(tier) for tier in entry.get("tiers", ["paper", "strict"])),
        members=entry.get("members", 3),
        network=entry.get("network", "resnet20"),
        recipe=entry.get("recipe", "fast"),
        batch_size=entry.get("batch_size", 100),
        strong=_section(entry.get("strong")) or STRONG,
        blackbox=_section(entry.get("blackbox")),
        transfer=_section(entry.get("transfer")),
        detection=_section(entry.get("detection")),
        diversity=_section(entry.get("diversity")),
    )


def narrow(
    preset: Preset,
    tiers: list[str],
    defenses: list[str],
    attacks: list[str],
    batch_size: int | None = None,
    wanted: list[str] | None = None,
    surrogate: str | None = None,
) -> Preset:
    """The preset with other tiers, defenses or attacks than its own, where any are given; only ``wanted`` datasets.

    Surrogate ``none`` leaves its black-box attacks out.
    """
    held = list(dict.fromkeys(grid.dataset for grid in preset.grids))
    for name in wanted or []:
        if name not in held:
            raise BadInput(f"preset {preset.name!r} has no dataset {name!r}; it has {' and '.join(held)}")
    grids = []
    for grid in preset.grids:
        if wanted and grid.dataset not in wanted:
            continue
        chosen = _narrow_attacks(grid.attacks, attacks) if attacks and grid.attacks else grid.attacks
        grids.append(
            replace(
                grid,
                tiers=tuple(check_tier(tier) for tier in tiers) or grid.tiers,
                defenses=tuple(dict.fromkeys(defenses)) or grid.defenses,
                attacks=chosen,
                batch_size=batch_size or grid.batch_size,
                blackbox=None if surrogate == "none" else _narrow_section(grid, grid.blackbox, attacks),
                transfer=_narrow_section(grid, grid.transfer, attacks, aimed=True),
                detection=_narrow_section(grid, grid.detection, attacks),
                diversity=None if attacks else grid.diversity,
            )
        )
    if surrogate not in (None, "none") and not any(grid.blackbox for grid in grids):
        raise BadInput(
            f"--surrogate {surrogate} is for black-box attacks, and none are chosen here; leave it out, or choose a "
            "preset that has them, without --attack where it also has white-box rows"
        )
    if "strong" in tiers and not any(strong_radii(grid) for grid in grids):
        raise BadInput(f"tier strong attacks at the eps of L∞ rows, and preset {preset.name!r} has none; choose others")
    if attacks and not any(grid.attacks or sections(grid) for grid in grids):
        raise BadInput(f"preset {preset.name!r} attacks nothing, so no attack can be chosen; leave --attack out")
    return replace(preset, grids=tuple(grids))


def strong_radii(grid: Grid) -> list[float]:
    """Every eps at which the strong tier attacks: those of the rows that are not kept to other tiers."""
    if "strong" not in grid.tiers:
        return []
    rows = [row for row in grid.attacks if row.named and (not row.tiers or "strong" in row.tiers)]
    budgets = [row.named.attack.budget for row in rows if row.named]
    return list(dict.fromkeys(budget for budget in budgets if budget is not None))


def sections(grid: Grid) -> list[Section]:
    """The evaluations with attacks of their own."""
    return [section for section in (grid.blackbox, grid.transfer, grid.detection) if section]


def _narrow_section(grid: Grid, section: Section | None, asked: list[str], aimed: bool = False) -> Section | None:
    """Naming attacks asks for white-box rows; in a preset without any, it chooses among these by the same rules."""
    if section is None or not asked:
        return section
    if grid.attacks:
        return None
    names = {named.name for other in sections(grid) for named in other.attacks}
    chosen: list[NamedAttack] = []
    for text in asked:
        same = [named for named in section.attacks if named.name == text]
        chosen += same if text in names else [parse_attack(text)]
    for named in chosen:
        if aimed and not hasattr(named.attack, "targeted"):
            raise BadInput(f"attack {named.name!r} cannot aim at a class, which a transfer matrix needs; choose others")
    return replace(section, attacks=tuple(dict.fromkeys(chosen))) if chosen else None


def _narrow_attacks(planned: tuple[PlannedAttack, ...], asked: list[str]) -> tuple[PlannedAttack, ...]:
    """``fgsm`` takes the preset's rows of that name; a full spec is taken as it is, with that name's sample count."""
    chosen: list[PlannedAttack] = []
    by_name: dict[str, list[PlannedAttack]] = {}
    for attack in planned:
        by_name.setdefault(attack.named.name if attack.named else "none", []).append(attack)
    for text in asked:
        if text in by_name:
            chosen.extend(by_name[text])
            continue
        named = parse_attack(text)
        relatives = by_name.get(named.name) or list(planned)
        chosen.append(replace(relatives[0], named=named, tiers=()))
    return tuple(dict.fromkeys(chosen))
