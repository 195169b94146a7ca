"""LOTOS penalises what it says, with the right gradient, and makes the members' first convolutions respond apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmark.ensembles.training import training_data
from defenses.catalogue import parse_defense
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.residual import SamePadConv2d
from defenses.objectives import LOTOS
from defenses.objectives.lotos import _watched, linear, responses, top_vector
from defenses.training.loop import train
from defenses.training.recipes import fast
from defenses.training.request import TrainingRequest


def _pointwise(matrix: list[list[float]]) -> nn.Conv2d:
    """A convolution of one pixel: its matrix is the linear map."""
    conv = nn.Conv2d(len(matrix[0]), len(matrix), 1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(matrix)[..., None, None])
    return conv


def test_the_penalty_by_hand() -> None:
    """f_1 = diag(3, 1) amplifies e_1, and f_2 sends e_1 to (0, 1) and e_2 to (2, 0): responses 1/2 and 1/3."""
    first, second = _pointwise([[3.0, 0.0], [0.0, 1.0]]), _pointwise([[0.0, 2.0], [1.0, 0.0]])
    shape = (2, 1, 1)
    vectors = [top_vector(conv, shape, 60) for conv in (first, second)]
    torch.testing.assert_close(vectors[0].flatten().abs(), torch.tensor([1.0, 0.0]), atol=1e-5, rtol=0)
    found = responses([first, second], vectors)
    torch.testing.assert_close(found, torch.tensor([[1.0, 1 / 2], [1 / 3, 1.0]]), atol=1e-5, rtol=0)
    excess = LOTOS(threshold=0.4, iterations=60).excess([(first, shape), (second, shape)])
    assert excess.item() == pytest.approx((0.1 + 0) / 2, abs=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_top_vector_is_that_of_the_matrix_of_the_convolution(stride: int) -> None:
    """Against numpy's singular values, of the matrix that the convolution makes of unit images."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, stride=stride, padding=1).double()
    units = torch.eye(2 * 5 * 5, dtype=torch.float64).view(-1, 2, 5, 5)
    matrix = linear(conv, units).flatten(1).T.detach().numpy()
    vector = top_vector(conv, (2, 5, 5), 300)
    largest = np.linalg.svd(matrix, compute_uv=False)[0]
    assert np.linalg.norm(matrix @ vector.flatten().numpy()) == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", [nn.Conv2d, SamePadConv2d])
def test_the_linear_map_is_the_layer_of_the_network_without_its_bias(kind: type[nn.Conv2d], stride: int) -> None:
    torch.manual_seed(0)
    conv, images = kind(2, 3, 3, stride), torch.rand(4, 2, 2 + stride, 6)
    wanted = conv(images) - conv(torch.zeros_like(images))
    torch.testing.assert_close(linear(conv, images), wanted)


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 2, 3, padding=1).double() for _ in range(3)]
    vectors = [top_vector(conv, (1, 4, 4), 20) for conv in convolutions]

    def excess(*weights: Tensor) -> Tensor:
        sizes = torch.stack(
            [
                linear(conv, torch.cat(vectors), weight).flatten(1).norm(dim=1)
                for conv, weight in zip(convolutions, weights, strict=True)
            ],
            dim=1,
        )
        return (sizes / sizes.diagonal() - 0.1).clamp_min(0).sum()

    weights = [conv.weight for conv in convolutions]
    assert torch.autograd.gradcheck(excess, weights)
    wanted = torch.autograd.grad(excess(*weights), weights)
    found = torch.autograd.grad((responses(convolutions, vectors) - 0.1).clamp_min(0).sum(), weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_scaling_a_convolution_changes_nothing() -> None:
    first, second = _pointwise([[3.0, 0.0], [0.5, 1.0]]), _pointwise([[1.0, 2.0], [1.0, 0.0]])
    before = LOTOS(threshold=0).excess([(first, (2, 1, 1)), (second, (2, 1, 1))])
    with torch.no_grad():
        second.weight *= 0.01
    torch.testing.assert_close(LOTOS(threshold=0).excess([(first, (2, 1, 1)), (second, (2, 1, 1))]), before)


@pytest.mark.parametrize("spec", ["lotos(weight=0)", "lotos(threshold=-1)", "lotos(layers=0)", "lotos(iterations=0)"])
def test_parameters_that_make_no_sense_are_bad_input(spec: str) -> None:
    with pytest.raises(BadInput):
        parse_defense(spec)


def test_members_without_enough_convolutions_are_refused() -> None:
    members = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    with pytest.raises(BadInput, match="convolutions"):
        LOTOS().forward(Ensemble(members), torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))
    with pytest.raises(BadInput, match="2 members"):
        LOTOS().check(1, 10)


def _response(ensemble: Ensemble, layers: int = 2) -> float:
    """Mean relative response to the vectors of other members, over the first convolutions."""
    with torch.no_grad(), _watched(ensemble) as seen:
        ensemble.member_logits(torch.rand(1, 1, 8, 8))
    found = [LOTOS(threshold=0, iterations=50).excess([member[place] for member in seen]) for place in range(layers)]
    return float(torch.stack(found).mean().detach())


def test_on_digits_the_members_respond_less_to_each_others_vectors(tmp_path: Path) -> None:
    digits, recipe = training_data("digits", fast("tiny"), 0), replace(fast("tiny"), epochs=3)
    found = {}
    for spec in ("baseline", "lotos(weight=5,layers=2)"):
        request = TrainingRequest(parse_defense(spec), "mini-resnet(width=8)", 2, recipe)
        ensemble = load_checkpoint(train(request, digits, tmp_path / spec.partition("(")[0]))
        accuracy = (ensemble(digits.test.images()).argmax(-1) == digits.test.labels).float().mean().item()
        found[spec] = (_response(ensemble), accuracy)
    (usual, _), (apart, accuracy) = found.values()
    assert apart < 0.6 * usual
    assert accuracy > 0.7


def test_it_combines_with_adversarial_training() -> None:
    ensemble = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10).train()
    images, labels = torch.rand(8, 1, 8, 8), torch.arange(8)
    defense = parse_defense("advt-pgd+lotos").defense
    optimiser = torch.optim.SGD(ensemble.parameters(), lr=0.01)
    result = defense.step(ensemble, optimiser, images, labels, torch.Generator().manual_seed(0))
    assert "response" in result.terms
