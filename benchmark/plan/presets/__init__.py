"""Presets: a named grid of cells is a TOML file in this folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.evaluations import EVALUATIONS
from benchmark.evaluations.clean import CleanSection
from benchmark.evaluations.task import Section
from benchmark.evaluations.whitebox import WhiteBoxSection
from benchmark.evaluations.worst_case import WorstCaseSection
from benchmark.harness.tiers import check_tier
from benchmark.plan.grid import Grid
from defenses.errors import BadInput
from defenses.registry import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


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


def _grid(entry: dict[str, Any]) -> Grid:
    return Grid(
        dataset=entry["dataset"],
        defenses=tuple(entry["defenses"]),
        tiers=tuple(check_tier(tier) for tier in entry.get("tiers", ["paper", "strict"])),
        members=entry.get("members", 3),
        network=entry.get("network", "resnet20"),
        recipe=entry.get("recipe", "fast"),
        batch_size=entry.get("batch_size", 100),
        sections=tuple(_sections(entry)),
    )


def _sections(entry: dict[str, Any]) -> list[Section]:
    """The sections in the order of a report; the list ``attacks`` holds two, since ``none`` stands for no attack."""
    found: list[Section] = []
    rows = entry.get("attacks", [])
    for _, section in EVALUATIONS:
        if section is CleanSection:
            found += [CleanSection.read(item) for item in rows if item["spec"] == CleanSection.key]
        elif section is WhiteBoxSection and rows:
            found.append(WhiteBoxSection.read([item for item in rows if item["spec"] != CleanSection.key]))
        elif section is WorstCaseSection:  # a tier, which may be asked for in any preset with rows
            found.append(WorstCaseSection.read(entry["strong"]) if "strong" in entry else WorstCaseSection())
        elif section.key in entry and section is not WhiteBoxSection:
            found.append(section.read(entry[section.key]))
    return found
