"""What cannot be evaluated is refused before the first attack, with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmark.harness.prepared import is_random
from benchmark.harness.soundness import check_model
from defenses.errors import BadInput

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 3.0]])
IMAGES = torch.rand(2, 1, 4, 4)


class _Fixed(nn.Module):
    """Gives the same answer whatever the images; its one weight makes it a model."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        return self.output[: len(images)] + 0 * self.weight


def _check(model: nn.Module, labels: list[int]) -> int:
    return check_model(model, IMAGES, torch.tensor(labels))


def test_a_sound_model_is_accepted_and_its_classes_counted() -> None:
    assert _check(_Fixed(LOGITS), [0, 2]) == 3
    assert _check(_Fixed(LOGITS.log_softmax(-1)), [0, 2]) == 3


def test_probabilities_are_refused() -> None:
    with pytest.raises(BadInput, match=r"gives probabilities.*return logits"):
        _check(_Fixed(LOGITS.softmax(-1)), [0, 2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BadInput, match="not finite"):
        _check(_Fixed(torch.full((2, 3), value)), [0, 2])


@pytest.mark.parametrize("shape", [(2,), (1, 3), (2, 3, 1)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"it must give logits of shape \(N, classes\)"):
        _check(_Fixed(torch.randn(shape)), [0, 2])


def test_a_model_that_is_not_deterministic_is_accepted_and_known() -> None:
    class Noisy(_Fixed):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + torch.rand(2, 3)

    assert _check(Noisy(LOGITS), [0, 2]) == 3
    images = torch.rand(2, 1, 2, 2)
    assert is_random(Noisy(LOGITS), images) and not is_random(_Fixed(LOGITS), images)


@pytest.mark.parametrize(("labels", "wrong"), [([0, 3], 3), ([-1, 2], -1)])
def test_labels_out_of_range_are_refused(labels: list[int], wrong: int) -> None:
    with pytest.raises(BadInput, match=f"label {wrong} is out of range; the model has classes 0 to 2"):
        _check(_Fixed(LOGITS), labels)
