"""The two tiers attack by their own rules, and what they record is what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound, Norm
from benchmark.attacks.definitions import Attack
from benchmark.evaluations.whitebox import LOOKED_AT, SHOWN, WhiteBox
from benchmark.harness.crafting import wrong_labels
from benchmark.harness.prepared import outputs, prepared
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from benchmark.harness.tiers import Tier
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]
FORTY = slice(0, 40)


def _run(
    model: nn.Module,
    spec: str | NamedAttack,
    tier: Tier,
    images: Tensor,
    labels: Tensor,
    first: int = 0,
    seed: int = 0,
    fast: nn.Module | None = None,
) -> pd.DataFrame:
    """Records of one batch; blank images stand before it in the test set, as many as ``first`` says."""
    named = parse_attack(spec) if isinstance(spec, str) else spec
    images = torch.cat([torch.zeros(first, *images.shape[1:]), images])
    labels = torch.cat([torch.zeros(first, dtype=torch.int64), labels])
    with prepared(model):
        clean = outputs(model, images, 100)
        subject = Subject(
            ensemble=cast(Ensemble, model),
            fast=fast or model,
            images=images,
            labels=labels.numpy(),
            logits=clean[None],
            outputs=clean,
            surrogate=None,
        )
        shared = tier == "strict" and named.attack.same_in_tiers
        return WhiteBox(named, tier, shared).batch(subject, Span(first, len(labels)), seed)


class _Seen(nn.Module):
    """Writes down every batch the attack looks at."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.batches: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        if images.requires_grad:
            self.batches.append(images.detach().clone())
        return self.model(images)


def _two_classes(slope: float) -> nn.Module:
    """One pixel decides: class 1 above 0.5, class 0 below."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-slope], [slope]]))
        layer.bias.copy_(torch.tensor([slope / 2, -slope / 2]))
    return nn.Sequential(nn.Flatten(), layer)


PIXELS = torch.tensor([0.45, 0.55, 0.1, 0.9]).reshape(4, 1, 1, 1)


def test_tier_paper_starts_from_the_prediction_so_a_wrong_image_can_become_right() -> None:
    labels = torch.tensor([1, 1, 1, 1])  # images 0 and 2 are wrong to begin with
    found = _run(_two_classes(4.0), "bim(eps=0.1)", "paper", PIXELS, labels)
    assert found["clean_prediction"].tolist() == [0, 1, 0, 1]
    assert found["adversarial_prediction"].tolist() == [1, 0, 0, 1]
    assert found["correct"].tolist() == [True, False, False, True]
    assert found["attacked"].all()


def test_tier_strict_leaves_wrong_images_alone_and_counts_them_as_wrong() -> None:
    labels = torch.tensor([1, 1, 1, 1])
    model = _Seen(_two_classes(4.0))
    found = _run(model, "bim(eps=0.1)", "strict", PIXELS, labels)
    assert found["correct"].tolist() == [False, False, False, True]
    assert found["attacked"].tolist() == [False, True, False, True]
    assert all(len(batch) == 2 for batch in model.batches), "the wrong ones were not even looked at"
    assert found["forwards"].sum() == 20 and found["backwards"].sum() == 20
    assert found["linf"].tolist() == pytest.approx([0, 0.1, 0, 0.1], abs=1e-6)


def test_nothing_right_costs_nothing() -> None:
    model = _Seen(_two_classes(4.0))
    found = _run(model, "pgd(eps=0.1)", "strict", PIXELS[[0, 2]], torch.tensor([1, 1]))
    assert not found["correct"].any() and not found["attacked"].any() and model.batches == []
    assert found[["forwards", "backwards", "seconds", "l2"]].to_numpy().sum() == 0
    assert not found["unmoved"].any(), "only images that should have moved can be unmoved"


@pytest.mark.parametrize(
    ("spec", "tier", "probabilities", "predicted"),
    [
        *((f"{name}@torchattacks(eps=0.1)", "paper", True, True) for name in ("fgsm", "bim", "pgd", "mim")),
        *((f"{name}@torchattacks(c=1)", "paper", False, True) for name in ("cw", "ead")),
        *((f"{name}@torchattacks(eps=0.1)", "strict", False, False) for name in ("fgsm", "bim", "pgd", "mim")),
        *((f"{name}@torchattacks(c=1)", "strict", False, True) for name in ("cw", "ead")),
        ("jsma@torchattacks(gamma=0.5)", "paper", False, False),
        ("jsma@torchattacks(gamma=0.5)", "strict", False, False),
    ],
)
def test_an_attack_gets_the_outputs_and_labels_of_its_tier(
    spec: str, tier: Tier, probabilities: bool, predicted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmark.attacks import torchattacks_backend

    seen: list[Tensor] = []

    def spy(model: nn.Module, images: Tensor, given: Tensor, attack: object) -> Tensor:
        seen.extend([model(images), given])
        return images

    monkeypatch.setattr(torchattacks_backend, spec.partition("@")[0], spy)
    labels = torch.tensor([1, 1, 1, 1])
    found = _run(_two_classes(4.0), spec, tier, PIXELS, labels)
    assert found["attacked"].tolist() == [tier == "paper", True, tier == "paper", True]
    output, given = seen
    if probabilities:
        assert torch.allclose(output.sum(-1), torch.ones(len(output)))
    else:
        assert (output.amin(-1) == 0).all() and not torch.allclose(output.sum(-1), torch.ones(len(output)))
    whole = [0, 1, 0, 1] if predicted else [1, 1, 1, 1]
    shared = parse_attack(spec).attack.same_in_tiers  # the wrong ones stay in the batch, and do not count
    assert given.tolist() == (whole if tier == "paper" or shared else [1, 1])


@pytest.mark.parametrize("spec", ["cw(c=5,steps=40)", "ead(c=5,steps=40)", "jsma(gamma=0.1,eps=0.2)"])
def test_an_attack_that_is_the_same_in_both_tiers_makes_the_same_images_of_what_was_right(
    spec: str, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = digits[0][FORTY], digits[1][FORTY].clone()
    labels[:5] = (labels[:5] + 1) % 10  # five images are wrong to begin with, at least
    paper, strict = (_run(ensemble, spec, tier, images, labels) for tier in ("paper", "strict"))
    right = paper["clean_prediction"] == paper["label"]
    same = [name for name in paper if name != "seconds" and not name.startswith(("image_", "shape", "members"))]
    pd.testing.assert_frame_equal(paper.loc[right, same], strict.loc[right, same])
    assert not strict.loc[~right, ["attacked", "correct", "unmoved", "l2"]].to_numpy().any() and (~right).sum() >= 5
    assert 0 < strict["correct"].sum() < right.sum()


def test_jsma_only_ever_lowers() -> None:
    labels = torch.tensor([1, 1, 1, 1])
    found = _run(_two_classes(4.0), "jsma(gamma=1,eps=0.1)", "paper", PIXELS, labels)
    assert found["correct"].tolist() == [False, False, False, True], "lowered from 0.55, never raised from 0.45"


def test_records_say_what_happened_to_each_image(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][FORTY], digits[1][FORTY]
    found = _run(ensemble, "pgd(eps=0.15)", "strict", images, labels, first=100)
    assert found["index"].tolist() == list(range(100, 140))
    assert found["label"].tolist() == labels.tolist()
    right = found["clean_prediction"] == found["label"]
    assert found["attacked"].equals(right.rename("attacked"))
    assert (found["correct"] == ((found["adversarial_prediction"] == found["label"]) & right)).all()
    assert found.loc[right, "linf"].between(0.1, 0.150001).all()
    assert (found["l0"] <= 64).all() and (found["l2"] <= found["l1"]).all()
    assert 0 < found["correct"].mean() < right.mean()
    assert (found["target"] == -1).all() and (found["batch_size"] == 40).all()


def test_the_fast_copy_is_attacked_but_the_model_itself_judges(ensemble: Ensemble, digits: Digits) -> None:
    class Liar(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.zeros(len(images), 10) + 0 * images.sum()

    images, labels = digits[0][FORTY], digits[1][FORTY]
    found = _run(ensemble, "fgsm(eps=0.1)", "strict", images, labels, fast=Liar())
    with prepared(ensemble):
        right = outputs(ensemble, images, 40).argmax(-1) == labels
    assert found["zero_gradient"].sum() == right.sum()
    assert (found["adversarial_prediction"] == found["clean_prediction"]).all()


def test_a_planted_violation_is_mended_and_counted(
    ensemble: Ensemble, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmark.attacks import torchattacks_backend

    images, labels = digits[0][FORTY], digits[1][FORTY]

    def broken(model: nn.Module, images: Tensor, labels: Tensor, attack: object) -> Tensor:
        found = images.clone()
        found[0] = float("nan")
        found[1] += 2
        found[2] = (found[2] + 0.5) % 1
        return found

    monkeypatch.setattr(torchattacks_backend, "fgsm", broken)
    found = _run(ensemble, "fgsm(eps=0.01)", "paper", images, labels)
    assert found.loc[found["not_finite"], "index"].tolist() == [0]
    assert found.loc[found["out_of_box"], "index"].tolist() == [1]
    assert found.loc[found["out_of_ball"], "index"].tolist() == [1, 2]
    assert found["unmoved"].sum() == 38
    assert found["linf"].max() <= 0.01 + 1e-6
    assert found.loc[0, "adversarial_prediction"] == found.loc[0, "clean_prediction"]


@dataclass(frozen=True)
class _Within(Attack):
    """An attack with a ball of any norm, as a package may bring one."""

    backends: ClassVar[dict[str, str]] = {"torchattacks": "benchmark.attacks.torchattacks_backend:fgsm"}

    limit: Bound

    @property
    def bound(self) -> Bound:
        return self.limit


@pytest.mark.parametrize(("norm", "radius"), [("l2", 0.5), ("l1", 2.0), ("l0", 4.0)])
def test_an_attack_that_leaves_a_ball_of_another_norm_is_mended_and_counted(
    norm: Norm, radius: float, ensemble: Ensemble, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmark.attacks import torchattacks_backend

    images, labels = digits[0][FORTY], digits[1][FORTY]

    def far(model: nn.Module, images: Tensor, labels: Tensor, attack: object) -> Tensor:
        found = images.clone()
        found[:, 0, 0, 0] = (found[:, 0, 0, 0] + 0.4) % 1  # inside every one of these balls
        found[::2] = 1 - found[::2]
        return found

    monkeypatch.setattr(torchattacks_backend, "fgsm", far)
    found = _run(ensemble, NamedAttack("within", "torchattacks", _Within(Bound(norm, radius))), "paper", images, labels)
    assert found.loc[found["out_of_ball"], "index"].tolist() == list(range(0, 40, 2))
    assert (found[norm] <= radius + 1e-4).all() and found["attacked"].all()
    assert found[norm][::2].tolist() == pytest.approx([radius] * 20, rel=1e-4), "projected to the sphere"
    assert found["linf"][1::2].between(0.3, 0.7).all() and (found["l0"][1::2] == 1).all(), "left as they were"
    assert not (found["out_of_box"] | found["unmoved"] | found["not_finite"]).any()


# --- a look at the images ---


@pytest.mark.parametrize("tier", ["paper", "strict"])
def test_the_first_attacked_images_of_a_cell_are_kept_for_a_look(
    tier: Tier, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = digits[0][FORTY], digits[1][FORTY].clone()
    labels[1] = (labels[1] + 1) % 10  # wrong to begin with
    found = _run(ensemble, "bim(eps=0.1)", tier, images, labels)
    kept = found[found["image_adversarial"].notna()]
    wanted = found[found["attacked"]]["index"].head(SHOWN).tolist()
    assert kept["index"].tolist() == wanted and max(wanted) < LOOKED_AT and (1 in wanted) == (tier == "paper")
    shapes = kept["shape"].tolist()
    pixels = [np.frombuffer(image, np.float16).reshape(shapes[0]) for image in kept["image_adversarial"]]
    assert shapes == [[1, 8, 8]] * SHOWN
    far = np.abs(np.stack(pixels).astype(float) - images[wanted].numpy()).reshape(SHOWN, -1).max(1)
    assert far.tolist() == pytest.approx(kept["linf"].tolist(), abs=1e-3)
    with prepared(ensemble), torch.no_grad():
        votes = ensemble.member_logits(torch.from_numpy(np.stack(pixels).astype(np.float32))).argmax(-1)
    assert kept["members"].tolist() == votes.T.tolist()
    assert "image_adversarial" not in _run(ensemble, "bim(eps=0.1)", tier, images, labels, first=40)


# --- seeds ---


def test_the_same_seed_gives_the_same_records_and_another_another(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][FORTY], digits[1][FORTY]

    def records(seed: int, first: int = 0, spec: str = "pgd(eps=0.1)") -> pd.DataFrame:
        return _run(ensemble, spec, "strict", images, labels, seed=seed, first=first).drop(columns=["seconds", "index"])

    pd.testing.assert_frame_equal(records(3), records(3))
    pd.testing.assert_frame_equal(records(3, spec="pgd@art(eps=0.1)"), records(3, spec="pgd@art(eps=0.1)"))
    for other in (records(4), records(3, first=40)):
        assert (records(3)["l2"] != other["l2"]).any()


def test_a_targeted_attack_records_its_targets(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][FORTY], digits[1][FORTY]
    found = _run(ensemble, "bim(eps=0.3,targeted=true)", "strict", images, labels, first=10)
    assert found["target"].tolist() == wrong_labels(labels.numpy(), 10, 10, 0).tolist()
    hit = found["adversarial_prediction"] == found["target"]
    assert hit[found["attacked"]].mean() > 0.5
