"""On ensembles published by others: the suite against the reference, and minimum-norm curves against PGD.

The checkpoints are DVERGE's; the folder that holds ``dverge/`` is named by ADP_TEST_CHECKPOINTS, or is
``../shared/checkpoints`` beside the repository. CIFAR-10 comes from the data cache.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import foolbox
import numpy as np
import pandas as pd
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack
from torch import Tensor

from benchmark import datasets
from benchmark.api import evaluate
from benchmark.attacks import foolbox_backend, parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Norm
from benchmark.findings.radii import radii, survivors
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import predict, prepared
from benchmark.harness.seeding import seeded
from benchmark.harness.verification import norms
from defenses.checkpoints import load_checkpoint
from defenses.members.ensemble import Ensemble

pytestmark = pytest.mark.slow

FILE = "dverge/dverge_seed_0_3_ResNet20_eps_0.07_epoch_200.pth"
IMAGES = 30
AGREE = 2
"""Images by which two attacks that both search for the boundary may differ at one radius."""


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    beside = Path(__file__).parents[4] / "shared" / "checkpoints"
    path = Path(os.environ.get("ADP_TEST_CHECKPOINTS", beside)) / FILE
    if not path.is_file():
        pytest.skip(f"{FILE} is not in the folder that ADP_TEST_CHECKPOINTS names")
    return load_checkpoint(str(path), shape=(3, 32, 32), classes=10)


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    if datasets.where("cifar10") is None:
        pytest.skip("CIFAR-10 is not in the data cache; adp-bench data fetch cifar10")
    test = datasets.load("cifar10", progress=False).test
    return test.images()[:IMAGES], test.labels[:IMAGES]


def _records(ensemble: Ensemble, batch: tuple[Tensor, Tensor], spec: str, **others: Any) -> pd.DataFrame:
    records: dict[str, pd.DataFrame] = {}
    evaluate(ensemble, *batch, [spec], records=records, **others)
    (found,) = records.values()
    return found


@pytest.mark.parametrize(("norm", "name", "eps", "count"), [("l2", "L2", 0.5, IMAGES), ("l1", "L1", 6.0, 12)])
def test_the_worst_case_is_at_most_reference_autoattack_image_by_image(
    norm: Norm, name: str, eps: float, count: int, ensemble: Ensemble, batch: tuple[Tensor, Tensor]
) -> None:
    images, labels = batch[0][:count], batch[1][:count]
    worst = _records(ensemble, (images, labels), f"pgd(eps={eps},norm={norm})", tier="strong")
    with prepared(ensemble), seeded(0, "reference", 0):
        reference = AutoAttack(AttackedModel(ensemble), norm=name, eps=eps, seed=0)
        found, _ = reference.run_standard_evaluation(images, labels, batch_size=count)
        left = predict(ensemble, found, count) == labels.numpy()
    print(f"{name}, radius {eps}: clean {(worst['clean_prediction'] == worst['label']).sum()} of {count},", end=" ")
    print(f"reference AutoAttack {left.sum()}, worst case {worst['correct'].sum()}")
    assert (norms(images, found)[norm] < eps * (1 + 2e-5)).all()
    assert not (worst["correct"].to_numpy() & ~left).any(), "an image that only the reference fools"
    assert not worst["out_of_ball"].any()


@pytest.mark.parametrize(("norm", "points", "far"), [("l2", (0.1, 0.25), 0.5), ("linf", (0.005, 0.01), 0.02)])
def test_the_curve_of_fmn_agrees_with_attacks_at_fixed_radii(
    norm: Norm, points: tuple[float, ...], far: float, ensemble: Ensemble, batch: tuple[Tensor, Tensor]
) -> None:
    """With PGD where it searches for the boundary; far behind it PGD is the weaker attack, so with MORA there.

    PGD drives the members to different wrong classes there, and the label keeps the largest mean (docs/attacks.md).
    """
    found = radii(_records(ensemble, batch, f"fmn(norm={norm},steps=200)"), norm)
    left = {}
    for radius in (*points, far):
        spec = f"pgd@native(eps={radius},norm={norm},steps=50,step_size={radius / 5},restarts=3)"
        left[radius] = int(_records(ensemble, batch, spec)["correct"].sum())
        print(f"{norm}, radius {radius}: FMN leaves {survivors(found, radius)}, PGD {left[radius]} of {IMAGES}")
    mora = int(_records(ensemble, batch, f"mora(eps={far},norm={norm},steps=50,targets=0)")["correct"].sum())
    print(f"{norm}, radius {far}: MORA leaves {mora} of {IMAGES}")
    assert all(abs(survivors(found, radius) - left[radius]) <= AGREE for radius in points)
    assert survivors(found, far) <= left[far] + AGREE and abs(survivors(found, far) - mora) <= AGREE


@pytest.mark.parametrize(
    ("spec", "runner"),
    [
        ("fmn(norm=linf,steps=30)", foolbox.attacks.LInfFMNAttack(steps=30)),
        ("ddn(steps=30)", foolbox.attacks.DDNAttack(steps=30)),
    ],
)
def test_minimum_norm_attacks_are_those_of_the_bare_library_image_by_image(
    spec: str, runner: Any, ensemble: Ensemble, batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = batch
    monkeypatch.setattr(foolbox_backend, "MARGIN", 0.0)
    with prepared(ensemble):
        ours = craft(ensemble, parse_attack(spec), images, labels.numpy(), 0, 0).images
        theirs = runner.run(_bare(ensemble), images, foolbox.criteria.Misclassification(labels))
    assert (ours - theirs).abs().max() < 1e-6


@pytest.mark.parametrize(("norm", "kind"), [("l2", foolbox.attacks.L2FMNAttack), ("l1", foolbox.attacks.L1FMNAttack)])
def test_with_its_projection_mended_fmn_finds_smaller_perturbations_than_bare(
    norm: Norm, kind: Any, ensemble: Ensemble, batch: tuple[Tensor, Tensor]
) -> None:
    images, labels = batch
    with prepared(ensemble):
        crafted = craft(ensemble, parse_attack(f"fmn(norm={norm})"), images, labels.numpy(), 0, 0)
        found = kind().run(_bare(ensemble), images, foolbox.criteria.Misclassification(labels))
        left = {
            "ours": predict(ensemble, crafted.images, IMAGES) == labels.numpy(),
            "bare": predict(ensemble, found, IMAGES) == labels.numpy(),
        }
    sizes = {"ours": crafted.found[norm], "bare": norms(images, found)[norm].numpy()}
    median = {name: float(np.median(np.where(left[name], np.inf, sizes[name]))) for name in left}
    print(f"{norm}: median {median}, failed on { {name: int(values.sum()) for name, values in left.items()} }")
    assert left["ours"].sum() <= left["bare"].sum() and median["ours"] <= median["bare"]


def _bare(ensemble: Ensemble) -> Any:
    return foolbox.PyTorchModel(AttackedModel(ensemble), bounds=(0, 1), device="cpu")


@pytest.mark.parametrize(("norm", "name", "eps"), [("l2", "L2", 0.5), ("l1", "L1", 6.0)])
def test_apgd_is_the_bare_library_image_by_image(
    norm: Norm, name: str, eps: float, ensemble: Ensemble, batch: tuple[Tensor, Tensor]
) -> None:
    images, labels = batch
    named = parse_attack(f"apgd-ce(eps={eps},norm={norm},steps=20)")
    with prepared(ensemble):
        ours = craft(ensemble, named, images, labels.numpy(), 0, 0)
        with seeded(0, named.text, 0):
            seed = torch.initial_seed() % 2**31
            runner = APGDAttack(
                AttackedModel(ensemble), n_iter=20, norm=name, eps=eps, seed=seed, use_largereps=norm == "l1"
            )
            theirs = runner.perturb(images.clone(), labels)
    assert (ours.images - theirs).abs().max() < 1e-6 and not ours.found["out_of_ball"].any()


def test_native_l1_pgd_is_about_as_strong_as_the_reference(ensemble: Ensemble, batch: tuple[Tensor, Tensor]) -> None:
    eps = 6.0
    left = {
        spec: int(_records(ensemble, batch, spec)["correct"].sum())
        for spec in (
            f"apgd-ce(eps={eps},norm=l1,steps=50)",
            f"pgd(eps={eps},norm=l1,steps=50,step_size={eps / 5},restarts=2)",
            f"mora(eps={eps},norm=l1,steps=50,targets=0)",
            f"pgd@foolbox(eps={eps},norm=l1,steps=50,step_size={eps / 5})",
        )
    }
    print(left)
    reference, native, mora, dense = left.values()
    assert native <= reference + AGREE and mora <= reference + AGREE
    assert dense > reference + AGREE, "a dense step is not the steepest one in L1"
