"""Folders of trained ensembles: the reference ensembles of the project, and the ensembles trained here."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from pathlib import Path

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.machine.file_names import shortened
from defenses.catalogue import NamedDefense, parse_defense
from defenses.checkpoints import FILE_NAME
from defenses.errors import BadInput
from defenses.training.recipes import Recipe

ENSEMBLES = Path("results/ensembles")
"""Ensembles trained here."""
REFERENCE = Path("results/checkpoints")
"""Ensembles that come with the project, in the same layout."""
BESIDE = Path(__file__).parents[2] / REFERENCE
"""The same folder beside the source code, for users in another working folder."""
WHERE_REFERENCES = (
    "the wheel has no reference ensembles; they are in results/checkpoints of the project's repository: "
    "work in a checkout, or set ADP_BENCH_CHECKPOINTS to that folder"
)
CHANGED = "changed"
"""Marks the folder of an ensemble that was trained with changed settings of the recipe."""


def references() -> list[Path]:
    """Folders of the reference ensembles; ``ADP_BENCH_CHECKPOINTS`` comes first if it is set."""
    named = os.environ.get("ADP_BENCH_CHECKPOINTS")
    if named and not Path(named).is_dir():
        raise BadInput(
            f"ADP_BENCH_CHECKPOINTS is {named}, which is not a folder; set it to a folder such as results/checkpoints"
        )
    if named:
        return [Path(named), REFERENCE]
    here = REFERENCE.is_dir() and BESIDE.is_dir() and REFERENCE.samefile(BESIDE)
    return [REFERENCE] if here else [REFERENCE, BESIDE]


def default_folder(named: NamedDefense, request: EnsembleRequest, recipe: Recipe) -> Path:
    """The folder of an ensemble if the user names none."""
    words = [named.label, request.canonical_network, f"k{request.members}", recipe.name, f"seed{request.seed}"]
    if recipe != request.chosen_recipe:  # must not look like the unchanged recipe
        settings = recipe.as_dict()
        if settings["optimiser"] == "adam":  # older recipes lack this key and use adam: same folder
            del settings["optimiser"]
        words.append(f"{CHANGED}-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:6]}")
    return ENSEMBLES / request.about.shelf / shortened(re.sub(r"[^\w.+=,()-]", "_", "-".join(words)))


def locate(request: EnsembleRequest) -> Path | None:
    """The checkpoint of the trained ensemble, or None if it must be trained first.

    A reference ensemble with changed settings is used if there is no other; tables show how it was trained.
    """
    named = parse_defense(request.defense)
    named.defense.check(request.members, 10**9)
    folder = default_folder(named, request, request.chosen_recipe)
    for root in (*references(), ENSEMBLES):
        path = root / folder.relative_to(ENSEMBLES) / FILE_NAME
        if path.is_file():
            return path
    changed = f"{glob.escape(request.about.shelf)}/{glob.escape(folder.name)}-{CHANGED}-*/{FILE_NAME}"
    return next((path for root in references() for path in sorted(root.glob(changed))), None)
