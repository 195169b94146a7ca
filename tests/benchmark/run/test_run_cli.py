"""What ``adp-bench run`` and ``report`` refuse: one line, exit code 2, and nothing is overwritten or left behind."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from benchmark.cli import run

pytestmark = pytest.mark.usefixtures("here")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _refused(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run(arguments) == 2
    output = capfd.readouterr()
    assert output.out == "" and message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmeo"], "did you mean demo"),
        (["demo", "--attack", "pdg(eps=0.1)"], "did you mean pgd"),
        (["demo", "--attack", "pgd@foolbax(eps=0.1)"], "did you mean foolbox"),
        (["demo", "--attack", "pgd(eps=0)"], "eps is 0"),
        (["demo", "--attack", "pgd(eps=300)"], "eps is 300"),
        (["demo", "--attack", "pgd(eps=much)"], "eps of attack 'pgd' is 'much'"),
        (["demo", "--attack", "pgd(eps=0.1"], "cannot read the attack"),
        (["errors", "--attack", "pgd"], "needs eps"),
        (["demo", "--tier", "weak"], "unknown tier 'weak'"),
        (["demo", "--samples", "100000"], "samples is 100000; digits has"),
        (["demo", "--samples", "0"], "samples is '0'"),
        (["demo", "--samples", "-5"], "samples is '-5'"),
        (["demo", "--samples", "many"], "write a number of images, or all"),
        (["demo", "--samples", "²"], "samples is '²'"),
        (["demo", "--seeds", "0,x"], "seeds is '0,x'"),
        (["demo", "--seeds", "0,,1"], "seeds is '0,,1'"),
        (["demo", "--seeds", "0,-1"], "seeds is '0,-1'"),
        (["demo", "--seeds", "²"], "seeds is '²'"),
        (["demo", "--seeds", "99999999999"], "'99999999999'"),
        (["demo", "--seed", "-1"], "seed is -1"),
        (["demo", "--batch-size", "0"], "batch-size is 0"),
        (["demo", "--threads", "0"], "threads is 0"),
        (["demo", "--device", "gpu"], "unknown device 'gpu'"),
        (["demo", "--executor", "cloud"], "unknown executor 'cloud'; known: local, ray"),
        (["demo", "--ray-address", "head:6379"], "--ray-address head:6379 needs --executor ray"),
        (["demo", "--plan", "--attack", "pgd(eps=0)"], "eps is 0"),
        (["demo", "--defense", "basline"], "did you mean baseline"),
        (["demo", "--acceleration", "fast"], "unknown acceleration 'fast'"),
        (["demo", "--dataset", "mnist"], "preset 'demo' has no dataset 'mnist'; it has digits"),
        (["errors", "--dataset", "cifar"], "unknown dataset 'cifar'; did you mean cifar10 or cifar100?"),
        (["demo", "--surrogate", "basline"], "did you mean baseline"),
        (
            ["cifar10-whitebox", "--surrogate", "baseline"],
            "black-box attacks, but preset 'cifar10-whitebox' has none here",
        ),
        (["demo", "--attack", "pgd", "--surrogate", "baseline"], "preset 'demo' has none here"),
        (["demo", "--surrogate", "baseline"], "baseline cannot be its own surrogate"),
        (["demo", "--defense", "nowhere.safetensors"], "no checkpoint at nowhere.safetensors"),
        (["demo", "--defense", "nowhere.pth"], "no checkpoint at nowhere.pth"),
        ([], "Missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_left_behind(
    arguments: list[str], message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _refused(["run", *arguments], message, capfd)
    assert list(here.iterdir()) == []


def test_without_ray_the_option_says_how_to_get_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    _refused(["run", "demo", "--executor", "ray"], "pip install -c constraints.txt -e '.[ray]'", capfd)
    assert list(here.iterdir()) == []


def test_a_checkpoint_of_another_dataset_is_refused_before_anything_is_made(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = "has dataset 'digits', not 'cifar10'"
    _refused(["run", "cifar10-whitebox", "--defense", str(checkpoint)], message, capfd)
    assert list(here.iterdir()) == []


@pytest.fixture
def finished(checkpoint: Path, here: Path) -> Path:
    quick = ["--defense", str(checkpoint), "--attack", "fgsm", "--samples", "10", "--tier", "strict"]
    assert run(["run", "demo", *quick, "--out", "a"]) == 0
    return here / "a"


def test_a_folder_of_another_preset_is_refused_and_nothing_overwritten(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = _files(finished)
    message = "a holds a run of preset 'demo', not 'cifar10-k5'; choose another --out"
    _refused(["run", "cifar10-k5", "--out", "a"], message, capfd)
    assert _files(finished) == before


@pytest.mark.parametrize("arguments", [["--samples", "99999"], ["--attack", "pgd(eps=0)"], ["--defense", "no.pth"]])
def test_bad_input_to_a_finished_run_overwrites_nothing(
    arguments: list[str], finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = _files(finished)
    _refused(["run", "demo", "--out", "a", *arguments], "adp-bench", capfd)
    assert _files(finished) == before


def test_a_folder_with_something_else_is_refused(
    here: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter1.tex").write_text("mine")
    _refused(["run", "demo", "--defense", str(checkpoint), "--out", "thesis"], "thesis is not empty", capfd)
    assert _files(here) == {str(here / "thesis" / "chapter1.tex"): b"mine"}


def test_a_file_in_place_of_the_folder_is_refused(
    here: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("mine")
    _refused(["run", "demo", "--defense", str(checkpoint), "--out", "file"], "cannot write in file", capfd)
    assert _files(here) == {str(here / "file"): b"mine"}


def test_an_unwritable_folder_is_refused(here: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o555)
    if os.access(closed, os.W_OK):  # root may write everywhere, but not make folders in /proc
        closed = Path("/proc/adp-bench")
    _refused(["run", "demo", "--defense", str(checkpoint), "--out", str(closed / "x")], "cannot write in", capfd)


def test_report_needs_the_folder_of_a_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    for folder in ("nowhere", "empty"):
        _refused(["report", folder], f"{folder} holds no run: it has no manifest.json", capfd)
    assert _files(here) == {}


def test_the_surrogate_of_black_box_attacks_can_be_named_or_left_out(
    here: Path, checkpoint: Path, robust_checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = ["run", "demo", "--plan", "--samples", "10", "--defense", str(checkpoint)]
    assert run([*plan, "--surrogate", str(robust_checkpoint)]) == 0
    named = capfd.readouterr().out
    assert "blackbox" in named and "to be trained first" not in named
    assert run([*plan, "--surrogate", "none"]) == 0
    left_out = capfd.readouterr().out
    assert "transfer" in left_out and "blackbox" not in left_out and "black-box" not in left_out
    _refused([*plan, "--surrogate", str(checkpoint)], "cannot be its own surrogate", capfd)
