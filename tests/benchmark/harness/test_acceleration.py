"""The fast copy is the same ensemble; where it cannot be, the ensemble itself is used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmark.harness.acceleration import accelerated, check_mode, reduced
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble


def _used(network: str, shape: tuple[int, int, int]) -> tuple[Ensemble, Tensor]:
    """An ensemble whose batch norms have seen data and whose scales and shifts are no longer one and zero."""
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(8, *shape, generator=generator)
    ensemble = build_ensemble(network, 2, shape, 10, images.mean(0), seed=1)
    with torch.no_grad():
        for module in ensemble.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.5
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
        ensemble.train()
        ensemble(images)
    return ensemble.eval(), images


@pytest.mark.parametrize("network", ["resnet20", "resnet20-dverge"])
def test_the_copy_in_bfloat16_is_nearly_the_ensemble_and_its_gradients_are_float32(network: str) -> None:
    ensemble, images = _used(network, (3, 16, 16))
    try:
        short = reduced(accelerated(ensemble, images), images)
    except BadInput as error:
        pytest.skip(str(error))
    assert next(ensemble.parameters()).dtype == torch.float32
    assert {parameter.dtype for parameter in short.parameters()} == {torch.bfloat16}
    point = images.clone().requires_grad_()
    output = short(point)
    wanted = ensemble(images)
    assert output.dtype == torch.float32 and not torch.equal(output, wanted)
    torch.testing.assert_close(output, wanted, atol=0.3, rtol=0.1)
    labels = wanted.argmax(-1)
    found = torch.autograd.grad(nn.functional.nll_loss(output, labels, reduction="sum"), point)[0]
    point = images.clone().requires_grad_()
    true = torch.autograd.grad(nn.functional.nll_loss(ensemble(point), labels, reduction="sum"), point)[0]
    assert found.dtype == torch.float32 and (found.sign() == true.sign()).float().mean() > 0.85


def test_a_processor_without_bfloat16_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from defenses.training import precision

    monkeypatch.setattr(precision, "PROBE", "raise SystemExit(1)")
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    with pytest.raises(BadInput, match="bfloat16 does not work on this cpu; use --acceleration folded"):
        reduced(ensemble, images)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("resnet20", (3, 16, 16)),
        ("resnet20", (1, 14, 14)),
        ("resnet20-dverge", (3, 16, 16)),
        ("mini-resnet", (1, 8, 8)),
    ],
)
def test_the_fast_copy_gives_the_same_answers_and_gradients(network: str, shape: tuple[int, int, int]) -> None:
    ensemble, images = _used(network, shape)
    weights = {name: value.clone() for name, value in ensemble.state_dict().items()}
    fast = accelerated(ensemble, images)
    assert fast is not ensemble, "it was made faster"
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    others = torch.rand(8, *shape, generator=torch.Generator().manual_seed(4))
    outputs, gradients = [], []
    for model in (ensemble, fast):
        point = others.clone().requires_grad_()
        output = model(point)
        (gradient,) = torch.autograd.grad(output[:, 3].sum(), point)
        outputs.append(output.detach())
        gradients.append(gradient.flatten(1))
    assert torch.allclose(*outputs, atol=1e-4)
    assert (torch.cosine_similarity(*gradients, dim=1) > 0.9999).all()
    assert all(torch.equal(value, weights[name]) for name, value in ensemble.state_dict().items())


def test_filters_that_weight_decay_has_killed_are_dropped_without_changing_a_gradient() -> None:
    ensemble, images = _used("resnet20", (3, 16, 16))
    for member in ensemble.members:
        last = member.layers[2][2]  # type: ignore[index]
        with torch.no_grad():
            for weight in (last.conv1.weight, last.conv2.weight):
                weight[:32] *= 10 ** torch.linspace(-20, -40, 32)[:, None, None, None]
    fast = accelerated(ensemble, images)
    assert fast is not ensemble
    sizes = torch.cat([weight.detach().abs().flatten() for weight in fast.members.parameters()])  # type: ignore[union-attr]
    assert not ((sizes > 0) & (sizes < 1e-20)).any() and (sizes == 0).sum() > 2 * 32 * 64 * 9
    gradients = []
    for model in (ensemble, fast):
        point = images.clone().requires_grad_()
        gradients += torch.autograd.grad(model(point)[:, 3].sum(), point)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_a_model_it_does_not_know_is_used_as_it_is() -> None:
    for model in (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]),
    ):
        assert accelerated(model, torch.rand(2, 1, 8, 8)) is model


class _Outside(nn.Module):
    """A network of somebody else: the kinds differ in what a copy of them has to cope with."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        if self.kind == "decides while it runs" and images.mean() < -1:
            return images.flatten(1)[:, :10]
        hidden = self.body(images)
        if self.kind == "views all pixels":
            return self.head(hidden.view(len(images), -1))  # type: ignore[no-any-return]
        if self.kind == "shares a dimension":
            hidden = hidden.view(hidden.size(0), -1)
        return self.head(hidden.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["plain", "decides while it runs", "views all pixels", "shares a dimension"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_network_from_outside_gets_a_copy_with_the_same_answers_and_gradients(kind: str, alone: bool) -> None:
    torch.manual_seed(0)
    images = torch.rand(8, 3, 8, 8)
    network = _Outside(kind)
    network.train()(images)
    model = (network if alone else Ensemble([network, _Outside(kind)], 0.4, 0.5)).eval()
    said: list[str] = []
    fast = accelerated(model, images, say=said.append)
    assert fast is not model and said == []
    assert not any(isinstance(part, nn.BatchNorm2d) for part in fast.modules()), "all of it was folded"
    found = []
    for one in (model, fast):
        point = images.clone().requires_grad_()
        output = one(point)
        (gradient,) = torch.autograd.grad(output.logsumexp(-1).sum() + output[:, 3].sum(), point)
        assert gradient.is_contiguous(), "attacks may ask for a view of it"
        found.append((output.detach(), gradient))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_with_members_of_its_own_keeps_them() -> None:
    """Attacks on ensembles ask it for `member_logits`, which a traced copy would not have."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([_Outside("plain"), _Outside("plain")])

        def member_logits(self, images: Tensor) -> Tensor:
            return torch.stack([part(images) for part in self.parts])

        def forward(self, images: Tensor) -> Tensor:
            return self.member_logits(images).mean(0)

    pair = Pair().eval()
    assert accelerated(pair, torch.rand(4, 3, 8, 8)) is pair


def test_outputs_that_are_known_already_are_not_computed_again() -> None:
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    with torch.no_grad():
        wanted = ensemble(images)
    passes: list[int] = []

    def count(model: nn.Module, given: object, output: Tensor) -> None:
        passes.extend([len(output)] * (model is ensemble))  # copies have the hook too

    with ensemble.register_forward_hook(count):
        assert accelerated(ensemble, images, wanted=wanted) is not ensemble
    assert passes == [len(images)], "the pass whose gradients are compared"
    said: list[str] = []
    assert accelerated(ensemble, images, say=said.append, wanted=wanted.roll(1, 0)) is ensemble
    assert said, "a copy is compared with the outputs that were given"


def test_a_copy_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmark.harness import acceleration

    ensemble, images = _used("mini-resnet", (1, 8, 8))

    def spoil(network: nn.Module) -> None:
        with torch.no_grad():
            network.fc.bias[0] += 0.01

    monkeypatch.setattr(acceleration, "_fold", spoil)
    said: list[str] = []
    assert accelerated(ensemble, images, say=said.append) is ensemble
    assert said and "log-probabilities that differ by 0.0" in said[0]


def test_a_copy_with_other_gradients_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are the same, so that only the gradients give it away."""
    from benchmark.harness import acceleration

    ensemble, images = _used("mini-resnet", (1, 8, 8))

    def reverse(network: nn.Module) -> None:
        inner = network.features
        network.features = lambda pixels: inner(2 * pixels.detach() - pixels)  # type: ignore[assignment]

    monkeypatch.setattr(acceleration, "_fold", reverse)
    said: list[str] = []
    assert accelerated(ensemble, images, say=said.append) is ensemble
    assert said and "gradients of another sign" in said[0]


def test_it_can_be_switched_off_and_what_it_does_not_know_is_refused() -> None:
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    assert accelerated(ensemble, images, "none") is ensemble
    with pytest.raises(BadInput, match="did you mean folded"):
        check_mode("fold")


def test_where_compiling_fails_the_folded_copy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: nn.Module, **settings: object) -> None:
        self.forward = lambda pixels: 1 / 0  # type: ignore[assignment]

    monkeypatch.setattr(nn.Module, "compile", broken)
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    said: list[str] = []
    fast = accelerated(ensemble, images, "compiled", said.append)
    assert fast is not ensemble and torch.allclose(fast(images), ensemble(images), atol=1e-4)
    assert len(said) == 1 and "ZeroDivisionError: division by zero" in said[0] and "folded" in said[0]


@pytest.mark.slow
def test_the_compiled_copy_gives_the_same_answers() -> None:
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    said: list[str] = []
    fast = accelerated(ensemble, images, "compiled", said.append)
    assert said == [] and fast is not ensemble
    for count in (8, 3):
        assert torch.allclose(fast(images[:count]), ensemble(images[:count]), atol=1e-4)


def test_an_ensemble_whose_output_is_not_finite_is_used_as_it_is() -> None:
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    with torch.no_grad():
        next(ensemble.parameters()).fill_(float("nan"))
    assert accelerated(ensemble, images) is ensemble
