"""A recipe that prefers bfloat16 trains in float32 where it must, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import locate
from benchmark.ensembles.training import usable_recipe
from defenses.checkpoints import read_provenance
from defenses.training import precision

CPU = torch.device("cpu")


@pytest.fixture
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PROBE", "raise SystemExit(1)  # a processor without bfloat16")


OWN_FORWARD = """
from dataclasses import dataclass
from defenses.objectives import Baseline

@dataclass(frozen=True)
class Mine(Baseline):
    def forward(self, ensemble, images, labels):
        return super().forward(ensemble, images, labels)
"""


def test_a_users_own_forward_pass_trains_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN_FORWARD)
    recipe, reason = usable_recipe(EnsembleRequest("mine.py:Mine", "digits", recipe="reference"), CPU)
    assert recipe.precision == "float32" and "forward pass" in reason


@pytest.mark.parametrize("defense", ["gal", "trs", "mrboost", "lotos", "igat+dverge", "advt-pgd+dverge"])
def test_the_projects_own_forward_passes_keep_the_recipes_precision(defense: str) -> None:
    require_bfloat16_or_skip()
    recipe, reason = usable_recipe(EnsembleRequest(defense, "digits", recipe="reference"), CPU)
    assert recipe.precision == "bfloat16" and not reason


def require_bfloat16_or_skip() -> None:
    if not precision.has_bfloat16(CPU):
        pytest.skip("bfloat16 does not work on this processor")


def test_without_bfloat16_the_recipe_trains_in_float32_into_its_usual_folder(
    no_bfloat16: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--dataset", "digits", "--network", "mini-resnet(width=2)", "--members", "1", "--recipe", "reference"]
    assert run(["train", "baseline", *words]) == 0
    assert "float32" in capfd.readouterr().err
    request = EnsembleRequest("baseline", "digits", "mini-resnet(width=2)", 1, "reference")
    path = locate(request)
    assert path is not None and read_provenance(path).recipe["precision"] == "float32"
    assert run(["train", "baseline", *words]) == 0  # finished: the same request again


def test_a_precision_that_the_user_names_is_not_replaced(
    no_bfloat16: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "baseline", "--dataset", "digits", "--precision", "bfloat16"]) == 2


def test_a_recipe_in_float32_never_asks() -> None:
    recipe, reason = usable_recipe(EnsembleRequest("gal", "digits"), CPU)
    assert recipe.precision == "float32" and not reason
