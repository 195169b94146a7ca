"""Recipes: accuracy per minute of one core, `fast` beside its parts and the authors' settings for as many epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from defenses.checkpoints import read_provenance
from defenses.errors import BadInput
from defenses.training.precision import require_bfloat16

IMAGES, EPOCHS = 4000, 6
CASE = f"one ResNet-20, {IMAGES} images of CIFAR-10, {EPOCHS} epochs"
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fast": ("fast", {}),
    "fast in bfloat16": ("fast", {"precision": "bfloat16"}),
    "fast, whole images only": ("fast", {"resolutions": (1.0,)}),
    "the paper's settings": ("paper", {}),
}


def test_accuracy_per_minute(benchmark: Any, note: Any, tmp_path: Path) -> None:
    def train(name: str) -> dict[str, Any]:
        recipe, changes = PARTS[name]
        changes = changes | {"epochs": EPOCHS, "train_images": IMAGES}
        asked = EnsembleRequest("baseline", "cifar10", members=1, recipe=recipe)
        path = train_ensemble(asked, changes, out=tmp_path / name, threads=1)
        return read_provenance(path).scores

    scores = {}
    for name in PARTS:
        if name == "fast":
            scores[name] = benchmark.pedantic(train, args=(name,), rounds=1)
        elif "bfloat16" not in name or _has_bfloat16():
            scores[name] = train(name)
    for name, score in scores.items():
        accuracy, minutes = 100 * score["test_accuracy"], score["train_seconds"] / 60
        note(CASE, f"accuracy with {name}", accuracy, "%")
        note(CASE, f"training time with {name}", minutes, "min")
        note(CASE, f"accuracy above chance per minute with {name}", (accuracy - 10) / minutes, "points")
    assert scores["fast"]["test_accuracy"] > 0.4


def _has_bfloat16() -> bool:
    try:
        require_bfloat16(torch.device("cpu"))
    except BadInput:
        return False
    return True
