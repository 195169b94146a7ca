"""The command line does what it says; what it cannot do is one line and an exit code, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmark
from benchmark.cli import run
from benchmark.datasets.catalogue import DATASETS
from benchmark.machine.clock import clock
from benchmark.machine.devices import find_device, set_threads
from defenses.checkpoints import read_provenance
from defenses.errors import BadInput

ROOT = Path(__file__).parents[2]
QUICK = ["--network", "mini-resnet(width=2)", "--epochs", "1", "--train-images", "64", "--members", "2"]


pytestmark = pytest.mark.usefixtures("here")


def _process(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmark.cli", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # where the tests run in the background, Ctrl-C is ignored, and children inherit that
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=_heed_interrupts, **pipes)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# --- help and listings ---


def test_help_answers_in_under_half_a_second_without_heavy_imports() -> None:
    script = (
        "import sys\n"
        "from benchmark.cli import run\n"
        "code = run(['--help'])\n"
        "heavy = {'torch', 'pandas', 'sklearn', 'scipy', 'matplotlib', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # its own time: the machine may be busy with others
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("list", "data", "train", "alpha"))
    assert min(seconds) < 0.5


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_no_command_shows_the_help_in_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert len((output.out + output.err).splitlines()) > 5


@pytest.mark.parametrize(
    ("what", "names"),
    [
        (
            "defenses",
            {"baseline", "adp", "adp-2-0", "adp-2-0.5", "label-smoothing-0.6", "jsd", "advt-fgsm", "advt-pgd"},
        ),
        ("networks", {"resnet20", "resnet20-dverge", "mini-resnet", "resnet"}),
        ("datasets", {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100"}),
    ],
)
def test_listings_name_everything_as_text_and_as_json(
    what: str, names: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert names <= {row["name"] for row in rows}
    assert run(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1 and lines[0].startswith("name")


def test_list_alone_is_an_overview_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    text = capsys.readouterr().out
    assert run(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["defenses", "attacks", "datasets", "networks", "presets", "checkpoints"]
    for kind in ("defenses", "attacks", "datasets", "networks", "presets"):
        assert run(["list", kind, "--json"]) == 0
        assert found[kind] == [row["name"] for row in json.loads(capsys.readouterr().out)]
        assert set(found[kind]) <= set(text.split())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["adp-bench", benchmark.__version__]
    assert benchmark.__version__ == version("adp-benchmark")


@pytest.mark.parametrize("command", [[], ["list"], ["train"], ["run"], ["compare"], ["data"], ["data", "fetch"]])
def test_h_is_short_for_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    wanted = capsys.readouterr().out
    assert run([*command, "-h"]) == 0
    assert capsys.readouterr().out == wanted != ""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("adp-bench lis", {"list"}),
        ("adp-bench list at", {"attacks"}),
        ("adp-bench train base", {"baseline"}),
        ("adp-bench train baseline --dataset cifar", {"cifar10", "cifar100"}),
        ("adp-bench run dem", {"demo"}),
        ("adp-bench run demo --attack pg", {"pgd"}),
        ("adp-bench compare baseline --against jsd --tier s", {"strict", "strong"}),
    ],
)
def test_the_shell_completes_commands_and_names_without_loading_torch(words: str, wanted: set[str]) -> None:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: 'torch' in sys.modules and sys.stdout.write('loaded-torch'))\n"
        "from benchmark.cli import main\n"
        "main()\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_ADP_BENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == wanted, done.stderr


def test_alpha_prints_the_papers_imagenet_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["alpha", "--members", "5", "--classes", "1000", "--confidence", "0.9"]) == 0
    assert capsys.readouterr().out == "0.61\n"


# --- bad input ---

DIGITS = ["--dataset", "digits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", "baseline"], "trian"),
        (["train", "baseline"], "--dataset"),
        (["train", *DIGITS], "Missing argument"),
        (["train", "baseline", *DIGITS, "--memberz", "3"], "--memberz"),
        (["train", "baseline", *DIGITS, "--members", "three"], "--members"),
        (["train", "adp-2-05", *DIGITS], "did you mean adp-2-0.5"),
        (["train", "adp(alpha=2;beta=1)", *DIGITS], "write a number such as 0.5"),
        (["train", "adp(alpha=2,beta=0.5", *DIGITS], "cannot read the defense"),
        (["train", "adp(alpha=-2,beta=0.5)", *DIGITS], "alpha is -2; it must be a number ≥ 0"),
        (["train", "adp(alpha=much,beta=0.5)", *DIGITS], "alpha of defense 'adp' is 'much'"),
        (["train", "adp(alfa=2,beta=0.5)", *DIGITS], "did you mean alpha"),
        (["train", "baseline", *DIGITS, "--members", "0"], "members is 0; an ensemble has at least 1"),
        (["train", "adp-2-0.5", *DIGITS, "--members", "10"], "use at most 9 members or beta=0"),
        (["train", "baseline", "--dataset", "digit"], "did you mean digits"),
        (["train", "baseline", *DIGITS, "--network", "resnet(depth=21)"], "depth is 21"),
        (["train", "baseline", *DIGITS, "--network", "rasnet20"], "did you mean resnet20"),
        (["train", "baseline", *DIGITS, "--recipe", "fats"], "did you mean fast"),
        (["train", "baseline", *DIGITS, "--epochs", "0"], "epochs is 0"),
        (["train", "baseline", *DIGITS, "--batch-size", "1"], "batch_size is 1"),
        (["train", "baseline", *DIGITS, "--learning-rate", "nan"], "learning_rate is nan"),
        (["train", "baseline", *DIGITS, "--strategy", "sequencial"], "did you mean sequential"),
        (["train", "baseline", *DIGITS, "--select", "test"], "unknown select 'test'"),
        (["train", "baseline", *DIGITS, "--select", "validation"], "give --validation N"),
        (["train", "baseline", *DIGITS, "--validation", "99999"], "99999"),
        (["train", "adp-2-0.5", *DIGITS, "--strategy", "independent"], "couples the members"),
        (["train", "baseline", *DIGITS, "--seed", "-1"], "seed is -1"),
        (["train", "baseline", *DIGITS, "--seed", "99999999999999999999"], "seed is 99999999999999999999"),
        (["train", "baseline", *DIGITS, "--threads", "0"], "threads is 0"),
        (["train", "baseline", *DIGITS, "--device", "gpu"], "unknown device 'gpu'"),
        (["train", "baseline", *DIGITS, "--start-from", "nowhere"], "nowhere"),
        (["train", "nowhere.py:Mine", *DIGITS], "nowhere.py is not a file"),
        (["list", "defences"], "did you mean defenses"),
        (["alpha", "--members", "0", "--classes", "10", "--confidence", "0.9"], "members is 0"),
        (["alpha", "--members", "3", "--classes", "10", "--confidence", "1"], "confidence 1 is out of range"),
        (["data", "fetch", "cifar11"], "did you mean cifar10"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_left_behind(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], here: Path
) -> None:
    assert run(arguments) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["report", "x" * 300], "File name too long", id="path"),
        pytest.param(["verify", "x" * 300], "File name too long", id="path to verify"),
        pytest.param(["train", "baseline", *DIGITS, "--start-from", "x" * 300], "File name too long", id="start"),
        pytest.param(["run", "x" * 300 + ".toml"], "File name too long", id="preset"),
        pytest.param(["run", "demo", "--threads", "2147483648"], "threads is 2147483648", id="threads"),
        pytest.param(["run", "demo", "--attack", f"pgd(steps={'9' * 5000})"], "steps", id="digits of an attack"),
        pytest.param(["train", f"adp(alpha=2,beta={'9' * 5000})", *DIGITS], "beta", id="digits of a defense"),
        pytest.param(["train", "baseline", *DIGITS, "--seed", "9" * 5000], "seed", id="digits of an option"),
        pytest.param(["run", "demo", "--seeds", "9" * 5000], "seeds", id="digits of seeds"),
    ],
)
def test_what_is_far_too_long_or_too_large_is_one_line_too(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], here: Path
) -> None:
    assert run(arguments) == 2
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "another network"])
def test_a_damaged_or_wrong_checkpoint_to_start_from_is_one_line(
    damage: str, capfd: pytest.CaptureFixture[str], here: Path
) -> None:
    assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "first"]) == 0
    path = here / "first" / "ensemble.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= damage == "flipped"
    path.write_bytes(content[:-7] if damage == "truncated" else content)
    capfd.readouterr()
    network = ["--network", "mini-resnet(width=3)"] if damage == "another network" else []
    assert run(["train", "baseline", *DIGITS, *QUICK, *network, "--start-from", "first", "--out", "second"]) == 2
    message = capfd.readouterr().err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", message)
    assert {"truncated": "truncated", "flipped": "checksum", "another network": "has network"}[damage] in message
    assert not (here / "second").exists()


def test_a_file_in_place_of_the_folder_is_bad_input(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "file").write_text("")
    assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "file"]) == 2
    assert re.fullmatch(r"adp-bench: cannot write in file: [^\n]+ --out\n", capfd.readouterr().err)


def test_another_request_for_the_same_folder_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "a"]) == 0
    capfd.readouterr()
    assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "a", "--seed", "5"]) == 2
    assert "was made with seed 0, not 5; give another --out" in capfd.readouterr().err


def test_a_damaged_data_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from benchmark.datasets import catalogue

    monkeypatch.setenv("ADP_BENCH_DATA", str(tmp_path))
    entry = catalogue.DATASETS.get("mnist")
    (tmp_path / entry.folder).mkdir()
    for file in entry.files:
        (tmp_path / entry.folder / file).write_bytes(bytes(1000))
    assert run(["train", "baseline", "--dataset", "mnist", "--out", "a"]) == 2
    assert re.fullmatch(r"adp-bench: [^\n]+\n", capfd.readouterr().err)


# --- runs that fail ---


def test_a_full_disk_is_one_line_exit_code_1_and_nothing_half_written(
    capfd: pytest.CaptureFixture[str], here: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "a"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = capfd.readouterr().err
    assert re.fullmatch(r"adp-bench: could not write a/training.pt: [^\n]+\n", message)
    assert list((here / "a").iterdir()) == []


def test_a_loss_that_is_not_finite_is_one_line_that_names_the_term(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "adp-2-0.5", *DIGITS, *QUICK, "--batch-size", "16", "--learning-rate", "1e30"]) == 1
    message = capfd.readouterr().err
    assert re.fullmatch(r"adp-bench: the loss is not finite: term ece[^\n]+ epoch 1, batch \d[^\n]+\n", message)


def test_a_defense_that_ends_the_program_did_not_train(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    lines = [
        "from defenses.objectives import Baseline",
        "class Leaving(Baseline):",
        "    def objective(self, logits, labels):",
    ]
    (here / "mine.py").write_text("\n".join([*lines, "        raise SystemExit(0)"]))
    assert run(["train", "mine.py:Leaving", *DIGITS, *QUICK, "--out", "a"]) == 1
    assert re.fullmatch(r"adp-bench: [^\n]+\n", capfd.readouterr().err)


# --- interrupted and killed ---


@pytest.fixture
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _wait_for_epoch(process: subprocess.Popen[str], history: Path, epoch: int) -> None:
    while process.poll() is None:
        if history.is_file() and len(history.read_text().splitlines()) > epoch:
            return
        time.sleep(0.005)
    pytest.fail(f"the command ended before epoch {epoch} was in {history}")


@pytest.mark.usefixtures("same_threads_afterwards")
def test_a_killed_and_an_interrupted_command_go_on_and_end_like_an_unbroken_one(here: Path) -> None:
    quick = ["--network", "mini-resnet(width=4)", "--epochs", "6", "--members", "2", "--threads", "1"]
    command = ["train", "adp-2-0.5", *DIGITS, *quick]
    history = here / "broken" / "history.csv"
    for ending, epoch in ((signal.SIGKILL, 2), (signal.SIGINT, 4)):
        broken = _process([*command, "--out", "broken"], here)
        _wait_for_epoch(broken, history, epoch)
        broken.send_signal(ending)
        _, message = broken.communicate()
        assert broken.returncode == (-ending if ending == signal.SIGKILL else 130), message
        assert not (here / "broken" / "ensemble.safetensors").exists()
    last = message.splitlines()[-1]
    assert last.startswith("adp-bench: interrupted") and "same command" in last
    kept = history.read_text()
    assert run([*command, "--out", "broken"]) == 0
    assert run([*command, "--out", "whole"]) == 0
    assert history.read_text().startswith(kept), "the epochs that were done were not done again"
    one, two = (read_provenance(here / name / "ensemble.safetensors") for name in ("whole", "broken"))
    assert one.weights_sha256 == two.weights_sha256
    assert one.scores["test_accuracy"] == two.scores["test_accuracy"]


# --- the main job ---


def test_adp_trains_to_95_percent_on_digits_and_is_far_more_diverse_than_the_baseline(
    capfd: pytest.CaptureFixture[str], here: Path
) -> None:
    for defense in ("adp-2-0.5", "baseline"):
        began = time.perf_counter()
        assert run(["train", defense, *DIGITS]) == 0
        assert time.perf_counter() - began < 60, "30 s are promised on two free cores"
    lines = [line for line in capfd.readouterr().err.splitlines() if "test accuracy" in line]
    assert len(lines) == 2
    folders = sorted((here / "results" / "ensembles" / "digits").iterdir())
    adp, baseline = (read_provenance(folder / "ensemble.safetensors").scores for folder in folders)
    assert adp["test_accuracy"] >= 0.95 and baseline["test_accuracy"] >= 0.95
    assert adp["test_led_median"] > -0.5
    assert baseline["test_led_median"] < adp["test_led_median"] - 1


def test_a_defense_from_a_file_trains(here: Path) -> None:
    (here / "mine.py").write_text(
        "from defenses import Defense\n"
        "from defenses.objectives import cross_entropy\n"
        "class Mine(Defense):\n"
        "    def objective(self, logits, labels):\n"
        "        return {'ece': cross_entropy(logits, labels).sum(0)}\n"
    )
    assert run(["train", "mine.py:Mine", *DIGITS, *QUICK, "--out", "a"]) == 0
    provenance = read_provenance(here / "a" / "ensemble.safetensors")
    assert provenance.defense == "mine.py:Mine" and len(provenance.defense_digest) == 64


def test_a_defense_that_was_edited_is_told_by_name_with_what_to_do_but_a_comment_is_no_edit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "from defenses import Defense\n"
        "from defenses.objectives import cross_entropy\n"
        "class Mine(Defense):\n"
        "    def objective(self, logits, labels):\n"
        "        return {'ece': cross_entropy(logits, labels).sum(0)}\n"
    )
    (here / "mine.py").write_text(text)
    train = ["train", "mine.py:Mine", *DIGITS, *QUICK, "--out", "a"]
    assert run(train) == 0
    (here / "mine.py").write_text(text + "# a word\n")
    assert run(train) == 0
    (here / "mine.py").write_text(text + "word = 1\n")
    capsys.readouterr()
    assert run(train) == 2
    assert "--accept-changed-defense" in capsys.readouterr().err
    assert run([*train, "--accept-changed-defense"]) == 0


def test_devices_and_threads_are_checked_by_name() -> None:
    assert find_device("cpu").type == "cpu"
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    assert find_device("auto").type == (there.type if there else "cpu")
    for name in ("meta", "tpu", "xla:7", *({"cuda", "mps", "xpu"} - {there.type if there else ""})):
        with pytest.raises(BadInput, match=name):
            find_device(name)
    with pytest.raises(BadInput, match="threads is -1"):
        set_threads(-1)


@pytest.mark.usefixtures("same_threads_afterwards")
def test_unless_told_there_are_as_many_threads_as_are_usual_for_all_of_the_datasets() -> None:
    digits, cifar = DATASETS.get("digits").threads, DATASETS.get("cifar10").threads
    assert (digits, cifar) == (1, None)
    for told, usual, expected in (
        (2, [], 2),
        (None, [digits, digits], 1),
        (2, [digits], 2),
        (None, [digits, cifar], 2),
    ):
        set_threads(told, usual)
        assert torch.get_num_threads() == expected


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (45, "45 s"), (180, "3 min"), (7500, "2 h 05 min")])
def test_times_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_damaged_checkpoint_does_not_hide_the_others(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (checkpoint / "ensemble.safetensors").read_bytes()
    for name, content in (("good", whole), ("half", whole[:3000]), ("empty", b"")):
        folder = Path("results") / "checkpoints" / "digits" / name
        folder.mkdir(parents=True)
        (folder / "ensemble.safetensors").write_bytes(content)
    assert run(["list", "checkpoints", "--json"]) == 0
    assert [row["epochs"] for row in json.loads(capsys.readouterr().out) if row["epochs"]] == [4]


def test_checkpoints_are_listed_with_how_they_were_trained(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "checkpoints"]) == 0
    assert "no checkpoints found" in capsys.readouterr().out
    folder = Path("results") / "checkpoints" / "digits" / "small"
    folder.mkdir(parents=True)
    (folder / "ensemble.safetensors").write_bytes((checkpoint / "ensemble.safetensors").read_bytes())
    assert run(["list", "checkpoints", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["dataset"], row["defense"], row["epochs"], row["images"]) == ("digits", "baseline", 4, 800)
    assert row["network"] == "2 × mini-resnet(width=4)" and row["date"] == date.today().isoformat()
    assert float(row["accuracy"].rstrip(" %")) > 50 and len(row["sha256"]) == 16


# --- names that are no words ---


def test_a_folder_whose_name_looks_like_markup_is_trained_into(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(["train", "baseline", *DIGITS, *QUICK, "--out", "o[/b] :bug:"]) == 0
    assert (here / "o[/b] :bug:" / "ensemble.safetensors").is_file()
    assert "o[/b] :bug:/ensemble.safetensors" in capfd.readouterr().err


def test_an_error_line_shows_control_characters_instead_of_obeying_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "no\x1b[2J\x9b31m\u202erun\udcff"]) == 2
    message = capfd.readouterr().err
    assert message.startswith("adp-bench: no\\x1b[2J\\x9b31m\\u202erun\\udcff ") and message.count("\n") == 1


def test_listed_checkpoints_show_control_characters_instead_of_obeying_them(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("results") / "checkpoints" / "digits" / "small\x1b[2J\nfake"
    folder.mkdir(parents=True)
    (folder / "ensemble.safetensors").write_bytes((checkpoint / "ensemble.safetensors").read_bytes())
    assert run(["list", "checkpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].endswith("small\\x1b[2J\\nfake")


def test_an_interrupt_while_the_commands_are_put_together_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(app: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    assert run(["report", "a"]) == 130
    assert re.fullmatch(r"adp-bench: interrupted[^\n]*\n", capfd.readouterr().err)


@pytest.mark.parametrize("library", ["torchattacks", "foolbox"])
def test_the_classes_of_a_library_are_listed_with_their_parameters_or_a_reason(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "attacks", "--library", library, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(bool(row["left out"]) != bool(row["spec"]) for row in rows)
    assert all(row["bound"] for row in rows if row["spec"]) and len(rows) > 30
    assert run(["list", "attacks"]) == 0
    short = capsys.readouterr().out
    assert f"--library {library}" in short or "--library torchattacks" in short


def test_only_attacks_have_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "networks", "--library", "art"]) == 2
    assert run(["list", "attacks", "--library", "arts"]) == 2
    assert "art" in capsys.readouterr().err


def test_several_seeds_are_trained_one_after_the_other_and_not_again(here: Path) -> None:
    command = ["train", "baseline", "--dataset", "digits", "--network", "mini-resnet(width=1)", "--members", "1"]
    command += ["--epochs", "1", "--train-images", "100", "--out", "mine"]
    assert run([*command, "--seeds", "3,5"]) == 0
    trained = {path: path.stat().st_mtime_ns for path in here.glob("mine/*/ensemble.safetensors")}
    assert {path.parent.name for path in trained} == {"seed3", "seed5"}
    assert [read_provenance(path).seed for path in sorted(trained)] == [3, 5]
    assert run([*command, "--seeds", "3,5,4"]) == 0
    assert {path: path.stat().st_mtime_ns for path in trained} == trained and (here / "mine" / "seed4").is_dir()
    assert run([*command, "--seeds", "3,-1"]) == 2


def test_a_reader_that_has_gone_is_no_error_of_a_file(here: Path) -> None:
    command = f"{sys.executable} -m benchmark list attacks --library art | head -1"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=120)
    assert answer.returncode == 0 and answer.stderr == ""


def test_an_error_in_a_file_of_the_users_names_its_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "bug.py").write_text(
        "from dataclasses import dataclass\n"
        "from defenses import Defense\n"
        "@dataclass(frozen=True)\n"
        "class Crash(Defense):\n"
        "    def objective(self, logits, labels):\n"
        "        return {'ece': logits @ labels}\n"
    )
    assert run(["train", "bug.py:Crash", "--dataset", "digits", "--epochs", "1"]) == 1
    said = capfd.readouterr().err.splitlines()
    assert "bug.py, line 6" in said[-1] and not any("Traceback" in line for line in said)
