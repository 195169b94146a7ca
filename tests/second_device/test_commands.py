"""The front doors on a second device: the same tables as on the CPU, images that verify, and halves of a batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmark import datasets, evaluate
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.harness.seeding import seeded
from benchmark.machine.devices import find_device, present
from benchmark.machine.hardware import describe_machine
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from tests.second_device.device import calls, limited

SITE = Path(__file__).parent / "site"


def _rows(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "table.csv", keep_default_na=False).drop(columns=["seconds", "device"], errors="ignore")


def _run(checkpoint: Path, device: str, *more: str, samples: int = 6) -> pd.DataFrame:
    words = ["run", "demo", "--defense", str(checkpoint), "--samples", str(samples), "--threads", "1", "--workers", "1"]
    before = calls.total()
    assert run([*words, "--device", device, "--out", device, *more]) == 0
    assert (calls.total() > before) == (device != "cpu")
    return _rows(Path(device)) if "--out" not in more else pd.DataFrame()


def test_auto_is_the_second_device_and_its_number_must_be_there() -> None:
    assert find_device("auto") == find_device("second") == torch.device("second")
    assert find_device("second:0") == torch.device("second", 0) and find_device("cpu").type == "cpu"
    for name in ("second:7", "cuda", "mps"):
        with pytest.raises(BadInput, match=name):
            find_device(name)
    assert present(torch.device("cuda")) == torch.device("cpu")
    assert describe_machine()["gpu0"] == "second device of the tests"


def test_the_generators_of_the_device_are_seeded_and_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3, device="second").cpu()
    torch.manual_seed(5)
    drawn = []
    for _ in range(2):
        with seeded(0, "attack", 0):
            drawn.append(torch.rand(3, device="second").cpu())
    assert torch.equal(*drawn)
    assert torch.equal(torch.rand(3, device="second").cpu(), expected)


@pytest.mark.parametrize("tier", ["paper", "strict", pytest.param("strong", marks=pytest.mark.slow)])
def test_evaluate_gives_the_same_table_and_leaves_the_model_where_it_was(tier: str, checkpoint: Path) -> None:
    ensemble, test = load_checkpoint(checkpoint), datasets.load("digits").test
    images, labels = test.images(slice(0, 6)), test.labels[:6]
    attacks = ["pgd(eps=0.1,steps=3)", "cw(c=1,steps=5)", "pgd@art(eps=0.1,steps=3)"]
    tables = [
        evaluate(ensemble, images, labels, attacks, tier=tier, device=device).drop(columns="seconds")
        for device in ("cpu", "second")
    ]
    assert next(ensemble.parameters()).device.type == "cpu"
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_a_model_from_outside_gets_its_fast_copy_there() -> None:
    torch.manual_seed(0)
    body = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
    model = torch.nn.Sequential(*body, torch.nn.Flatten(), torch.nn.Linear(4 * 64, 10)).eval()
    images = datasets.load("digits").test.images(slice(0, 6))
    labels = model(images).argmax(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a copy that is not used is a warning
        tables = [
            evaluate(model, images, labels, ["pgd(eps=0.1,steps=3)"], device=device).drop(columns="seconds")
            for device in ("cpu", "second")
        ]
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_a_run_that_keeps_its_images_has_the_same_table_and_verifies(checkpoint: Path) -> None:
    more = ["--attack", "fgsm(eps=0.1)", "--attack", "none", "--tier", "strict", "--surrogate", "none", "--keep-images"]
    there, here = (_run(checkpoint, device, *more) for device in ("second", "cpu"))
    pd.testing.assert_frame_equal(there, here)
    assert {cell.conditions.device for cell in Store(Path("second")).asked()} == {"second"}
    assert run(["verify", "second", "--model", str(checkpoint)]) == 0


@pytest.mark.parametrize("first", ["cpu", pytest.param("second", marks=pytest.mark.slow)])
def test_a_run_that_was_begun_on_one_device_goes_on_on_the_other(first: str, checkpoint: Path) -> None:
    more = ["--tier", "strict", "--surrogate", "none", "--attack", "fgsm(eps=0.1)"]
    whole = [*more, "--attack", "pgd(eps=0.1,steps=3)"]
    other = "second" if first == "cpu" else "cpu"
    _run(checkpoint, first, *more, "--out", "both")
    _run(checkpoint, other, *whole, "--out", "both")
    assert {cell.conditions.device for cell in Store(Path("both")).asked()} == {other}
    _run(checkpoint, "cpu", *whole, "--out", "alone")
    pd.testing.assert_frame_equal(_rows(Path("both")), _rows(Path("alone")))


@pytest.mark.slow
def test_the_whole_demo_has_the_same_table(checkpoint: Path, other_checkpoint: Path) -> None:
    """White-box in every tier, black-box, transfer, detection and diversity."""
    there, here = (_run(checkpoint, device, "--surrogate", str(other_checkpoint)) for device in ("second", "cpu"))
    pd.testing.assert_frame_equal(there, here)


@pytest.mark.slow
def test_a_comparison_concludes_the_same(checkpoint: Path, other_checkpoint: Path) -> None:
    said = []
    for device in ("second", "cpu"):
        words = ["compare", str(checkpoint), "--against", str(other_checkpoint), "--attack", "fgsm(eps=0.1)"]
        words += ["--tier", "strict", "--samples", "20", "--device", device, "--out", device, "--workers", "1"]
        assert run([*words, "--threads", "1"]) == 0
        said.append(pd.read_csv(Path(device) / "comparison.csv", keep_default_na=False))
    pd.testing.assert_frame_equal(said[0], said[1])


def test_a_batch_that_does_not_fit_is_attacked_in_halves(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = ["--attack", "fgsm(eps=0.1)", "--tier", "paper", "--surrogate", "none"]
    with limited(most_images=16):
        there = _run(checkpoint, "second", *more, samples=30)
    assert re.search(r"out of memory with 30 images: .*\b15$", capfd.readouterr().err, re.MULTILINE)
    assert there["flags"].str.contains("out-of-memory").all()
    here = _run(checkpoint, "cpu", *more, samples=30)
    pd.testing.assert_frame_equal(there.drop(columns="flags"), here.drop(columns="flags"))


@pytest.mark.slow
def test_two_devices_get_a_worker_each_and_leave_the_same_table(checkpoint: Path, here: Path) -> None:
    words = [
        "run",
        "demo",
        "--defense",
        str(checkpoint),
        "--surrogate",
        "none",
        "--samples",
        "20",
        "--batch-size",
        "10",
    ]
    words += ["--attack", "pgd(eps=0.1)", "--tier", "strict", "--threads", "1"]
    said = ""
    for device in ("cpu", "second"):
        environment = os.environ | {"PYTHONPATH": f"{SITE}{os.pathsep}{os.environ['PYTHONPATH']}"}
        environment["ADP_BENCH_TESTED_DEVICES"] = "2"
        workers = ["--workers", "1" if device == "cpu" else "2"]
        done = subprocess.run(
            [sys.executable, "-m", "benchmark", *words, "--device", device, "--out", device, *workers],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = done.stderr
    assert "2 workers with one device, second" in said
    pd.testing.assert_frame_equal(_rows(here / "second"), _rows(here / "cpu"))


@pytest.mark.slow
def test_tasks_of_ray_take_a_logical_gpu_each_and_leave_the_same_table(
    checkpoint: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray counts GPUs that it is told of; its tasks find the second device, as they would find a real one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -c constraints.txt -e '.[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", f"{SITE}{os.pathsep}{os.environ['PYTHONPATH']}")
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    words = [sys.executable, "-m", "benchmark", "run", "demo", "--defense", str(checkpoint), "--surrogate", "none"]
    words += ["--samples", "10", "--attack", "pgd(eps=0.1)", "--tier", "strict", "--threads", "1"]
    said = ""
    try:
        for out, more in (
            ("cpu", ["--device", "cpu"]),
            ("wide", ["--executor", "ray", "--ray-address", cluster.address]),
        ):
            done = subprocess.run([*words, "--out", out, *more], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            said = done.stderr
    finally:
        cluster.shutdown()
    assert "1 CPU and 1 GPU each" in said
    assert {cell.conditions.device for cell in Store(here / "wide").asked()} == {"second"}
    pd.testing.assert_frame_equal(_rows(here / "wide"), _rows(here / "cpu"))
