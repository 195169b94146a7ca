"""Every attack of every library does what its spec says, and nothing else."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark import evaluate
from benchmark.attacks import ATTACKS, library_version, parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.harness.crafting import wrong_labels
from benchmark.harness.prepared import prepared
from benchmark.harness.seeding import seeded
from benchmark.harness.verification import verify
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]

SETTINGS = {
    "fgsm": "eps=0.1",
    "bim": "eps=0.1",
    "pgd": "eps=0.1",
    "mim": "eps=0.1",
    "jsma": "gamma=0.3,eps=0.2",
    "cw": "c=10,steps=20,lr=0.05",
    "ead": "c=10,steps=20,lr=0.05",
}
EVERY = [
    f"{name}@{library}({settings})" for name, settings in SETTINGS.items() for library in ATTACKS.get(name).backends
]
LINF = [text for text in EVERY if "eps=0.1)" in text]


def _attack(model: nn.Module, text: str, images: Tensor, labels: Tensor, seed: int = 0) -> Tensor:
    named = parse_attack(text)
    with prepared(model), seeded(seed, "test", 0):
        return named.backend()(AttackedModel(model), images.clone(), labels, named.attack)


def _right(model: Ensemble, digits: Digits, count: int = 8) -> Digits:
    """The first images the model gets right."""
    images, labels = digits
    with torch.no_grad():
        rows = (model(images[:100]).argmax(-1) == labels[:100]).nonzero().flatten()[:count]
    assert len(rows) == count
    return images[rows], labels[rows]


def _loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return functional.cross_entropy(model(images), labels, reduction="none")


def test_every_attack_of_the_paper_is_in_the_table() -> None:
    assert set(SETTINGS) == {"fgsm", "bim", "pgd", "mim", "jsma", "cw", "ead"} <= set(ATTACKS.names())
    assert len(EVERY) == 3 * len(SETTINGS) + 1, "three libraries each, and PGD natively"


@pytest.mark.parametrize("text", EVERY)
def test_an_attack_stays_in_box_and_ball_and_changes_the_image_for_the_worse(
    text: str, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = _right(ensemble, digits)
    found = _attack(ensemble, text, images, labels)
    checked = verify(images, found, parse_attack(text).bound)
    assert not checked.not_finite.any() and not checked.out_of_ball.any()
    # torchattacks' EAD is known to leave the box by far; the harness clips and counts it
    assert text.startswith("ead@torchattacks") or not checked.out_of_box.any()
    assert checked.moved.any()
    if not text.startswith(("jsma@art", "jsma@torchattacks")):  # these aim at another class, whatever the loss
        moved = checked.moved
        assert _loss(ensemble, checked.images, labels)[moved].mean() > _loss(ensemble, images, labels)[moved].mean()


@pytest.mark.parametrize("text", EVERY)
def test_an_attack_leaves_model_images_and_generators_as_they_were(
    text: str, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = _right(ensemble, digits, 4)
    before_images = images.clone()
    ensemble.train()
    ensemble.members[1].eval()  # a frozen member: flags differ inside one model
    first, *others = ensemble.parameters()
    first.requires_grad_(False)
    for parameter in others:
        parameter.grad = torch.ones_like(parameter)

    def state() -> tuple[object, ...]:
        numpy_state = np.random.get_state()
        return (
            random.getstate(),
            numpy_state[1].tolist(),
            numpy_state[2:],
            torch.get_rng_state().tolist(),
            [module.training for module in ensemble.modules()],
            [parameter.requires_grad for parameter in ensemble.parameters()],
            [parameter.grad is None or bool((parameter.grad == 1).all()) for parameter in ensemble.parameters()],
            [value.clone().tolist() for value in ensemble.state_dict().values()],
            torch.is_grad_enabled(),
        )

    before = state()
    evaluate(ensemble, images, labels, [text], batch_size=4)
    assert state() == before
    assert torch.equal(images, before_images)


@pytest.mark.parametrize("text", [text for text in EVERY if not text.startswith(("jsma", "ead@torchattacks"))])
def test_a_targeted_attack_moves_towards_the_target(text: str, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    targets = torch.from_numpy(wrong_labels(labels.numpy(), 10, 0, 0))
    found = _attack(ensemble, text.replace(")", ",targeted=true)"), images, targets)
    moved = (found != images).flatten(1).any(1)
    assert moved.any()
    assert _loss(ensemble, found, targets)[moved].mean() < _loss(ensemble, images, targets)[moved].mean()


@pytest.mark.parametrize("library", ["art", "foolbox"])
@pytest.mark.parametrize("name", ["bim", "fgsm"])
@pytest.mark.parametrize("targeted", ["", ",targeted=true"])
def test_deterministic_attacks_agree_between_libraries(
    name: str, targeted: str, library: str, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = _right(ensemble, digits)
    one, other = (
        _attack(ensemble, f"{name}@{who}(eps=0.1{targeted})", images, labels) for who in ("torchattacks", library)
    )
    assert torch.allclose(one, other, atol=1e-6) and not torch.equal(one, images)


def _sign_ascent(model: nn.Module, images: Tensor, labels: Tensor, eps: float, steps: int, start: Tensor) -> Tensor:
    found = start
    for _ in range(steps):
        found = found.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(model(found), labels), found)
        found = (found + eps / steps * gradient.sign()).clamp(images - eps, images + eps).clamp(0, 1)
    return found.detach()


@pytest.mark.parametrize(
    ("spec", "steps", "random_start"),
    [("fgsm(eps=0.1)", 1, False), ("bim(eps=0.1)", 10, False), ("pgd(eps=0.1)", 10, True)],
)
def test_linf_attacks_equal_a_few_lines_of_sign_ascent(
    spec: str, steps: int, random_start: bool, ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = _right(ensemble, digits)
    start = images.clone()
    if random_start:
        with seeded(0, "test", 0):
            start = (images + torch.empty_like(images).uniform_(-0.1, 0.1)).clamp(0, 1)
    expected = _sign_ascent(ensemble, images, labels, 0.1, steps, start)
    assert torch.allclose(_attack(ensemble, spec, images, labels), expected, atol=1e-6)


def test_mim_equals_a_few_lines_of_momentum_ascent(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    found, momentum = images, torch.zeros_like(images)
    for _ in range(10):
        found = found.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(ensemble(found), labels), found)
        momentum = momentum + gradient / gradient.abs().mean((1, 2, 3), keepdim=True)
        found = (found + 0.01 * momentum.sign()).clamp(images - 0.1, images + 0.1).clamp(0, 1)
    assert torch.allclose(_attack(ensemble, "mim(eps=0.1)", images, labels), found.detach(), atol=1e-6)


@pytest.mark.parametrize("library", ["torchattacks", "art", "foolbox"])
def test_cw_moves_images_of_a_softmax_averaged_ensemble(library: str, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    found = _attack(ensemble, f"cw@{library}(c=10,steps=50,lr=0.05)", images, labels)
    with torch.no_grad():
        fooled = ensemble(found.clamp(0, 1)).argmax(-1) != labels
    assert fooled.sum() >= 3


def test_without_the_shift_cw_would_be_the_known_no_op(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    named = parse_attack("cw@torchattacks(c=10,steps=50,lr=0.05)")
    with prepared(ensemble):
        found = named.backend()(ensemble, images.clone(), labels, named.attack)
    assert torch.allclose(found, images, atol=1e-5)


def test_ead_of_the_default_library_stays_in_the_box(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    found = _attack(ensemble, "ead(c=50,steps=50,lr=0.1)", images, labels)
    assert parse_attack("ead(c=1)").library == "foolbox"
    assert found.min() >= 0 and found.max() <= 1
    assert (found != images).flatten(1).any(1).sum() >= 3


@pytest.mark.parametrize("spec", ["cw@foolbox(c=0.000001,steps=3)", "ead@foolbox(c=0.000001,steps=3)"])
def test_an_attack_that_finds_nothing_gives_the_clean_image_back(spec: str, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits)
    assert torch.equal(_attack(ensemble, spec, images, labels), images)


def _random_linear(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 10)).to(dtype)


@pytest.mark.parametrize(
    ("gamma", "eps", "shape", "most"),
    [
        (0.05, 0.1, (3, 32, 32), 153),
        (0.1, 0.1, (3, 32, 32), 307),
        (0.3, 0.2, (1, 28, 28), 235),
        (0.6, 0.2, (1, 28, 28), 470),
    ],
)
def test_jsma_lowers_at_most_gamma_of_the_scalars_by_multiples_of_eps(
    gamma: float, eps: float, shape: tuple[int, int, int], most: int
) -> None:
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    spec = f"jsma(gamma={gamma},eps={eps})"
    attacked = AttackedModel(_random_linear(shape))
    named = parse_attack(spec)
    found = named.backend()(attacked, images.clone(), torch.tensor([3, 4]), named.attack)
    assert attacked.backwards < 2 * most, "an image whose best scalar is at 0 is finished"
    change = (images - found).flatten(1).double()
    assert (change >= 0).all() and found.min() >= 0
    assert 0 < (change > 0).sum(1).max() <= most
    steps = change / eps
    whole = (steps - steps.round()).abs() < 1e-5
    assert (whole | (found.flatten(1) == 0)).all()
    assert (change / eps).sum() <= 2 * most + 1e-3


def test_jsma_equals_the_same_attack_on_one_image_after_the_other_in_float64(
    ensemble: Ensemble, digits: Digits
) -> None:
    images, labels = _right(ensemble, digits, 4)
    images = images.double()
    ensemble.double()
    found = _attack(ensemble, "jsma(gamma=0.5,eps=0.2)", images, labels)
    for image, label, batched in zip(images, labels, found, strict=True):
        current = image.clone()
        for _ in range(32):
            point = current.clone().requires_grad_()
            logits = ensemble.member_logits(point[None])[:, 0]
            logits.softmax(-1).mean(0)[label].backward()
            assert point.grad is not None
            allowed = torch.where(current < 1, point.grad, -torch.inf)  # a scalar at 1 is never taken
            where = np.unravel_index(int(allowed.argmax()), point.shape)
            current[where] = max(0.0, float(current[where]) - 0.2)
        assert torch.allclose(current, batched, atol=1e-12)
        assert not torch.equal(current, image)


@pytest.mark.parametrize("library", ["torchattacks", "art"])
def test_a_setting_that_a_library_cannot_honour_is_refused(library: str, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = _right(ensemble, digits, 2)
    with pytest.raises(BadInput, match="always stops early"):
        _attack(ensemble, f"cw@{library}(c=1,steps=10,abort_early=false)", images, labels)


# --- specs ---


def test_an_attack_spec_has_one_canonical_text() -> None:
    named = parse_attack("pgd( eps=0.010, steps=10 )")
    assert named.text == "pgd@torchattacks(eps=0.01)" and named.label == "pgd(eps=0.01)"
    assert named.attack.parameters == "eps=0.01"
    usual = {"steps": 10, "step_size": None, "targeted": False, "restarts": 1, "loss": "ce"}
    assert named.attack.settings() == {"eps": 0.01, **usual}
    assert parse_attack(named.text) == named


def test_the_papers_parameters_are_the_defaults() -> None:
    cw, ead = parse_attack("cw(c=1)").attack.settings(), parse_attack("ead(c=1)").attack.settings()
    assert (cw["kappa"], cw["lr"], cw["steps"]) == (0.1, 0.01, 1000)
    assert (ead["kappa"], ead["lr"], ead["steps"], ead["beta"]) == (0.1, 0.01, 1000, 0.01)
    assert parse_attack("mim(eps=1)").attack.settings()["decay"] == 1
    assert all(parse_attack(f"{name}(eps=0.5)").attack.settings()["steps"] == 10 for name in ("bim", "pgd", "mim"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pdg(eps=0.1)", "did you mean pgd"),
        ("pgd@foolbax(eps=0.1)", "did you mean foolbox"),
        ("jsma@foolbox(gamma=0.1)", "'jsma' does not exist in library 'foolbox'"),
        ("pgd", "needs eps"),
        ("pgd(eps=0)", "eps is 0"),
        ("pgd(eps=300)", "eps is 300"),
        ("pgd(eps=-0.1)", "eps is -0.1"),
        ("pgd(eps=inf)", "eps is inf"),
        ("pgd(eps=0.1,steps=0)", "steps is 0"),
        ("pgd(eps=0.1,step_size=0)", "step_size is 0"),
        ("mim(eps=0.1,decay=-1)", "decay is -1"),
        ("mim(eps=0.1,decay=inf)", "decay is inf"),
        ("cw(c=0)", "c is 0"),
        ("cw(c=1,kappa=-1)", "kappa is -1"),
        ("cw(c=1,kappa=inf)", "kappa is inf"),
        ("ead(c=1,beta=-1)", "beta is -1"),
        ("ead(c=1,beta=inf)", "beta is inf"),
        ("ead(c=1,lr=inf)", "lr is inf"),
        ("jsma(gamma=2)", "gamma is 2"),
        ("jsma(gamma=0.1,eps=0)", "eps is 0"),
        ("fgsm(eps=0.1,colour=red)", "no parameter 'colour'"),
    ],
)
def test_a_bad_attack_spec_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_attack(text)


def test_every_library_tells_its_version() -> None:
    assert library_version("native") == "1"
    for library in ("torchattacks", "art", "foolbox"):
        assert library_version(library)[0].isdigit()
