"""Subnormal numbers count as zero inside, and as before afterwards."""

from __future__ import annotations

import pytest
import torch

from defenses.members.subnormals import subnormals_as_zero


def _kept() -> bool:
    return bool((torch.full((4,), 1e-30) * torch.full((4,), 1e-10)).gt(0).all())


def test_inside_they_are_zero_and_afterwards_as_they_were() -> None:
    torch.set_flush_denormal(False)
    assert _kept()
    with subnormals_as_zero():
        assert not _kept()
        with subnormals_as_zero():
            assert not _kept()
        assert not _kept(), "the inner one leaves what it found"
    assert _kept()


def test_an_error_inside_changes_nothing_afterwards() -> None:
    torch.set_flush_denormal(False)
    with pytest.raises(KeyError), subnormals_as_zero():
        raise KeyError
    assert _kept()
