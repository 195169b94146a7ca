"""ARC: its step has the closed form of a linear model, and it fools the members of a randomised ensemble together."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import ARC
from benchmark.attacks.native.arc import OVERSHOOT, SHORT, arc, dual_norm, step_over
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble


class Plane(nn.Module):
    """Two classes: logits (0, w · x + b)."""

    def __init__(self, weights: list[float], bias: float) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights))
        self.bias = bias

    def forward(self, images: Tensor) -> Tensor:
        height = images.flatten(1) @ self.weights + self.bias  # type: ignore[operator]
        return torch.stack([torch.zeros_like(height), height], -1)


def _attacked(members: list[nn.Module], combine: str = "random", count: int = 1) -> AttackedModel:
    return AttackedModel(Ensemble(members, combine=combine).eval(), draws=range(count))


MIDDLE = torch.full((1, 1, 2, 2), 0.5)
ZERO = torch.zeros(1, dtype=torch.long)


def test_the_first_step_in_linf_is_the_closed_form_of_a_linear_binary_model() -> None:
    """Height −0.3 with w = (1, −2, 3, 0): the boundary is 0.3 / (1 + 2 + 3) = 0.05 away, and w's signs lead there."""
    model = _attacked([Plane([1.0, -2.0, 3.0, 0.0], -1.3)])
    found = arc(model, MIDDLE, ZERO, ARC(0.2))
    wanted = (1 + OVERSHOOT) * 0.05 * torch.tensor([1.0, -1.0, 1.0, 0.0])
    torch.testing.assert_close((found - MIDDLE).flatten(), wanted, atol=1e-6, rtol=1e-5)
    assert model(found).argmax(-1).item() == 1


def test_the_first_step_in_l2_is_the_closed_form_of_a_linear_binary_model() -> None:
    """Height −0.3 with |w|² = 9 + 16: the boundary is 0.3 / 5 = 0.06 away, along w / 5."""
    model = _attacked([Plane([3.0, 0.0, -4.0, 0.0], 0.2)])
    found = arc(model, MIDDLE, ZERO, ARC(0.2, norm="l2"))
    wanted = (1 + OVERSHOOT) * 0.06 * torch.tensor([0.6, 0.0, -0.8, 0.0])
    torch.testing.assert_close((found - MIDDLE).flatten(), wanted, atol=1e-6, rtol=1e-5)


def test_a_step_that_the_ball_cuts_is_longer() -> None:
    """The first scalar is at the edge of the ball already, so the second alone crosses: 0.3 / 2 instead of 0.3 / 3."""
    clean, bound = MIDDLE, Bound("linf", 0.2)
    x = clean.clone()
    x[0, 0, 0, 0] = 0.7
    normal = torch.tensor([1.0, 2.0, 0.0, 0.0]).view_as(x)
    found = step_over(x, clean, normal, normal, torch.tensor([0.3]), bound)
    torch.testing.assert_close((found - x).flatten()[1].item(), (1 + OVERSHOOT) * 0.15, atol=1e-4, rtol=0)
    assert found.flatten()[0].item() == pytest.approx(0.7)
    out_of_reach = step_over(x, clean, normal, normal, torch.tensor([3.0]), bound)
    assert (out_of_reach - x).flatten()[1].item() == pytest.approx(SHORT * 0.2, abs=1e-6)


def test_dual_norms() -> None:
    gradient = torch.tensor([[3.0, -4.0]])
    assert dual_norm(gradient, Bound("linf", 1)).item() == 7 and dual_norm(gradient, Bound("l2", 1)).item() == 5


def test_the_nearest_of_several_boundaries_is_crossed() -> None:
    class Three(nn.Module):
        """Class 1 has the smaller margin, class 2 the nearer boundary: 0.1 / 0.5 against 0.3 / 3."""

        def forward(self, images: Tensor) -> Tensor:
            rise = images.flatten(1) - 0.5
            return torch.stack([torch.zeros(len(images)), 0.5 * rise[:, 0] - 0.1, 3 * rise[:, 1] - 0.3], -1)

    found = arc(_attacked([Three()]), MIDDLE, ZERO, ARC(0.3))
    torch.testing.assert_close(
        (found - MIDDLE).flatten(), (1 + OVERSHOOT) * torch.tensor([0.0, 0.1, 0.0, 0.0]), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_members_are_fooled_together_where_the_averaged_gradient_points_nowhere(norm: str) -> None:
    """Two members with nearly opposite normals: crossing one boundary alone gives the other up."""
    first, second = Plane([4.0, 1.0, 0.0, 0.0], -2.55), Plane([-4.0, 1.0, 0.0, 0.0], 1.45)
    model = _attacked([first, second])
    attack = ARC(0.2, norm=norm)  # type: ignore[arg-type]
    found = arc(model, MIDDLE, ZERO, attack)
    assert [int(member(found).argmax(-1)) for member in (first, second)] == [1, 1]
    assert (found - MIDDLE).abs().amax() <= 0.2 + 1e-6


def test_of_members_that_cannot_be_fooled_together_the_heavier_is() -> None:
    """Height −0.1 on both sides of a gap: p = 0.3 and 0.7, whatever the order of the draw."""
    up, down = Plane([1.0, 0.0, 0.0, 0.0], -0.6), Plane([-1.0, 0.0, 0.0, 0.0], 0.4)
    for seed in range(6):
        model = AttackedModel(Ensemble([up, down], combine="random(p=0.3x0.7)").eval(), draws=[seed])
        found = arc(model, MIDDLE, ZERO, ARC(0.2))
        assert (int(up(found).argmax(-1)), int(down(found).argmax(-1))) == (0, 1)


def test_no_move_is_kept_that_makes_a_right_prediction_more_likely(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:20], digits[1][:20]
    drawn = Ensemble(list(ensemble.members), ensemble.mean, combine="random").eval().requires_grad_(False)
    model = AttackedModel(drawn, draws=range(20))
    right = [
        (drawn.member_logits(x).argmax(-1) == labels).double().mean(0)
        for x in (images, *(arc(model, images, labels, ARC(0.1, steps=steps)) for steps in (1, 3, 8)))
    ]
    for before, after in itertools.pairwise(right):
        assert (after <= before).all()
    assert right[-1].sum() < right[0].sum()


def test_an_image_is_attacked_alike_alone_and_in_a_batch(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:6], digits[1][:6]
    ensemble.requires_grad_(False).eval()
    together = arc(AttackedModel(ensemble, draws=range(6)), images, labels, ARC(0.1, steps=3))
    alone = arc(AttackedModel(ensemble, draws=[4]), images[4:5], labels[4:5], ARC(0.1, steps=3))
    torch.testing.assert_close(together[4:5], alone, atol=1e-5, rtol=0)


def test_its_spec_and_its_refusals() -> None:
    named = parse_attack("arc(eps=8/255)")
    assert named.text == "arc@native(eps=8/255)" and named.averages and str(named.bound) == "linf:8/255"
    assert parse_attack("arc(eps=0.5,norm=l2,steps=5,restarts=2)").bound == Bound("l2", 0.5)
    for spec in ("arc(eps=12,norm=l1)", "arc(eps=0.1,targets=0)", "arc(eps=0.1,restarts=0)", "arc(eps=0)"):
        with pytest.raises(BadInput):
            parse_attack(spec)


class _Noting(nn.Module):
    """A plane that counts the images that need a gradient."""

    def __init__(self, plane: Plane) -> None:
        super().__init__()
        self.plane, self.count = plane, 0

    def forward(self, images: Tensor) -> Tensor:
        self.count += len(images) * images.requires_grad
        return self.plane(images)


def test_a_step_over_the_boundary_of_one_member_runs_this_member_alone() -> None:
    """No member can be fooled within the ball: every image gets one gradient of every member in a round."""
    members = [_Noting(Plane([1.0, slope, 0.0, 0.0], -20.0)) for slope in (-1.0, 1.0, 2.0)]
    images = MIDDLE.expand(5, -1, -1, -1).contiguous()
    model = _attacked(list(members), count=5)
    arc(model, images, torch.zeros(5, dtype=torch.long), ARC(0.1, steps=1))
    assert [member.count for member in members] == [5, 5, 5]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_member_that_is_never_drawn_changes_nothing(norm: str) -> None:
    """Crossing its boundary would cost a part of the radius, and keeping it fooled would cost directions."""
    drawn: list[nn.Module] = [Plane([4.0, 1.0, 0.0, 0.0], -2.55), Plane([-4.0, 1.0, 0.0, 0.0], 1.45)]
    images = MIDDLE + 0.02 * torch.rand((8, 1, 2, 2), generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(8, dtype=torch.long)
    for spare in ([0.0, -1.0, 1.0, 0.0], [0.0, -9.0, 0.0, 0.0]):
        for bias in (-0.05, 4.7):  # right on the clean images, or wrong
            attack = ARC(0.2, norm=norm, steps=4)  # type: ignore[arg-type]
            two = arc(_attacked(drawn, count=8), images, labels, attack)
            third = Plane(spare, bias)
            three = arc(_attacked([*drawn, third], "random(p=0.5x0.5x0)", count=8), images, labels, attack)
            assert torch.equal(two, three)


def test_its_first_gradient_is_not_that_of_members_that_are_fooled_already() -> None:
    """While no member is fooled that gradient is zero, and the check for dead gradients looks at the first one."""
    model = _attacked([Plane([1.0, -2.0, 3.0, 0.0], -1.3), Plane([1.0, 1.0, 0.0, 1.0], -2.0)])
    arc(model, MIDDLE, ZERO, ARC(0.2))
    assert model.dead_gradient is not None and not model.dead_gradient.any()
