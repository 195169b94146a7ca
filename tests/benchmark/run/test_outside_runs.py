"""Models from outside go through a run like any ensemble; one that does not suit it is a line and exit code 2."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark import datasets
from benchmark.attacks import parse_attack
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.ensembles.finding import Trained, load_outside
from benchmark.evaluations.blackbox import BlackBoxSection
from benchmark.evaluations.detection import DetectionSection
from benchmark.evaluations.diversity import Diversity, DiversitySection
from benchmark.evaluations.task import Amount, Section
from benchmark.evaluations.transfer import TransferSection
from benchmark.evaluations.whitebox import Row, WhiteBoxSection
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.planning import Work, assemble, plan_cells
from benchmark.plan.presets import Preset, load_preset
from benchmark.plan.run_request import Request
from benchmark.run.display import RunDisplay
from benchmark.run.runner import run as run_request
from defenses import load_checkpoint
from defenses.members.ensemble import Ensemble

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NETWORK = "mini-resnet(width=4)"
QUICK = ["--attack", "fgsm(eps=0.1)", "--samples", "20", "--tier", "strict"]
TWENTY = Amount(20, 20)
FGSM = WhiteBoxSection((Row(parse_attack("fgsm(eps=0.1)"), TWENTY),))


def _demo(defenses: tuple[str, ...], *sections: Section) -> Preset:
    """The preset demo in tier strict, with these sections instead of its own."""
    demo = load_preset("demo")
    return replace(demo, grids=(replace(demo.grids[0], defenses=defenses, tiers=("strict",), sections=sections),))


def _request(preset: Preset, out: Path, seeds: tuple[int, ...] = (0,), surrogate: str | None = None) -> Request:
    return Request(preset, 20, seeds, torch.device("cpu"), out, "", surrogate=surrogate, trust=True)


class Whole(nn.Module):
    """An ensemble's first member with the normalisation before it, and a defect where one is named."""

    def __init__(self, ensemble: Ensemble, defect: str = "") -> None:
        super().__init__()
        self.member, self.mean, self.defect = ensemble.members[0], ensemble.mean, defect

    def forward(self, images: Tensor) -> Tensor:
        logits = self.member(images - self.mean)
        if self.defect == "probabilities":
            return logits.softmax(-1)
        if self.defect == "detached":
            return logits.detach()
        return logits[:, :7] if self.defect == "seven" else logits


def _trace(module: nn.Module, path: str, shape: tuple[int, ...] = (4, 1, 8, 8)) -> None:
    torch.jit.save(torch.jit.trace(module, torch.rand(shape)), path)


@pytest.fixture
def models(ensemble: Ensemble, checkpoint: Path, here: Path) -> Path:
    """The small ensemble in every form, and its first member alone."""
    for index, member in enumerate(ensemble.members):
        state = {f"model.{name}": value for name, value in member.state_dict().items()}
        torch.save({"state_dict": state | {"normalize.mean": ensemble.mean}}, f"net{index}.pt")
    _trace(Whole(ensemble).eval(), "script.pt")
    batch = {0: torch.export.Dim("batch")}
    example = (torch.rand(4, 1, 8, 8),)
    torch.export.save(torch.export.export(Whole(ensemble).eval(), example, dynamic_shapes=(batch,)), "program.pt2")
    text = f"from defenses import load_checkpoint\n\n\ndef both():\n    return load_checkpoint({str(checkpoint)!r})\n"
    (here / "models.py").write_text(text)
    return here


def _run(specs: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[pd.DataFrame, str]:
    """The table of a run of these defenses, and what the terminal said."""
    capfd.readouterr()
    assert (
        run(
            [
                "run",
                "demo",
                *(word for spec in specs for word in ("--defense", spec)),
                *QUICK,
                "--trust",
                "--out",
                "run",
            ]
        )
        == 0
    )
    return pd.read_csv("run/table.csv", index_col="defense", keep_default_na=False), capfd.readouterr().err


def test_every_form_of_the_same_weights_gets_the_same_row_and_says_what_it_was_taken_for(
    models: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, whole = f"net0.pt:{NETWORK}", str(checkpoint)
    cases = {  # spec: name in the table, what it is recognised as, the name of the row that it must equal
        one: ("net0", f"state dict, 1 × {NETWORK}, normalised by the mean in the file", "net0"),
        "script.pt": ("script", "TorchScript program, 1 × Whole, taken to normalise pixels in [0, 1] itself", "net0"),
        "program.pt2": ("program", "torch.export program, 1 × exported graph, taken to normalise", "net0"),
        f"net0.pt,net1.pt:{NETWORK}": ("net0 and 1 more", f"2 files, state dict, 2 × {NETWORK}, ", checkpoint.name),
        "models.py:both": ("both", "both() of models.py, 2 × ResidualNetwork, normalised as", checkpoint.name),
    }
    table, said = _run([whole, *cases], capfd)
    assert f"{whole}: adp-benchmark, 2 × {NETWORK}, fast recipe, 4 epochs on 800 images" in said
    for spec, (label, recognised, same) in cases.items():
        for column in ("clean_accuracy", "accuracy", "members", "samples"):
            assert table.loc[label, column] == table.loc[same, column]
        assert f"{spec}: {recognised}" in said
        assert str(table.loc[label, "training"]).startswith(f"from outside: {recognised}")


def test_a_program_without_features_goes_through_every_evaluation_but_the_map_of_features(
    models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attack = parse_attack("pgd(eps=0.1,steps=2)")
    sections = (
        WhiteBoxSection((Row(attack, TWENTY),)),
        TransferSection((attack,), TWENTY),
        DetectionSection((attack,), TWENTY),
        DiversitySection(TWENTY),
    )
    preset = _demo(("script.pt", "models.py:both"), *sections)
    store = run_request(_request(preset, Path("run")), RunDisplay())
    assert "script.pt: TorchScript program" in (said := capfd.readouterr().err)
    assert said.count("no features(images)") == 1
    records = {cell.ensemble.defense: store.read(cell) for cell in store.asked() if isinstance(cell.task, Diversity)}
    assert "tsne_net1" in records["both"] and "tsne_net1" not in records["script"]
    assert records["script"]["led"].notna().all()
    assert {cell.task.evaluation for cell in store.asked() if store.has(cell)} == {
        "whitebox",
        "transfer",
        "detection",
        "diversity",
    }


def test_two_models_from_outside_can_be_compared(models: Path) -> None:
    arguments = [
        "compare",
        "script.pt",
        "--against",
        f"net0.pt,net1.pt:{NETWORK}",
        "--dataset",
        "digits",
        "--trust",
        *QUICK,
    ]
    assert run([*arguments, "--out", "comparison"]) == 0
    text = Path("comparison/comparison.md").read_text(encoding="utf-8")
    assert text.startswith("# script against net0 and 1 more\n")
    assert "- script: from outside: TorchScript program, 1 × Whole" in text


@pytest.mark.parametrize(
    "command",
    [
        ["run", "demo", "--plan", "--defense", "script.pt"],
        ["run", "demo", "--defense", "program.pt2"],
        ["compare", "baseline", "--against", "script.pt"],
        ["crosscheck", "--defense", "program.pt2"],
    ],
    ids=" ".join,
)
def test_a_program_is_refused_without_trust_before_anything_is_done(
    models: Path, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(models.rglob("*"))
    assert run(command) == 2
    assert "--trust" in capfd.readouterr().err and set(models.rglob("*")) == before


def test_other_weights_under_the_same_name_are_attacked_again(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _run([f"net0.pt:{NETWORK}"], capfd)
    (before,) = Store(Path("run")).asked()
    (models / "net1.pt").replace(models / "net0.pt")
    table, said = _run([f"net0.pt:{NETWORK}"], capfd)
    (after,) = Store(Path("run")).asked()
    assert "done already" not in said and len(table) == 1, "the newer weights take the place of the older"
    assert before.identity != after.identity


def test_no_number_of_other_weights_stays_beside_the_new_ones(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = f"net0.pt:{NETWORK}"
    _run([spec, "script.pt"], capfd)
    (models / "net1.pt").replace(models / "net0.pt")
    arguments = ["run", "demo", "--defense", spec, "--attack", "bim(eps=0.1)", *QUICK[2:], "--out", "run"]
    assert run(arguments) == 0
    assert "1 cell of net0 with other weights" in capfd.readouterr().err
    asked = {(cell.ensemble.defense, cell.task.name) for cell in Store(Path("run")).asked()}
    assert asked == {("net0", "bim"), ("script", "fgsm")}


def test_images_of_two_surrogates_are_not_mixed(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for surrogate, attack in ((f"net0.pt:{NETWORK}", "fgsm(eps=0.1)"), (f"net1.pt:{NETWORK}", "bim(eps=0.1)")):
        preset = _demo(("models.py:both",), BlackBoxSection((parse_attack(attack),), TWENTY))
        store = run_request(_request(preset, Path("run"), surrogate=surrogate), RunDisplay())
    assert [cell.task.name for cell in store.asked()] == ["bim"]
    assert "1 cell of both from another surrogate" in capfd.readouterr().err


def test_a_model_with_the_name_of_another_has_a_column_of_its_own(checkpoint: Path, here: Path) -> None:
    shutil.copytree(checkpoint, here / "theirs" / "baseline")
    found = load_outside("theirs/baseline", datasets.find("digits"))
    other = replace(found.provenance, weights_sha256="0" * 64)
    models = {
        "theirs/baseline": found,
        "baseline": Trained("baseline", "baseline", found.ensemble, other),
    }
    request = _request(_demo(tuple(models), FGSM), here / "run", seeds=(0, 1))
    work = assemble(request, Store(here / "run").asked(), lambda wanted: models[wanted.defense])
    names = {(cell.ensemble.spec, cell.ensemble.defense) for part in work for cell in part.cells}
    assert names == {("theirs/baseline", "baseline"), ("baseline", "baseline (2)")}


def test_the_published_number_goes_with_the_defense_and_not_with_the_name(checkpoint: Path) -> None:
    found = load_outside(str(checkpoint), datasets.find("digits"))
    preset = load_preset("cifar10-whitebox")
    (grid,) = narrow(preset, Wish(tiers=("strict",), defenses=("baseline",), attacks=("fgsm",))).grids
    request = _request(preset, Path("run"))

    def published(label: str, spec: str, network: str = "resnet20") -> list[float | None]:
        trained = Trained(label, spec, found.ensemble, replace(found.provenance, members=3, network=network))
        return [cell.published for cell in plan_cells(grid, trained, request, 0, "0" * 64)]

    assert published("baseline (2)", "baseline") == [36.5, 19.4]
    assert published("baseline", str(checkpoint)) == [None, None]
    assert published("baseline", "baseline", "resnet(depth=32)") == [None, None], "the paper has ResNet-20"


def test_what_was_measured_is_in_the_tables_when_the_end_of_a_command_fails(models: Path) -> None:
    def fail(store: Store, work: list[Work]) -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        run_request(_request(_demo(("models.py:both",), FGSM), Path("run")), RunDisplay(), finish=fail)
    assert len(pd.read_csv("run/table.csv")) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("probabilities.pt", "the model gives probabilities"),
        ("seven.pt", "the model gives 7 classes; the dataset has 10"),
        ("detached.pt", "has no gradient to the images"),
        ("training.pt", "depends on the other images of its batch"),
        ("shape.pt", "fails on 8 images of shape (1, 8, 8) (RuntimeError: mat1 and mat2 shapes cannot"),
        ("static.pt2", "fails on 8 images of shape (1, 8, 8) (Guard failed"),
        ("weights.pt", "is a plain state dict"),
        ("weights.pt:resnet20", "this network needs"),
        ("weights.pt:resnet2", "did you mean resnet"),
        ("pickled.pt", "does not load as plain weights"),
        ("probabilities.pt,seven.pt", "member 1 of probabilities.pt,seven.pt: the model gives probabilities"),
        ("models.py:lost", "lost in models.py failed: ValueError: no weights"),
        ("pyautoattack:resnet18", "has dataset 'cifar10', not 'digits'"),
    ],
)
def test_a_model_that_does_not_suit_the_run_is_one_line_and_nothing_left_behind(
    spec: str, message: str, ensemble: Ensemble, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for defect in ("probabilities", "seven", "detached"):
        _trace(Whole(ensemble, defect).eval(), f"{defect}.pt")
    _trace(Whole(ensemble).train(), "training.pt")
    _trace(nn.Sequential(nn.Flatten(), nn.Linear(49, 10)), "shape.pt", (2, 1, 7, 7))
    torch.export.save(torch.export.export(Whole(ensemble).eval(), (torch.rand(4, 1, 8, 8),)), "static.pt2")
    torch.save(ensemble.members[0].state_dict(), "weights.pt")
    torch.save(nn.Linear(2, 2), "pickled.pt")
    Path("models.py").write_text("def lost():\n    raise ValueError('no weights')\n")
    before = set(here.iterdir())
    capfd.readouterr()
    assert run(["run", "demo", "--defense", spec, *QUICK, "--trust", "--out", "run"]) == 2
    output = capfd.readouterr()
    assert output.out == "" and message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"
    assert set(here.iterdir()) - before <= {here / "__pycache__"}


def test_what_the_command_line_loads_is_what_the_library_loads(models: Path, digits: tuple[Tensor, Tensor]) -> None:
    spec = f"net0.pt,net1.pt:{NETWORK}"
    loaded = load_checkpoint(spec, shape=(1, 8, 8), classes=10)
    torch.testing.assert_close(loaded(digits[0][:20]), load_checkpoint("models.py:both")(digits[0][:20]))
