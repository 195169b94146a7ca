"""DVERGE distils images that fool one member, trains the others on them, and does so after a warm-up."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from defenses.catalogue import parse_defense
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.residual import ResidualNetwork
from defenses.objectives import Baseline, Place, Terms, total
from defenses.objectives.dverge import DVERGE

Batch = tuple[Tensor, Tensor]
LAYERS = range(6)


@pytest.fixture
def ensemble() -> Ensemble:
    return build_ensemble("mini-resnet(width=4)", 3, (1, 8, 8), 10, torch.full((1, 8, 8), 0.3), seed=0).train()


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(12, 1, 8, 8, generator=generator)
    images[:, :, :2] = 0.0  # some pixels at the walls of the box
    images[:, :, 2:4] = 1.0
    return images, torch.randint(10, (12,), generator=generator)


def _features(ensemble: Ensemble, member: int, layer: int, images: Tensor) -> Tensor:
    """Pre-ReLU features of one member, in training mode, caught by hooks on the modules the ReLUs follow."""
    network = copy.deepcopy(ensemble.members[member])
    assert isinstance(network, ResidualNetwork)
    caught: list[Tensor] = []
    network.bn1.register_forward_hook(lambda module, inputs, output: caught.append(output))
    for stage in network.layers:
        for block in stage:
            block.bn1.register_forward_hook(lambda module, inputs, output: caught.append(output))
            block.bn2.register_forward_hook(lambda module, inputs, output: caught.append(output))
            if not isinstance(block.shortcut, nn.Identity):
                block.shortcut.register_forward_hook(
                    lambda module, inputs, output: caught.append(caught.pop() + output)
                )
            else:
                block.register_forward_hook(lambda module, inputs, output: caught.append(caught.pop() + inputs[0]))
    with torch.no_grad():
        logits = network(ensemble.normalise(images))
    return [*caught, logits][layer]


@pytest.mark.parametrize("layer", LAYERS)
def test_distilled_images_stay_in_the_ball_and_the_box_and_come_nearer_to_another_image(
    ensemble: Ensemble, batch: Batch, layer: int
) -> None:
    images, _ = batch
    moved = DVERGE(layer=layer).distil(ensemble, 1, images)
    assert (moved - images).abs().max().item() <= 0.07 + 1e-6
    assert moved.min() >= 0 and moved.max() <= 1 and not moved.requires_grad
    target = _features(ensemble, 1, layer, images.roll(1, 0))
    before, after = ((_features(ensemble, 1, layer, x) - target).square().flatten(1).sum(1) for x in (images, moved))
    assert (after < before).all()


def test_distilling_is_ten_momentum_steps_of_a_tenth_of_eps(ensemble: Ensemble, batch: Batch) -> None:
    images, _ = batch
    ensemble.eval()
    found = DVERGE(layer=5).distil(ensemble, 0, images)
    target = ensemble.members[0](images.roll(1, 0) - 0.3).detach()
    point, momentum = images, torch.zeros_like(images)
    for _ in range(10):
        point = point.detach().requires_grad_()
        torch.nn.functional.mse_loss(ensemble.members[0](point - 0.3), target).backward()
        momentum = momentum + torch.nn.functional.normalize(point.grad.flatten(1), p=1).view_as(images)
        point = point.detach() - 0.007 * momentum.sign()
        point = torch.minimum(torch.maximum(point, images - 0.07), images + 0.07).clamp(0, 1)
    # a gradient within rounding of zero may take another sign; all but a few pixels agree
    assert ((found - point).abs() > 1e-6).float().mean().item() < 0.01


def test_each_member_is_trained_on_the_images_of_all_the_others(ensemble: Ensemble, batch: Batch) -> None:
    defense = DVERGE(layer=3)
    images, labels = batch
    distilled = [defense.distil(ensemble, member, images) for member in range(3)]
    expected = torch.zeros(12)
    for i in range(3):
        network = copy.deepcopy(ensemble.members[i])
        for j in {0, 1, 2} - {i}:
            logits = network(distilled[j] - 0.3)
            expected += torch.nn.functional.cross_entropy(logits, labels, reduction="none").detach()
    logits, terms = defense.forward(ensemble, images, labels)
    torch.testing.assert_close(terms["distilled"].detach(), expected)
    assert logits.shape == (3, 12, 10)


def test_updating_the_members_at_once_is_updating_them_in_turn(ensemble: Ensemble, batch: Batch) -> None:
    defense, in_turn = DVERGE(layer=2), copy.deepcopy(ensemble)
    images, labels = batch
    defense.step(ensemble, torch.optim.Adam(ensemble.parameters(), lr=1e-2), images, labels, torch.Generator())
    distilled = [defense.distil(in_turn, member, images) for member in range(3)]
    for i, network in enumerate(in_turn.members):
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
        others = [moved for j, moved in enumerate(distilled) if j != i]
        torch.stack([torch.nn.functional.cross_entropy(network(x - 0.3), labels) for x in others]).sum().backward()
        optimiser.step()
    # Adam's first step is the sign of the gradient where that is within rounding of zero
    pairs = zip(ensemble.parameters(), in_turn.parameters(), strict=True)
    differing = torch.cat([((a - b).abs() > 1e-5).flatten() for a, b in pairs]).float().mean().item()
    assert differing < 0.01


def test_distilling_leaves_statistics_gradients_and_modes_alone(ensemble: Ensemble, batch: Batch) -> None:
    state = copy.deepcopy(ensemble.state_dict())
    DVERGE(layer=4).distil(ensemble, 0, batch[0])
    torch.testing.assert_close(ensemble.state_dict(), state, rtol=0, atol=0)
    assert all(module.training for module in ensemble.modules())
    assert all(parameter.grad is None for parameter in ensemble.parameters())


def test_features_that_do_not_see_the_image_leave_it_where_it_is(ensemble: Ensemble, batch: Batch) -> None:
    ensemble.members[0].bn1.weight.data.zero_()
    assert torch.equal(DVERGE(layer=0).distil(ensemble, 0, batch[0]), batch[0])


# --- over training ---


def test_the_first_quarter_of_the_epochs_is_a_baseline_unless_there_is_a_checkpoint(ensemble: Ensemble) -> None:
    def kinds(defense: DVERGE, from_checkpoint: bool) -> list[type]:
        places = [Place(epoch, 8, from_checkpoint) for epoch in range(8)]
        return [type(defense.at(place, ensemble, torch.Generator())) for place in places]

    assert kinds(DVERGE(), False) == [Baseline] * 2 + [DVERGE] * 6
    assert kinds(DVERGE(warm_up=0), False) == [DVERGE] * 8
    assert kinds(DVERGE(), True) == [DVERGE] * 8


def test_every_layer_is_drawn_and_the_draw_depends_on_the_generator_alone(ensemble: Ensemble) -> None:
    def layer(seed: int) -> int:
        defense = DVERGE().at(Place(5, 6), ensemble, torch.Generator().manual_seed(seed))
        assert isinstance(defense, DVERGE)
        return defense.layer

    drawn = [layer(seed) for seed in range(60)]
    assert set(drawn) == set(LAYERS)
    assert drawn == [layer(seed) for seed in range(60)]


def test_adversarial_training_adds_the_members_loss_on_the_adversarial_images(ensemble: Ensemble, batch: Batch) -> None:
    named = parse_defense("advt-pgd+dverge")
    assert named.text == "advt(attack=pgd)+dverge"
    warming = named.defense.at(Place(0, 6), ensemble, torch.Generator())
    assert warming == parse_defense("advt-pgd").defense
    defense = named.defense.at(Place(5, 6), ensemble, torch.Generator().manual_seed(0))
    images, labels = defense.batch(ensemble, *batch, torch.Generator().manual_seed(0))
    plain = copy.deepcopy(ensemble)
    logits, terms = defense.forward(ensemble, images, labels)
    inner: Terms = defense.inner.forward(plain, *batch)[1]  # type: ignore[attr-defined]
    torch.testing.assert_close(terms["distilled"], inner["distilled"])
    losses = [torch.nn.functional.cross_entropy(member(images[12:] - 0.3), batch[1]) for member in plain.members]
    assert total(terms).item() == pytest.approx((inner["distilled"].mean() + sum(losses)).item(), rel=1e-5)
    assert logits.shape == (3, 24, 10) and len(labels) == 24


# --- what is refused ---


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dverge(eps=0)", "eps of dverge is 0"),
        ("dverge(eps=1.5)", "eps of dverge is 1.5"),
        ("dverge(steps=0)", "steps is 0"),
        ("dverge(warm_up=1)", "warm_up of dverge is 1"),
        ("dverge(layer=3)", "no parameter 'layer'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_defense(spec)


def test_one_member_has_nobody_to_learn_from() -> None:
    with pytest.raises(BadInput, match="at least 2 members"):
        parse_defense("dverge").defense.check(1, 10)


def test_a_network_without_layers_to_look_at_is_refused() -> None:
    ensemble = Ensemble([nn.Flatten(), nn.Flatten()])
    with pytest.raises(BadInput, match=r"Flatten has no method before_relu"):
        DVERGE().at(Place(5, 6), ensemble, torch.Generator())
