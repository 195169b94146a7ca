"""Several processes train what one process would: draws, batch norm, gradients, the loss curve and the weights."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from defenses.catalogue import parse_defense
from defenses.checkpoints import load_checkpoint, read_provenance
from defenses.errors import RunFailed
from defenses.members.ensemble import batch_norm_mode, build_ensemble
from defenses.members.images import LabelledImages
from defenses.objectives import IGAT, total
from defenses.training.data import TrainingData
from defenses.training.distributed import bytes_from_first, drawn, from_first, rank, row_before, share, share_batch_norm
from defenses.training.loop import train
from defenses.training.recipes import Recipe
from defenses.training.request import TrainingRequest
from defenses.training.state import STATE_NAME

ROOT = Path(__file__).parents[3]


# --- the parts, in three processes with batches that do not divide ---


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three processes computes; they are started once, because that is most of the time."""
    folder = tmp_path_factory.mktemp("processes")
    sys.path.insert(0, str(ROOT))  # the processes import this module by its name
    try:
        multiprocessing.spawn(_process, (folder,), nprocs=3)
    finally:
        sys.path.remove(str(ROOT))
    return [torch.load(folder / f"{index}.pt", weights_only=True) for index in range(3)]


def _process(index: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=3)
    gradients = {count: _shared_gradients(count) for count in BATCHES}
    torch.save({**_parts(), **gradients, "modes": _modes()}, folder / f"{index}.pt")
    dist.destroy_process_group()


BATCHES = (12, 7, 2)


def _parts() -> dict[str, Any]:
    def rows(count: int) -> list[int]:
        return share(torch.arange(count)).tolist()

    generator = torch.Generator().manual_seed(0)
    mine = share(torch.arange(7))
    few = share(torch.arange(2))
    try:
        total({"fine": torch.ones(2), "bad": torch.tensor([1.0, float("nan") if rank() == 1 else 1.0])})
        message = ""
    except RunFailed as error:
        message = str(error)
    return {
        "shares": [rows(7), rows(2), rows(12)],
        "drawn": drawn(torch.rand, (len(mine), 2), generator),
        "drawn of few": drawn(torch.randn, (len(few), 3), generator),
        "allocated": IGAT(allocation="uniform", generator=torch.Generator().manual_seed(1)).allocate(
            torch.arange(5.0)[:, None].expand(5, 2 * len(mine))
        ),
        "before": [row_before(mine).tolist(), row_before(few).tolist()],
        "first": float(from_first(torch.tensor(float(rank()) + 5))),
        "file": [list(bytes_from_first(data if rank() == 0 else None) or b"") for data in (b"abc", b"", None)],
        "message": message,
    }


def test_draws_rows_and_errors_are_those_of_one_process(found: list[dict[str, Any]]) -> None:
    assert [part["shares"][0] for part in found] == [[0, 1, 2, 3], [4, 5], [6]], "each begins at an even place"
    assert [part["shares"][1] for part in found] == [[0, 1], [], []], "an empty share, but never the first"
    assert [part["shares"][2] for part in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(torch.cat([part["drawn"] for part in found]), torch.rand(7, 2, generator=generator))
    assert torch.equal(torch.cat([part["drawn of few"] for part in found]), torch.randn(2, 3, generator=generator))
    losses = torch.arange(5.0)[:, None].expand(5, 14)
    whole = IGAT(allocation="uniform", generator=torch.Generator().manual_seed(1)).allocate(losses)
    halves = [part["allocated"].chunk(2) for part in found]  # of the clean images, then of the adversarial ones
    assert torch.equal(torch.cat([clean for clean, _ in halves] + [adversarial for _, adversarial in halves]), whole)
    assert [row for part in found for row in part["before"][0]] == [6, 0, 1, 2, 3, 4, 5]
    assert [part["before"][1] for part in found] == [[1, 0], [], []]
    assert [part["first"] for part in found] == [5, 5, 5]
    assert [part["file"] for part in found] == [[[97, 98, 99], [], []]] * 3
    assert {part["message"] for part in found} == {"the loss is not finite: term bad is nan"}, "all stop, and say why"


# --- batch norm and gradients ---


def _network() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, momentum=0.3)
    nn.init.uniform_(norm.weight), nn.init.normal_(norm.bias), nn.init.normal_(norm.running_mean)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Softplus(), nn.Flatten(), nn.Linear(4 * 4, 2), nn.BatchNorm1d(2))


def _first_and_second_gradients(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss that holds the input gradient, as those of GAL and TRS do."""
    images = images.requires_grad_()
    outputs = network(images)
    (inner,) = torch.autograd.grad(outputs.tanh().square().sum(), images, create_graph=True)
    loss = total({"a": outputs.exp().sum(-1), "b": inner.square().sum((1, 2, 3))})
    names, parameters = zip(*network.named_parameters(), strict=True)
    found = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    return {**found, "outputs": outputs.detach(), "input": inner.detach(), **dict(network.named_buffers())}


def _images(count: int) -> Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 5


@pytest.mark.parametrize("count", BATCHES)
def test_batch_norm_sees_the_whole_batch_forwards_and_backwards_twice(found: list[dict[Any, Any]], count: int) -> None:
    wanted = _first_and_second_gradients(_network().double(), _images(count).double())
    for name, value in wanted.items():
        values = [part[count][name] for part in found]
        if name in ("outputs", "input"):
            torch.testing.assert_close(torch.cat(values), value, msg=name)
        elif name.rpartition(".")[2] in ("weight", "bias"):
            torch.testing.assert_close(torch.stack(values).mean(0), value, msg=name)
        else:
            assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2]), name
            torch.testing.assert_close(values[0], value, msg=name)


def _shared_gradients(count: int) -> dict[str, Tensor]:
    network = _network().double()
    share_batch_norm(network)
    return _first_and_second_gradients(network, share(_images(count).double()))


def _modes() -> list[bool]:
    ensemble = build_ensemble("mini-resnet(width=2)", 1, (3, 8, 8), 10).train()
    share_batch_norm(ensemble)
    before = {name: buffer.clone() for name, buffer in ensemble.named_buffers()}
    images = share(torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    with batch_norm_mode(ensemble, "batch"):
        by_batch = ensemble(images)
    with batch_norm_mode(ensemble, "running"):
        by_running = ensemble(images)
    untouched = all(torch.equal(before[name], buffer) for name, buffer in ensemble.named_buffers())
    plain = build_ensemble("mini-resnet(width=2)", 1, (3, 8, 8), 10).eval()
    return [untouched, torch.equal(by_running, plain(images)), torch.allclose(by_batch, by_running)]


def test_shared_batch_norm_keeps_its_modes(found: list[dict[str, Any]]) -> None:
    assert [part["modes"] for part in found] == [[True, True, False]] * 3


# --- whole runs ---


def _assert_same_training(one: Path, other: Path) -> None:
    curve, wanted = _curve(other), _curve(one)
    assert len(curve) == len(wanted)
    for row, expected in zip(curve, wanted, strict=True):
        assert row == pytest.approx(expected, rel=5e-4, abs=1e-5)
    weights = load_checkpoint(one).state_dict()
    for name, tensor in load_checkpoint(other).state_dict().items():
        # rounding alone: one ReLU at zero that turns over moves statistics by about a hundredth
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0.03, msg=name)


def _curve(out: Path) -> list[dict[str, float]]:
    with open(out / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: float(row[name]) for name in row if name not in ("seconds", "images_per_second")} for row in rows]


RECIPE = Recipe("test", epochs=2, batch_size=32, learning_rate=3e-3, schedule="one-cycle", shift=0.1, flip=True)
ALONE = replace(RECIPE, strategy="independent", validation=50, select="validation", freeze_patience=1)
RUNS = {
    "gal": RECIPE,
    "dverge(steps=3,warm_up=0)": RECIPE,
    "trs(lambda_a=2,lambda_b=0.02,steps=2)": RECIPE,
    "advt-pgd(steps=3)+adp-2-0.5": RECIPE,
    "advt-pgd(batch_norm=running,labels=predicted,steps=3)": RECIPE,
    "adp-2-0": replace(RECIPE, strategy="sequential"),
    "label-smoothing-0.6": ALONE,
}


def _run_all(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (97, 1, 12, 12), generator=generator, dtype=torch.uint8)
    images = LabelledImages(pixels, torch.randint(10, (97,), generator=generator))
    data = TrainingData("noise", 10, images, images.subset(slice(40)), images.subset(slice(50)), "checksum")
    for number, (defense, recipe) in enumerate(RUNS.items()):
        request = TrainingRequest(parse_defense(defense), "mini-resnet(width=2)", 2, recipe)
        train(request, data, folder / str(number))


def _run_all_in_one_of_two(index: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=2)
    _run_all(folder / "two")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_every_kind_of_defense_and_strategy_as_one_does(tmp_path: Path) -> None:
    _run_all(tmp_path / "one")
    multiprocessing.spawn(_run_all_in_one_of_two, (tmp_path,), nprocs=2)
    for number in range(len(RUNS)):
        _assert_same_training(tmp_path / "one" / str(number), tmp_path / "two" / str(number))


# --- as a user starts them ---


def _command(out: Path, defense: str, processes: int, epochs: int = 3) -> list[str]:
    """Six batches of 64 and one of 19, which does not divide."""
    words = ["train", defense, "--dataset", "digits", "--network", "mini-resnet(width=4)", "--members", "2"]
    words += ["--epochs", str(epochs), "--train-images", "403", "--batch-size", "64"]
    words += ["--device", "cpu", "--out", str(out)]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    return [sys.executable, "-m", *(launcher if processes > 1 else []), "benchmark.cli", *words]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _train(out: Path, defense: str, processes: int, epochs: int = 3) -> Path:
    command = _command(out, defense, processes, epochs)
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("test accuracy") == 1, "one process speaks"
    return out


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["baseline", "adp-2-0.5", "advt-fgsm"])
def test_two_processes_have_the_loss_curve_and_the_weights_of_one(tmp_path: Path, defense: str) -> None:
    one, two = _train(tmp_path / "one", defense, 1), _train(tmp_path / "two", defense, 2)
    assert sorted(path.name for path in two.iterdir()) == ["ensemble.safetensors", "history.csv"]
    _assert_same_training(one, two)
    assert _curve(one)[-1]["ece"] < _curve(one)[0]["ece"] - 0.1, "the curve is one of learning"


@pytest.mark.slow
def test_two_processes_that_were_stopped_go_on_and_end_with_the_same_weights(tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    started = subprocess.Popen(_command(out, "adp-2-0.5", 2, epochs=6), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (out / STATE_NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.terminate()  # torchrun takes its processes with it
    started.wait(timeout=100)
    done = len(_curve(out))
    assert 1 <= done < 6 and not (out / "ensemble.safetensors").exists()
    stopped, never = _train(out, "adp-2-0.5", 2, 6), _train(tmp_path / "never", "adp-2-0.5", 2, 6)
    assert _curve(stopped) == _curve(never)
    hashes = [read_provenance(folder / "ensemble.safetensors").weights_sha256 for folder in (stopped, never)]
    assert hashes[0] == hashes[1]
