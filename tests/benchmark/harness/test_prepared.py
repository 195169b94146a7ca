"""A model is made ready to be judged, and is given back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmark.harness.prepared import predict, prepared
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]


def test_prepared_freezes_and_gives_back_even_after_an_error(ensemble: Ensemble) -> None:
    ensemble.train()
    ensemble.members[0].eval()
    next(ensemble.parameters()).requires_grad_(False)
    modes = [module.training for module in ensemble.modules()]
    wanted = [parameter.requires_grad for parameter in ensemble.parameters()]
    with prepared(ensemble):
        assert not any(module.training for module in ensemble.modules())
        assert not any(parameter.requires_grad for parameter in ensemble.parameters())
    with pytest.raises(RuntimeError), prepared(ensemble):
        raise RuntimeError
    assert [module.training for module in ensemble.modules()] == modes
    assert [parameter.requires_grad for parameter in ensemble.parameters()] == wanted


def test_predictions_do_not_depend_on_the_batch_size(ensemble: Ensemble, digits: Digits) -> None:
    images = digits[0][:50]
    assert predict(ensemble, images, 7).tolist() == predict(ensemble, images, 50).tolist()


def test_full_precision_whatever_the_user_had_chosen_and_the_users_choice_afterwards() -> None:
    model, before = nn.Linear(2, 2), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with prepared(model):
            assert {torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision} == {"ieee"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
