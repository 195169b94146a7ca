"""An ensemble is found where it is, in the order that was promised, and its training is told in words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmark.cli import run
from benchmark.ensembles import folders
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained, find, find_or_train
from benchmark.ensembles.folders import CHANGED, ENSEMBLES, REFERENCE, default_folder, locate
from benchmark.ensembles.provenance import changed_settings, describe_training
from benchmark.ensembles.training import train_ensemble
from defenses.catalogue import parse_defense
from defenses.checkpoints import FILE_NAME, Provenance, read_provenance
from defenses.errors import BadInput
from defenses.members.networks import canonical_network
from defenses.training.recipes import find_recipe

pytestmark = pytest.mark.usefixtures("here")

SMALL = EnsembleRequest("baseline", "digits", "mini-resnet(width=4)", 2)
"""The ensemble of the fixture ``checkpoint``."""


def _put(checkpoint: Path, root: Path, ending: str = "") -> Path:
    """The trained ensemble where one like it belongs under a folder."""
    folder = default_folder(parse_defense("baseline"), SMALL, SMALL.chosen_recipe)
    place = root / folder.parent.relative_to(ENSEMBLES) / f"{folder.name}{ending}"
    shutil.copytree(checkpoint, place)
    return place / FILE_NAME


# --- requests and folders ---


def test_a_request_without_a_network_takes_the_one_of_the_dataset() -> None:
    assert EnsembleRequest("baseline", "digits").canonical_network == "mini-resnet"
    assert EnsembleRequest("baseline", "cifar10").canonical_network == canonical_network("resnet20")
    assert EnsembleRequest("baseline", "digits", "mini-resnet(width=16)") != EnsembleRequest("baseline", "digits")


def test_a_recipe_with_changes_has_a_folder_of_its_own() -> None:
    named, recipe = parse_defense("baseline"), find_recipe("fast", "tiny")
    whole = default_folder(named, SMALL, recipe)
    assert whole == ENSEMBLES / "digits" / "baseline-mini-resnet(width=4)-k2-fast-seed0"
    changed = default_folder(named, SMALL, replace(recipe, epochs=3))
    assert changed == whole.with_name(f"{whole.name}-{CHANGED}-cad30b")  # as before recipes named their optimiser
    others = [replace(SMALL, seed=1), replace(SMALL, members=3), replace(SMALL, dataset="mnist")]
    assert len({whole, *(default_folder(named, other, other.chosen_recipe) for other in others)}) == 4


# --- finding ---


def test_ensembles_that_come_with_the_project_come_before_those_trained_here(checkpoint: Path) -> None:
    assert locate(SMALL) is None and find(SMALL) is None
    own = _put(checkpoint, ENSEMBLES)
    assert locate(SMALL) == own
    reference = _put(checkpoint, REFERENCE)
    assert locate(SMALL) == reference
    for other in (replace(SMALL, seed=1), replace(SMALL, network=""), replace(SMALL, defense="adp-2-0")):
        assert locate(other) is None


def test_a_found_ensemble_knows_its_names_and_its_training(checkpoint: Path) -> None:
    _put(checkpoint, ENSEMBLES)
    said: list[str] = []
    for trained in (find(SMALL), find_or_train(SMALL, "cpu", said.append)):
        assert isinstance(trained, Trained)
        assert (trained.label, trained.spec, len(trained.ensemble)) == ("baseline", "baseline", 2)
        assert trained.training == "fast recipe, 4 epochs on 800 images, seed 0"
        assert trained.provenance == read_provenance(checkpoint / FILE_NAME)
    assert said == [], "nothing had to be trained"


def test_an_ensemble_of_something_else_in_its_place_is_refused(checkpoint: Path, robust_checkpoint: Path) -> None:
    path = _put(checkpoint, ENSEMBLES)
    path.write_bytes((robust_checkpoint / FILE_NAME).read_bytes())
    with pytest.raises(BadInput, match="defense"):
        find(SMALL)


def test_a_checkpoint_that_is_named_is_taken_for_what_it_is(checkpoint: Path) -> None:
    said: list[str] = []
    trained = find_or_train(EnsembleRequest(str(checkpoint), "digits"), "cpu", said.append)
    assert (trained.label, trained.spec) == (checkpoint.name, str(checkpoint))
    assert said == [
        f"{checkpoint}: adp-benchmark, 2 × mini-resnet(width=4), fast recipe, 4 epochs on 800 images, seed 0"
    ]


def test_a_missing_ensemble_is_trained_and_then_found(capfd: pytest.CaptureFixture[str]) -> None:
    wanted = EnsembleRequest("baseline", "digits", "mini-resnet(width=1)", 1)
    said: list[str] = []
    trained = find_or_train(wanted, "cpu", said.append)
    line, where = said
    assert "ADP_BENCH_CHECKPOINTS" in where, "no reference ensembles here"
    assert line.startswith("baseline is not trained yet: training 1 × mini-resnet(width=1) on digits, about ")
    assert trained.training == "fast recipe, 12 epochs, seed 0"
    again = find(wanted)
    assert again is not None and again.provenance == trained.provenance


def test_a_reference_ensemble_trained_on_less_is_used_and_named_as_that_until_there_is_a_whole_one(here: Path) -> None:
    shortened = {"epochs": 1, "train_images": 64, "batch_size": 32}
    asked = EnsembleRequest("baseline", "digits", "mini-resnet")
    train_ensemble(EnsembleRequest("baseline", "digits"), shortened)
    (folder,) = Path("results/ensembles/digits").iterdir()
    assert locate(asked) is None, "one that the user shortened does not stand for the recipe"
    Path("results/checkpoints").mkdir(parents=True)
    folder.parent.rename("results/checkpoints/digits")
    assert run(["run", "demo", "--defense", "baseline", "--attack", "none", "--samples", "5", "--out", "a"]) == 0
    (training,) = set(pd.read_csv(here / "a" / "table.csv")["training"])
    assert training == "fast recipe, 1 epoch on 64 images, batch size 32, seed 0"
    train_ensemble(EnsembleRequest("baseline", "digits"))
    found = find(asked)
    assert found is not None and found.training == "fast recipe, 12 epochs, seed 0"


def test_ensembles_that_come_with_the_project_are_found_from_any_folder_and_said_before_training_another(
    checkpoint: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    beside = here / "elsewhere"
    _put(checkpoint, beside)
    assert locate(SMALL) is None
    monkeypatch.setattr(folders, "BESIDE", beside)
    path = locate(SMALL)
    assert path is not None and path.is_relative_to(beside)
    assert run(["list", "checkpoints"]) == 0
    assert "elsewhere" in capfd.readouterr().out
    monkeypatch.setattr("benchmark.ensembles.training.train_ensemble", lambda *given: path)
    network = ["--network", "mini-resnet(width=4)", "--members", "2"]
    assert run(["train", "baseline", "--dataset", "digits", *network]) == 0
    assert f"{path.parent} has the same settings" in capfd.readouterr().err
    assert run(["train", "baseline", "--dataset", "digits", *network, "--epochs", "3"]) == 0
    assert "same settings" not in capfd.readouterr().err
    path.parent.rename(path.parent.with_name(f"{path.parent.name}-{CHANGED}-abcdef"))
    assert (shortened := locate(SMALL)) and "changed" in str(shortened)
    assert run(["train", "baseline", "--dataset", "digits", *network]) == 0
    assert "same settings" not in capfd.readouterr().err, "a whole training comes before one that was cut short"


def test_an_environment_variable_points_to_reference_ensembles(
    checkpoint: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "checkpoints"]) == 0
    assert "ADP_BENCH_CHECKPOINTS" in capfd.readouterr().out, "who has none is told where they can be had"
    _put(checkpoint, here / "elsewhere")
    own = _put(checkpoint, ENSEMBLES)
    monkeypatch.setenv("ADP_BENCH_CHECKPOINTS", str(here / "elsewhere"))
    path = locate(SMALL)
    assert path is not None and path.is_relative_to(here / "elsewhere"), "before those trained here"
    monkeypatch.setenv("ADP_BENCH_CHECKPOINTS", "")
    assert locate(SMALL) == own
    monkeypatch.setenv("ADP_BENCH_CHECKPOINTS", str(here / "nowhere"))
    assert run(["list", "checkpoints"]) == 2
    assert "nowhere" in capfd.readouterr().err


def test_a_table_says_when_the_defense_was_changed_since_the_training(here: Path) -> None:
    text = "from defenses.objectives import Baseline\nclass Mine(Baseline): pass\n"
    (here / "mine.py").write_text(text)
    wanted = EnsembleRequest("mine.py:Mine", "digits", "mini-resnet(width=1)", 1)
    trained = find_or_train(wanted, "cpu", [].append)
    (here / "mine.py").write_text(text.replace("pass", "'A word.'  # and another"))
    again = find(wanted)
    assert again is not None and (again.training, again.changed) == (trained.training, False)
    (here / "mine.py").write_text(text.replace("pass", "weight = 1"))
    with pytest.raises(BadInput, match="--accept-changed-defense"):
        find(wanted)
    changed = find(replace(wanted, accept_changed=True))
    assert changed is not None and changed.training.startswith(f"{trained.training}, ")


# --- training in words ---


def test_every_setting_that_is_not_the_recipes_is_told() -> None:
    recipe = find_recipe("fast", "tiny", epochs=1, train_images=64, batch_size=32)
    origin = Provenance("baseline", "digits", "mini-resnet", 3, (1, 8, 8), 10, recipe=recipe.as_dict(), seed=2, epoch=1)
    assert describe_training(origin) == "fast recipe, 1 epoch on 64 images, batch size 32, seed 2"
    assert changed_settings(origin) == {"epochs": 1, "train_images": 64, "batch_size": 32}
    whole = replace(origin, recipe=find_recipe("fast", "tiny").as_dict(), epoch=12, started_from="somewhere")
    assert describe_training(whole) == "fast recipe, 12 epochs, started from another ensemble, seed 2"
    outside = replace(origin, recipe={}, recognised="state dict")
    assert describe_training(outside) == "from outside: state dict"


@pytest.mark.parametrize("command", [["run", "demo", "--plan", "--defense"], ["compare", "baseline", "--against"]])
def test_a_link_to_itself_in_place_of_a_checkpoint_is_bad_input(command: list[str]) -> None:
    Path("loop.safetensors").symlink_to("loop.safetensors")
    assert run([*command, "loop.safetensors"]) == 2
