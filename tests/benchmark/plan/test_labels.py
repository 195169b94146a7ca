"""A label is the name of a column wherever it is shown; it changes nothing that is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.plan.labels import read_label, read_labels
from benchmark.reports import escaping
from defenses.errors import BadInput

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("text", "label", "spec"),
    [
        ("baseline", "", "baseline"),
        ("adp(alpha=2,beta=0.5)", "", "adp(alpha=2,beta=0.5)"),
        ("advt-pgd+adp(alpha=1,beta=1)", "", "advt-pgd+adp(alpha=1,beta=1)"),
        ("Ours=adp(alpha=2,beta=0.5)", "Ours", "adp(alpha=2,beta=0.5)"),
        (" Ours & theirs = mine.py:Mine(weight=2)", "Ours & theirs", "mine.py:Mine(weight=2)"),
        ("Ours+AT=w.pt:resnet20(leak=0.1)", "Ours+AT", "w.pt:resnet20(leak=0.1)"),
        ("runs/lr=0.1/w.pt:resnet20", "", "runs/lr=0.1/w.pt:resnet20"),
        ("mine.py:Mine(weight=2)", "", "mine.py:Mine(weight=2)"),
        ("one\x1b=baseline", "one\\x1b", "baseline"),
    ],
)
def test_a_label_stands_before_the_first_equals_sign(text: str, label: str, spec: str) -> None:
    assert read_label(text) == (label, spec)


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(here: Path) -> None:
    assert read_label("lr=0.1.pt:resnet20") == ("lr", "0.1.pt:resnet20")
    (here / "lr=0.1.pt").touch()
    assert read_label("lr=0.1.pt:resnet20") == ("", "lr=0.1.pt:resnet20")


def test_half_a_label_and_two_labels_are_bad_input() -> None:
    for texts in (["=baseline"], ["Ours="], ["A=jsd", "B=jsd"], ["jsd", "B=jsd"]):
        with pytest.raises(BadInput):
            read_labels(texts)
    assert read_labels(["A=jsd", "baseline", "A=jsd"]) == (("jsd", "baseline"), {"jsd": "A"})


FAST = ["--attack", "none", "--attack", "fgsm(eps=0.1)", "--tier", "strict", "--samples", "20"]


def _measured(folder: Path) -> dict[str, list[object]]:
    """Seconds and predictions by identity: they differ where anything was measured again."""
    store = Store(folder)
    return {c.identity: store.read(c)[["seconds", "correct"]].values.tolist() for c in store.asked()}


def test_a_new_label_measures_nothing_again_and_is_in_every_table(checkpoint: Path, here: Path) -> None:
    command = ["run", "demo", *FAST, "--keep-images", "--out", "a"]
    assert run([*command, "--defense", str(checkpoint)]) == 0
    before, images = _measured(here / "a"), sorted(path.read_bytes() for path in here.glob("a/cells/*.safetensors"))
    commits = Store(here / "a").commits()
    assert run([*command, "--defense", f"50% <Ours> & [co]_1={checkpoint}"]) == 0
    assert _measured(here / "a") == before and Store(here / "a").commits() == commits
    assert sorted(path.read_bytes() for path in here.glob("a/cells/*.safetensors")) == images
    assert len(list(here.glob("a/cells/*.parquet"))) == len(before), "no file of the old name is left"
    assert set(pd.read_csv(here / "a" / "table.csv")["defense"]) == {"50% <Ours> & [co]_1"}
    rows = (here / "a" / "table.tex").read_text().partition("\\toprule")[2]
    assert escaping.latex("<Ours> & [co]_1") in rows
    assert escaping.markdown("50% <Ours> & [co]_1") in (here / "a" / "table.md").read_text()
    page = (here / "a" / "report.html").read_text()
    assert "50% &lt;Ours&gt; &amp; [co]_1" in page and "<Ours>" not in page
    assert run(["verify", "a", "--model", str(checkpoint)]) == 0
    assert run([*command, "--defense", str(checkpoint)]) == 0
    assert set(pd.read_csv(here / "a" / "table.csv")["defense"]) == {checkpoint.name}, "the last command decides"
    assert _measured(here / "a") == before


def test_a_label_names_the_column_of_every_evaluation(checkpoint: Path, robust_checkpoint: Path, here: Path) -> None:
    columns = ["--defense", f"Ours={checkpoint}", "--surrogate", f"Theirs={robust_checkpoint}"]
    assert run(["run", "demo", *columns, "--samples", "8", "--tier", "strict", "--out", "a"]) == 0
    for name in ("transfer", "detection", "table"):
        assert set(pd.read_csv(here / "a" / f"{name}.csv")["defense"]) == {"Ours"}, name
    assert "made on Theirs" in (here / "a" / "table.md").read_text()
    assert checkpoint.name not in (here / "a" / "table.md").read_text()
    assert any("ours" in path.name.lower() for path in here.glob("a/figures/*"))


@pytest.mark.parametrize(
    "columns",
    [
        ["--defense", "adp-2-0.5=baseline", "--defense", "adp-2-0.5"],
        ["--defense", "A=baseline", "--defense", "A=jsd"],
        ["--defense", "A=adp-2-0.5", "--defense", "B=adp(alpha=2,beta=0.5)"],
        ["--defense", "A=adp-2-0.5", "--defense", "adp(alpha=2,beta=0.5)"],
        ["--defense", "small={small}", "--defense", "{copy}/small"],
        ["--defense", "A={small}", "--surrogate", "A=jsd", "--attack", "none"],
        ["--defense", "=baseline"],
    ],
)
def test_a_label_of_two_defenses_is_refused_before_anything_is_done(
    columns: list[str], checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(checkpoint, here / "copy" / "small")
    asked = [text.format(small=checkpoint, copy=here / "copy") for text in columns]
    assert run(["run", "demo", *asked]) == 2
    assert capfd.readouterr().err.count("\n") == 1 and not (here / "results").exists()


def test_the_label_of_another_defense_in_the_folder_is_refused_unless_that_one_is_renamed(
    checkpoint: Path, robust_checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", *FAST, "--out", "a"]
    assert run([*command, "--defense", f"Ours={checkpoint}"]) == 0
    before = _measured(here / "a")
    assert run([*command, "--defense", f"Ours={robust_checkpoint}"]) == 2
    assert "'Ours'" in capfd.readouterr().err and _measured(here / "a") == before
    assert run([*command, "--defense", f"Old={checkpoint}", "--defense", f"Ours={robust_checkpoint}"]) == 0
    after = _measured(here / "a")
    assert before.items() <= after.items()
    named = {cell["spec"]: cell["defense"] for cell in json.loads((here / "a/manifest.json").read_text())["cells"]}
    assert named == {str(checkpoint): "Old", str(robust_checkpoint): "Ours"}


def test_one_defense_with_other_members_may_have_a_column_each(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    grid = '[[grid]]\ndataset = "digits"\nmembers = {0}\ndefenses = ["{1}baseline"]\ndiversity = {{}}\n'
    (here / "mine.toml").write_text(grid.format(2, "Two=") + grid.format(3, "Three="))
    assert run(["run", "mine.toml", "--plan"]) == 0
    assert "Two" in (plan := capfd.readouterr().out) and "Three" in plan
    (here / "mine.toml").write_text(grid.format(2, "") + grid.format(3, ""))
    assert run(["run", "mine.toml", "--plan"]) == 2
    assert "Label=" in capfd.readouterr().err
