"""An attack in another norm whose radius is called eps as well: findings must not take it for an L∞ attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from benchmark.attacks import NamedAttack
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import Attack


@dataclass(frozen=True)
class Round(Attack):
    """Steps in an L2 ball."""

    backends: ClassVar[dict[str, str]] = {"native": "never:run"}
    strength: ClassVar[str] = "eps"

    eps: float
    steps: int = 10

    @property
    def bound(self) -> Bound:
        return Bound("l2", self.eps)


@pytest.fixture
def l2_attack() -> Callable[..., NamedAttack]:
    """The attack by its radius."""

    def make(eps: float = 0.5, steps: int = 10, name: str = "round") -> NamedAttack:
        return NamedAttack(name, "native", Round(eps, steps), "1")

    return make
