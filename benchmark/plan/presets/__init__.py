"""Presets: a preset is a TOML file with grids of cells, in this folder or from the user."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmark.datasets.lookup import find, is_own
from benchmark.evaluations.preset_table import PresetTable
from benchmark.plan.grid import USUAL_RECIPE, Grid
from benchmark.plan.presets.schema import read_grids
from defenses.errors import BadInput
from defenses.members.networks import same_network
from defenses.registry import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
SUFFIX = ".toml"


@dataclass(frozen=True)
class Preset:
    """A named list of grids: a table or figure of the paper, a preset of this project, or a preset of the user."""

    name: str
    """For a user's file, the file name with its ending."""
    title: str
    grids: tuple[Grid, ...]


def preset_names() -> list[str]:
    """Every preset that comes with the project."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def load_preset(name: str) -> Preset:
    """A preset by its name, or by the path of a TOML file; paths in it are relative to the working folder."""
    if is_file_name(name):
        path = Path(name)
        text = _text_of(path)
        try:
            return _read(path.name, path.stem, str(path), text)
        except BadInput as error:
            raise BadInput(f"{error}{_beside(path, str(error))}") from error
    return _read(name, name, f"{name}{SUFFIX}", preset_text(name))


def _beside(preset: Path, message: str) -> str:
    """A hint if a message names a file that is beside the preset, but not in the working folder."""
    for word in re.findall(r"[\w./\\-]+\.\w+", message):
        found = preset.parent / word
        if not Path(word).exists() and found.exists():
            return f"; paths in a preset are relative to the working folder: write {found}"
    return ""


def usual_recipe(dataset: str, network: str = "") -> str:
    """The training recipe of the preset that compares on a dataset; `fast` for the user's own data and networks."""
    own = is_own(dataset) or (network and not same_network(network, find(dataset).network))
    name = "" if own else find(dataset).preset
    grids = load_preset(name).grids if name else ()
    return next((grid.recipe for grid in grids if grid.dataset == dataset), USUAL_RECIPE)


def is_file_name(name: str) -> bool:
    """True if the user names a file, not a preset of the project."""
    return name.endswith(SUFFIX) or "/" in name or "\\" in name


def preset_text(name: str) -> str:
    """The TOML of a preset that comes with the project."""
    if name not in preset_names():
        beside = f"{name}{SUFFIX}"
        hint = f"for the file here, write {beside}" if Path(beside).is_file() else did_you_mean(name, preset_names())
        raise BadInput(f"unknown preset {name!r}; {hint}")
    return (FOLDER / f"{name}{SUFFIX}").read_text(encoding="utf-8")


def _text_of(path: Path) -> str:
    if path.is_dir() or not path.exists():
        raise BadInput(f"{path} is not a file; give the path of a TOML file, or a name from `adp-bench list presets`")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8") from None


def _read(name: str, title: str, place: str, text: str) -> Preset:
    try:
        table = PresetTable(tomllib.loads(text), place)
    except (ValueError, RecursionError) as error:  # also a number with thousands of digits
        end = f"at line {len(text.splitlines())}, the end of the file"
        words = str(error).replace("at end of document", end)
        raise BadInput(f"{place} is not TOML: {words}") from None
    return Preset(name, table.text("title", title), read_grids(table))
