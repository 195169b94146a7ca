"""Where trained ensembles are: those that come with the project, and those trained here."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from pathlib import Path

from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.machine.file_names import shortened
from defenses.catalogue import NamedDefense, parse_defense
from defenses.checkpoints import FILE_NAME
from defenses.training.recipes import Recipe, find_recipe

ENSEMBLES = Path("results/ensembles")
"""Ensembles trained here."""
REFERENCE = Path("results/checkpoints")
"""Ensembles that come with the project, in the same layout."""
BESIDE = Path(__file__).parents[2] / REFERENCE
"""The same beside the source, for who works in another folder."""
CHANGED = "changed"
"""Marks the folder of an ensemble whose recipe had settings changed."""


def references() -> list[Path]:
    """Where ensembles that come with the project may be."""
    here = REFERENCE.is_dir() and BESIDE.is_dir() and REFERENCE.samefile(BESIDE)
    return [REFERENCE] if here else [REFERENCE, BESIDE]


def default_folder(named: NamedDefense, request: EnsembleRequest, recipe: Recipe) -> Path:
    """Where an ensemble goes when no folder is named."""
    words = [named.label, request.canonical_network, f"k{request.members}", recipe.name, f"seed{request.seed}"]
    if recipe != find_recipe(
        recipe.name, DATASETS.get(request.dataset).look
    ):  # not to be taken for the recipe as it is
        words.append(f"{CHANGED}-{hashlib.sha256(json.dumps(recipe.as_dict()).encode()).hexdigest()[:6]}")
    return ENSEMBLES / request.dataset / shortened(re.sub(r"[^\w.+=,()-]", "_", "-".join(words)))


def locate(request: EnsembleRequest) -> Path | None:
    """Where the trained ensemble is, or None when it has to be trained first.

    A reference ensemble that was trained on less than the recipe says is better than none, and says so in tables.
    """
    named = parse_defense(request.defense)
    named.defense.check(request.members, 10**9)
    folder = default_folder(named, request, request.chosen_recipe)
    for root in (*references(), ENSEMBLES):
        path = root / folder.relative_to(ENSEMBLES) / FILE_NAME
        if path.is_file():
            return path
    shortened = f"{request.dataset}/{glob.escape(folder.name)}-{CHANGED}-*/{FILE_NAME}"
    return next((path for root in references() for path in sorted(root.glob(shortened))), None)
