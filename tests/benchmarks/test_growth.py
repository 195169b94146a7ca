"""Growth: the cost of an input gradient with images, members and classes, and of a run with workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.harness.acceleration import accelerated
from benchmark.harness.prepared import prepared
from defenses.members.ensemble import Ensemble, build_ensemble


@torch.no_grad()
def _used(ensemble: Ensemble, images: Tensor) -> Ensemble:
    """With statistics of these images, so that predictions are no ties, which a copy may break otherwise."""
    for module in ensemble.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    ensemble(images)
    return ensemble.eval()


def _gradients(size: int = 20, members: int = 3, classes: int = 10) -> Callable[[], object]:
    images = torch.rand(size, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ensemble = _used(build_ensemble("resnet20", members, (3, 32, 32), classes), images)
    labels = torch.zeros(len(images), dtype=torch.int64)
    with prepared(ensemble):
        fast = accelerated(ensemble, images)
    assert fast is not ensemble

    def run() -> object:
        point = images.clone().requires_grad_()
        return torch.autograd.grad(nn.functional.cross_entropy(fast(point), labels), point)

    return run


def test_images(race: Any, note: Any) -> None:
    sizes = (10, 100, 400)
    medians = race("images", {str(n): _gradients(n) for n in sizes}, rounds=5)
    for size in sizes[::2]:
        rate = (size / medians[str(size)]) / (100 / medians["100"])
        note("images", f"rate at batch {size} over batch 100", rate, "times")


def test_members(race: Any, note: Any) -> None:
    counts = (3, 5, 8, 20)
    medians = race("members", {str(k): _gradients(members=k) for k in counts}, rounds=5)
    for count in counts[1:]:
        rate = (count / medians[str(count)]) / (3 / medians["3"])
        note("members", f"rate of each of {count} members over each of 3", rate, "times")


def test_classes(race: Any, note: Any) -> None:
    counts = (10, 100, 1000)
    contestants = {str(n): _gradients(classes=n) for n in counts}
    medians = race("classes", contestants, rounds=5)
    for count in counts[1:]:
        note("classes", f"rate with {count} classes over 10", medians["10"] / medians[str(count)], "times")


def test_workers(benchmark: Any, note: Any, tmp_path: Path) -> None:
    """The same cells with one worker and with two: seconds by the clock, which others blur, and CPU seconds."""
    asked = EnsembleRequest("baseline", "digits", "mini-resnet", 3)
    train_ensemble(asked, {"epochs": 1, "train_images": 200}, out=tmp_path / "small")
    words = ["run", "demo", "--defense", str(tmp_path / "small"), "--surrogate", "none", "--threads", "1"]
    words += ["--attack", "pgd(eps=0.1,steps=1000)", "--attack", "pgd(eps=0.2,steps=1000)", "--tier", "strict"]
    seconds: dict[str, tuple[float, float]] = {}

    def run(workers: str) -> None:
        before, began = os.times(), time.perf_counter()
        command = [sys.executable, "-m", "benchmark", *words, "--samples", "100", "--batch-size", "25"]
        subprocess.run([*command, "--workers", workers, "--out", workers], check=True, cwd=tmp_path, stderr=-3)
        after = os.times()
        used = (after.children_user + after.children_system) - (before.children_user + before.children_system)
        seconds[workers] = (time.perf_counter() - began, used)

    run("1")
    benchmark.pedantic(run, args=("2",), rounds=1)
    case = "a run with two workers"
    note(case, "speed over one worker by the clock, which needs two idle cores", seconds["1"][0] / seconds["2"][0], "")
    note(case, "CPU time of one worker over two", seconds["1"][1] / seconds["2"][1], "of CPU")
