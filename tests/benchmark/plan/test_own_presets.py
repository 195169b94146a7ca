"""A preset of the user's is a TOML file: what is wrong in it is told with the file and the key, before any work."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.evaluations.clean import CleanSection
from benchmark.evaluations.task import Amount
from benchmark.evaluations.whitebox import WhiteBoxSection
from benchmark.evaluations.worst_case import WorstCaseSection
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.presets import load_preset, preset_names, usual_recipe
from defenses.errors import BadInput

pytestmark = pytest.mark.usefixtures("here")

GRID = '[[grid]]\ndataset = "digits"\ndefenses = ["baseline"]\n'


def _wrong(text: str) -> str:
    """What is said of a preset."""
    Path("mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        load_preset("mine.toml")
    return str(caught.value)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_that_is_shown_is_the_same_preset_as_a_file(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["preset", "show", name]) == 0
    Path("mine.toml").write_text(capfd.readouterr().out, encoding="utf-8")
    mine, shipped = load_preset("mine.toml"), load_preset(name)
    assert (mine.title, mine.grids) == (shipped.title, shipped.grids) and mine.name == "mine.toml"


def test_what_a_preset_does_not_say_has_defaults() -> None:
    Path("mine.toml").write_text(GRID + 'attacks = ["none", "pgd(eps=0.1)"]', encoding="utf-8")
    preset = load_preset("mine.toml")
    (grid,) = preset.grids
    assert (preset.title, grid.tiers, grid.members) == ("mine", ("paper", "strict"), 3)
    assert (grid.network, grid.recipe, grid.batch_size) == ("mini-resnet", "fast", 100)
    clean, rows, strong = (grid.section(kind) for kind in (CleanSection, WhiteBoxSection, WorstCaseSection))
    assert clean == CleanSection(Amount(0, 0)) and strong == WorstCaseSection(Amount(200, 0), "full")
    assert isinstance(rows, WhiteBoxSection) and [row.named.label for row in rows.rows] == ["pgd(eps=0.1)"]
    Path("mine.toml").write_text(GRID + 'attacks = ["fgsm(eps=0.1)"]\nstrong.suite = "quick"', encoding="utf-8")
    assert load_preset("mine.toml").grids[0].section(WorstCaseSection) == WorstCaseSection(Amount(200, 0), "quick")


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("title = ", "mine.toml", "line 1"),
        ("a = 1\nb = [1,\n\nc = 2", "mine.toml", "line 4"),
        ("titel = 'x'\n" + GRID, "mine.toml", "did you mean title"),
        ("title = 3\n" + GRID, "mine.toml, title", "whole number"),
        ("title = 'x'", "mine.toml", "'grid' is missing"),
        ("grid = []", "mine.toml", "empty"),
        ("[grid]\ndataset = 'digits'", "mine.toml, grid", "[[grid]]"),
        ("[[grid]]\ndefenses = ['baseline']", "mine.toml, grid 1", "'dataset' is missing"),
        ("[[grid]]\ndatset = 'digits'", "mine.toml, grid 1", "did you mean dataset"),
        ("[[grid]]\ndataset = 'digts'\ndefenses = ['baseline']", "mine.toml, grid 1, dataset", "did you mean digits"),
        ("[[grid]]\ndataset = 'digits'", "mine.toml, grid 1", "'defenses' is missing"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = []", "mine.toml, grid 1, defenses", "empty"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = 'baseline'", "mine.toml, grid 1, defenses", "a list"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = ['basline']", "mine.toml, grid 1, defenses", "did you mean basel"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = ['no.py:A']", "mine.toml, grid 1, defenses", "no.py"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = ['A=']", "mine.toml, grid 1, defenses", "LABEL=DEFENSE"),
        ("[[grid]]\ndataset = 'digits'\ndefenses = ['A=jsd', 'B=jsd']", "mine.toml, grid 1, defenses", "two labels"),
        (GRID, "mine.toml, grid 1", "measures nothing"),
        (GRID + "attacks = []", "mine.toml, grid 1", "measures nothing"),
        (GRID + "attacks = ['cw(c=1)']\ntiers = ['strong']", "mine.toml, grid 1", "measures nothing"),
        (GRID + "members = 0", "mine.toml, grid 1, members", "from 1"),
        (GRID + "members = true", "mine.toml, grid 1, members", "true or false"),
        (GRID + "members = 2.5", "mine.toml, grid 1, members", "'2.5'"),
        (GRID + "network = 'resnt20'", "mine.toml, grid 1, network", "did you mean resnet20"),
        (GRID + "recipe = 'slow'", "mine.toml, grid 1, recipe", "slow"),
        (GRID + "batch_size = 0", "mine.toml, grid 1, batch_size", "from 1"),
        (GRID + "tiers = ['strct']", "mine.toml, grid 1, tiers", "did you mean strict"),
        (GRID + "tiers = []\nattacks = ['none']", "mine.toml, grid 1, tiers", "empty"),
        (GRID + "attacks = ['none', 'pdg(eps=1)']", "mine.toml, grid 1, attacks 2, spec", "did you mean pgd"),
        (GRID + "attacks = [{ samples = 3 }]", "mine.toml, grid 1, attacks 1", "'spec' is missing"),
        (GRID + "attacks = [{ spec = 'none', smples = 3 }]", "mine.toml, grid 1, attacks 1", "did you mean samples"),
        (GRID + "attacks = [{ spec = 'none', samples = '3' }]", "mine.toml, grid 1, attacks 1, samples", "'3'"),
        (GRID + "attacks = [{ spec = 'none', samples = -1 }]", "mine.toml, grid 1, attacks 1, samples", "from 0"),
        (GRID + "attacks = [3]", "mine.toml, grid 1, attacks 1", "spec = "),
        (GRID + "attacks = 'pgd'", "mine.toml, grid 1, attacks", "a list"),
        (GRID + "attacks = ['fgsm(eps=0.1)', 'fgsm(eps=0.1)']", "mine.toml, grid 1, attacks", "twice"),
        (
            GRID + "tiers = ['paper']\nattacks = [{ spec = 'fgsm(eps=0.1)', tiers = ['strict'] }]",
            "mine.toml, grid 1, attacks",
            "only in tier strict",
        ),
        (GRID + "blackbox = 3", "mine.toml, grid 1, blackbox", "a table"),
        (GRID + "[grid.blackbox]", "mine.toml, grid 1, blackbox", "'attacks' is missing"),
        (GRID + "[grid.blackbox]\nattacks = []", "mine.toml, grid 1, blackbox", "empty"),
        (GRID + "[grid.transfer]\nattacks = ['fgsm']", "mine.toml, grid 1, transfer, attacks 1", "eps"),
        (GRID + "[grid.diversity]\nattacks = ['fgsm']", "mine.toml, grid 1, diversity", "unknown key 'attacks'"),
        (GRID + "[grid.strong]\nsuite = 'quik'", "mine.toml, grid 1, strong, suite", "did you mean quick"),
        (GRID + "[grid.detecton]\nattacks = ['fgsm']", "mine.toml, grid 1", "did you mean detection"),
        (GRID + "[grid.diversity]\n" + GRID + "tier = 3", "mine.toml, grid 2", "did you mean tiers"),
        ("[[grid]]\ndataset = 1979-05-27", "mine.toml, grid 1, dataset", "date"),
        ("a = " + "[" * 5000, "mine.toml", ""),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_the_key(text: str, place: str, told: str) -> None:
    message = _wrong(text)
    assert message.startswith(place) and not re.match(r"[\w, ]*\d", message[len(place) :]), message
    assert told in message and "\n" not in message


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["none", "9" * 5000])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "samples", "x"]), inner),
    max_leaves=4,
)
KEYS = ("dataset", "defenses", "attacks", "tiers", "network", "members", "recipe", "batch_size", "strong", "transfer")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str) and value.isdigit():
        return value
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@given(st.sampled_from(KEYS), VALUES)
def test_a_value_of_any_kind_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    good = {"dataset": "digits", "defenses": ["baseline"], "attacks": ["fgsm(eps=0.1)"], key: value}
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("[[grid]]\n" + "\n".join(f"{name} = {_toml(one)}" for name, one in good.items()), encoding="utf-8")
    with contextlib.suppress(BadInput):
        load_preset(str(path))


def test_a_file_that_cannot_be_read_is_told_by_its_name(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "bytes.toml").write_bytes(b"title = '\xff'")
    (here / "folder.toml").mkdir()
    for name in ("bytes.toml", "folder.toml", "missing.toml", "a/b"):
        assert run(["run", name]) == 2
        assert capfd.readouterr().err.startswith(f"adp-bench: {name} ")
    (here / "mine.toml").write_text(GRID + "diversity = {}")
    assert run(["run", "mine"]) == 2
    assert "mine.toml" in capfd.readouterr().err
    assert run(["preset", "show", "dmeo"]) == 2
    assert "did you mean demo" in capfd.readouterr().err


def test_a_file_is_run_into_a_folder_of_its_name_and_again_does_nothing(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "sub").mkdir()
    text = f'[[grid]]\ndataset = "digits"\ndefenses = ["Ours={checkpoint}"]\ntiers = ["strict"]\n'
    rows = ["bim(eps=0.1)", "fgsm(eps=0.1)"]
    (here / "sub" / "mine.toml").write_text(f"{text}attacks = {rows}")
    command = ["run", "sub/mine.toml", "--samples", "20"]
    assert run(command) == 0
    folder = here / "results" / "runs" / "mine"
    table = pd.read_csv(folder / "table.csv")
    assert table["attack"].tolist() == ["bim", "fgsm"] and set(table["defense"]) == {"Ours"}
    assert Store(folder).manifest()["title"] == "mine"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*.parquet")}
    capfd.readouterr()
    assert run(command) == 0
    assert "2 of 2 cells are done already" in capfd.readouterr().err
    rows.insert(0, "mim(eps=0.1)")
    (here / "sub" / "mine.toml").write_text(f"{text}attacks = {rows}")
    assert run([*command, "--attack", "mim"]) == 0
    assert pd.read_csv(folder / "table.csv")["attack"].tolist() == ["mim", "bim", "fgsm"], "in the file's order now"
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_file_with_the_name_of_a_shipped_preset_is_another_preset(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "demo", "--defense", str(checkpoint), "--attack", "none", "--samples", "9"]) == 0
    (here / "demo.toml").write_text(GRID + "diversity = {}")
    capfd.readouterr()
    assert run(["run", "demo.toml"]) == 2
    assert "'demo.toml'" in capfd.readouterr().err


def test_paths_in_a_preset_are_relative_to_the_working_folder(here: Path) -> None:
    source = "from defenses.objectives import Baseline\n\n\nclass Mine(Baseline):\n    pass\n"
    (here / "sub").mkdir()
    preset = here / "sub" / "mine.toml"
    (here / "sub" / "mine.py").write_text(source)
    preset.write_text('[[grid]]\ndataset = "digits"\ndefenses = ["mine.py:Mine"]\ndiversity = {}')
    with pytest.raises(BadInput, match=r"relative to the working folder: write sub/mine\.py$"):
        load_preset("sub/mine.toml")
    preset.write_text('[[grid]]\ndataset = "digits"\ndefenses = ["other.py:Mine"]\ndiversity = {}')
    with pytest.raises(BadInput, match=r"other\.py is not a file(?!.*relative)"):
        load_preset("sub/mine.toml")
    preset.write_text('[[grid]]\ndataset = "digits"\ndefenses = ["sub/mine.py:Mine"]\ndiversity = {}')
    assert load_preset(str(preset)).grids[0].defenses == ("sub/mine.py:Mine",)


def test_the_recipe_of_the_user_goes_before_that_of_the_preset() -> None:
    for recipe, used in (("", "reference"), ("fast", "fast")):
        (grid,) = narrow(load_preset("cifar10-whitebox"), Wish(recipe=recipe)).grids
        assert grid.ensemble("jsd", 3) == EnsembleRequest("jsd", "cifar10", grid.network, 3, used, 3)


def test_a_preset_of_the_project_takes_the_short_recipe_for_what_the_user_brings_and_a_preset_of_the_user_its_own(
    here: Path,
) -> None:
    text = '[[grid]]\ndataset = "cifar10"\nrecipe = "reference"\ndefenses = ["baseline"]\ndiversity = {}'
    (here / "mine.toml").write_text(text)
    network = Wish(network="resnet(depth=8)")
    used = {name: narrow(load_preset(name), network).grids[0].recipe for name in ("cifar10-whitebox", "mine.toml")}
    assert used == {"cifar10-whitebox": "fast", "mine.toml": "reference"}
    same = Wish(network="resnet(depth=20)")
    assert narrow(load_preset("cifar10-whitebox"), same).grids[0].recipe == "reference", "resnet20, spelled out"


def test_network_and_members_of_the_user_go_before_those_of_the_preset(capfd: pytest.CaptureFixture[str]) -> None:
    (grid,) = narrow(load_preset("cifar10-whitebox"), Wish(network="resnet(depth=8)", members=2)).grids
    assert grid.ensemble("jsd", 3) == EnsembleRequest("jsd", "cifar10", "resnet(depth=8)", 2, "fast", 3)
    plan = ["run", "demo", "--plan", "--defense", "baseline", "--attack", "fgsm", "--tier", "paper"]
    assert run([*plan, "--network", "mini-resnet(width=2)", "--members", "2"]) == 0
    assert "2 × mini-resnet(width=2) on digits" in capfd.readouterr().out
    for wrong, told in (
        (["--members", "0"], "--members"),
        (["--network", "mini-resnt"], "did you mean mini-resnet"),
        (["--recipe", "referense"], "did you mean reference"),
    ):
        assert run([*plan, *wrong]) == 2
        assert told in capfd.readouterr().err


def test_a_comparison_takes_its_attacks_from_a_file(checkpoint: Path, robust_checkpoint: Path, here: Path) -> None:
    (here / "mine.toml").write_text(GRID + 'tiers = ["strict"]\nattacks = ["bim(eps=0.1)"]')
    command = ["compare", f"Ours={checkpoint}", "--against", str(robust_checkpoint), "--preset", "mine.toml"]
    assert run([*command, "--samples", "20"]) == 0
    (table,) = here.glob("results/runs/*/comparison.csv")
    assert set(pd.read_csv(table)["attack"]) == {"none", "bim"}
    assert run([*command, "--samples", "20"]) == 0, "the same folder again"
    assert len(list(here.glob("results/runs/*"))) == 1


def test_a_label_does_not_change_the_folder_of_a_comparison(
    checkpoint: Path, robust_checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--dataset", "digits", "--samples", "20", "--tier", "strict", "--attack", "fgsm"]
    assert run(["compare", str(checkpoint), "--against", str(robust_checkpoint), *options]) == 0
    assert run(["compare", f"Ours={checkpoint}", "--against", f"Theirs={robust_checkpoint}", *options]) == 0
    assert "Ours" in (output := capfd.readouterr()).out and "8 of 8 cells are done already" in output.err
    (table,) = here.glob("results/runs/*/table.csv")
    assert set(pd.read_csv(table)["defense"]) == {"Ours", "Theirs"}


def test_an_audit_takes_the_recipe_of_the_preset_that_compares_on_its_data(here: Path) -> None:
    np.savez(here / "own.npz", x_test=np.zeros((20, 8, 8)), y_test=np.arange(20) % 10)
    assert [usual_recipe(data) for data in ("cifar10", "digits", "own.npz")] == ["reference", "fast", "fast"]
    recipes = [usual_recipe("cifar10", network) for network in ("resnet(depth=20)", "resnet(depth=8)")]
    assert recipes == ["reference", "fast"]
