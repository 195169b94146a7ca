"""What only a real GPU shows: kernels, precision and random numbers of its own. ``tox -e gpu``, see docs/devices.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark import evaluate
from benchmark.cli import run
from benchmark.harness.prepared import prepared
from benchmark.harness.seeding import seeded
from defenses.members.ensemble import Ensemble

pytestmark = pytest.mark.gpu

ATTACKS = [
    *(
        f"{name}@{library}(eps=0.1)"
        for name in ("fgsm", "bim", "mim")
        for library in ("torchattacks", "art", "foolbox")
    ),
    "cw@foolbox(c=1,steps=20)",
    "ead@foolbox(c=5,steps=20)",
    "jsma@native(gamma=0.1)",
    "evasive(eps=0.1,steps=5)",
    "mora(eps=0.1,steps=10)",
    "apgd-ce(eps=0.1,steps=10)",
    "apgd-t(eps=0.1,steps=10)",
    "fab-t(eps=0.1,steps=10)",
    "square(eps=0.1,queries=50)",
]


@pytest.fixture
def few(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:40], digits[1][:40]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_leaves_about_the_accuracy_that_it_leaves_on_the_cpu(
    attack: str, ensemble: Ensemble, few: tuple[Tensor, Tensor]
) -> None:
    here, there = (evaluate(ensemble, *few, [attack], device=device)["accuracy"][0] for device in ("cpu", "cuda"))
    assert abs(here - there) <= 5, (
        "two of forty images: starts are drawn by another generator, sums are rounded otherwise"
    )


def test_an_attack_from_art_runs_on_the_second_gpu(ensemble: Ensemble, few: tuple[Tensor, Tensor]) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("PyTorch sees one CUDA device")
    attacks = ["pgd@art(eps=0.1)", "apgd-ce@art(eps=0.1,steps=10)"]
    first, second = (evaluate(ensemble, *few, attacks, device=f"cuda:{number}") for number in range(2))
    assert list(first["accuracy"]) == list(second["accuracy"])


def test_the_same_seed_gives_the_same_records_twice(ensemble: Ensemble, few: tuple[Tensor, Tensor]) -> None:
    tables = [evaluate(ensemble, *few, ["pgd(eps=0.1)"], device="cuda").drop(columns="seconds") for _ in range(2)]
    pd.testing.assert_frame_equal(*tables)


def test_the_generators_of_the_gpu_are_seeded_and_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(5)
    with seeded(0, "attack", 0):
        torch.rand(100, device="cuda")
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_products_keep_all_bits_of_float32_while_a_model_is_evaluated(ensemble: Ensemble) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.rand(512, 512, generator=generator) for _ in range(2))
    exact = one.double() @ other.double()
    with prepared(ensemble):
        found = (one.cuda() @ other.cuda()).cpu().double()
    assert ((found - exact) / exact).abs().max() < 2e-6, "TF32 would be off by 1e-3"


def test_a_run_on_the_gpu_has_a_row_for_every_attack(checkpoint: Path, here: Path) -> None:
    words = ["run", "demo", "--defense", str(checkpoint), "--surrogate", "none", "--samples", "20", "--device", "cuda"]
    assert run([*words, "--attack", "pgd(eps=0.1)", "--attack", "none", "--out", "run"]) == 0
    table = pd.read_csv(here / "run" / "table.csv")
    assert {"paper", "strict", "strong"} <= set(table["tier"]) and (table["samples"] == 20).all()
