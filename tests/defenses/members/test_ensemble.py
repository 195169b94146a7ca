"""An ensemble averages probabilities stably, normalises inside, and borrows modes without keeping them."""

from __future__ import annotations

import contextlib
import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, batch_norm_mode, build_ensemble, evaluation_mode, predict_logits
from defenses.members.images import LabelledImages


@pytest.fixture
def ensemble() -> Ensemble:
    return build_ensemble("mini-resnet(width=4)", 3, (1, 8, 8), 10, torch.full((1, 8, 8), 0.25), seed=1)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Fixed(nn.Module):
    """A member with the same logits for every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


def test_the_output_is_the_log_of_the_mean_probability(ensemble: Ensemble, images: Tensor) -> None:
    ensemble.eval()
    with torch.no_grad():
        logits = ensemble.member_logits(images).double().numpy()
        raised = np.exp(logits)
        expected = np.log((raised / raised.sum(-1, keepdims=True)).mean(0))
        np.testing.assert_allclose(ensemble(images), expected, atol=1e-5)
        assert logits.shape == (3, 12, 10)
    assert ensemble.output == "log-probabilities"


def test_log_probabilities_survive_where_probabilities_underflow(images: Tensor) -> None:
    ensemble = Ensemble([Fixed([1000.0, 0.0, -1000.0]), Fixed([500.0, 0.0, 0.0])])
    output = ensemble(images[:1])
    torch.testing.assert_close(output[0], torch.tensor([0.0, *[-500 - math.log(2)] * 2]), atol=1e-3, rtol=0)
    output.sum().backward()
    assert all(member.logits.grad.isfinite().all() for member in ensemble.members)


def test_images_are_normalised_inside(ensemble: Ensemble, images: Tensor) -> None:
    ensemble.eval()
    torch.testing.assert_close(ensemble.member_logits(images)[1], ensemble.members[1](images - 0.25))
    scaled = Ensemble(list(ensemble.members), 0.25, 0.5)
    torch.testing.assert_close(scaled.member_logits(images)[0], ensemble.members[0]((images - 0.25) / 0.5))


def test_one_member_is_an_ensemble_that_shares_its_weights(ensemble: Ensemble, images: Tensor) -> None:
    ensemble.eval()
    alone = ensemble.member(2)
    assert len(alone) == 1 and len(ensemble) == 3
    torch.testing.assert_close(alone(images), ensemble.member_logits(images)[2].log_softmax(-1))
    assert alone.members[0] is ensemble.members[2]


def test_features_lead_to_the_logits(ensemble: Ensemble, images: Tensor) -> None:
    ensemble.eval()
    features = ensemble.member_features(images)
    assert features.shape == (3, 12, 8)
    torch.testing.assert_close(ensemble.members[0].fc(features[0]), ensemble.member_logits(images)[0])


def test_a_member_without_features_is_named(images: Tensor) -> None:
    with pytest.raises(BadInput, match="type Fixed has no features"):
        Ensemble([Fixed([0.0, 1.0])]).member_features(images)


@pytest.mark.parametrize("members", [0, -3])
def test_an_ensemble_has_at_least_one_member(members: int) -> None:
    with pytest.raises(BadInput, match=rf"members is {members}; an ensemble has at least 1"):
        build_ensemble("mini-resnet", members, (1, 8, 8), 10)
    with pytest.raises(BadInput, match="at least 1 member"):
        Ensemble([])


def test_members_depend_on_seed_and_place_only_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    three = build_ensemble("mini-resnet(width=2)", 3, (1, 8, 8), 10, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    two = build_ensemble("mini-resnet(width=2)", 2, (1, 8, 8), 10, seed=5)
    other = build_ensemble("mini-resnet(width=2)", 2, (1, 8, 8), 10, seed=6)
    kernels = [e.members[k].conv1.weight for e in (three, two, other) for k in range(2)]
    assert torch.equal(kernels[0], kernels[2]) and torch.equal(kernels[1], kernels[3])
    assert not torch.equal(kernels[0], kernels[1]) and not torch.equal(kernels[0], kernels[4])


def _modes(ensemble: Ensemble) -> list[tuple[bool, object]]:
    return [(module.training, getattr(module, "track_running_stats", None)) for module in ensemble.modules()]


@pytest.mark.parametrize("mode", ["batch", "running", "as set"])
def test_a_batch_norm_mode_changes_no_statistics_and_is_gone_afterwards(
    ensemble: Ensemble, images: Tensor, mode: str
) -> None:
    ensemble.train()
    ensemble.members[1].eval()
    modes, state = _modes(ensemble), copy.deepcopy(ensemble.state_dict())
    with contextlib.suppress(KeyError), batch_norm_mode(ensemble, mode):
        ensemble(images)
        raise KeyError
    assert _modes(ensemble) == modes
    torch.testing.assert_close(ensemble.state_dict(), state, rtol=0, atol=0)


def test_batch_norm_modes_normalise_by_what_they_say(ensemble: Ensemble, images: Tensor) -> None:
    reference = copy.deepcopy(ensemble)
    for ours_training in (True, False):
        ensemble.train(ours_training)
        for mode, training in (("batch", True), ("running", False), ("as set", ours_training)):
            reference.train(training)
            expected = copy.deepcopy(reference)(images)
            with batch_norm_mode(ensemble, mode):
                torch.testing.assert_close(ensemble(images), expected)


def test_evaluation_mode_gives_every_module_its_own_mode_back(ensemble: Ensemble) -> None:
    ensemble.train()
    ensemble.members[0].eval()
    modes = _modes(ensemble)
    with evaluation_mode(ensemble):
        assert not any(module.training for module in ensemble.modules())
    assert _modes(ensemble) == modes


def test_predicting_in_batches_is_predicting_at_once(ensemble: Ensemble, images: Tensor) -> None:
    data = LabelledImages((images * 16).round().to(torch.uint8), torch.zeros(12, dtype=torch.int64), levels=16)
    ensemble.train()
    state = copy.deepcopy(ensemble.state_dict())
    batched = predict_logits(ensemble, data, batch_size=5)
    assert ensemble.training and not batched.requires_grad
    torch.testing.assert_close(ensemble.state_dict(), state, rtol=0, atol=0)
    ensemble.eval()
    torch.testing.assert_close(batched, ensemble.member_logits(data.images()).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
def test_predictions_on_a_gpu_agree_and_come_back_to_the_cpu(ensemble: Ensemble, images: Tensor) -> None:
    data = LabelledImages((images * 16).round().to(torch.uint8), torch.zeros(12, dtype=torch.int64), levels=16)
    here = predict_logits(ensemble, data)
    there = predict_logits(ensemble.to("cuda"), data)
    assert there.device.type == "cpu"
    torch.testing.assert_close(here, there, atol=1e-3, rtol=1e-3)
