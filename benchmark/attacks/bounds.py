"""Bounds: how far an adversarial image may lie from the clean one, as a norm and a radius."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from defenses.errors import BadInput
from defenses.registry import did_you_mean
from defenses.specs import number, value_text

BOUND = "bound"
"""Parameter in the spec of any attack: the bound that its images are checked against, such as ``bound=l2:0.5``."""
Norm = Literal["linf", "l2", "l1", "l0"]
NORMS: tuple[Norm, ...] = get_args(Norm)
SYMBOLS: dict[Norm, str] = {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}


@dataclass(frozen=True)
class Bound:
    """The largest allowed perturbation: a norm (``linf``, ``l2``, ``l1`` or ``l0``) and a radius.

    Pixels are in [0, 1]. An L0 radius is a number of scalars.
    """

    norm: Norm
    radius: float

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise BadInput(f"unknown norm {self.norm!r}; {did_you_mean(str(self.norm), NORMS)}")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise BadInput(f"the radius of a bound is {self.radius:g}; it must be a finite number above 0")

    def __str__(self) -> str:
        return f"{self.norm}:{value_text(self.radius)}"

    @property
    def symbol(self) -> str:
        """The norm as a symbol, such as L∞."""
        return SYMBOLS[self.norm]

    def within(self, other: Bound) -> bool:
        """True if both bounds have the same norm and this radius is not larger."""
        return self.norm == other.norm and self.radius <= other.radius


def read_bound(text: str) -> Bound:
    """Read ``linf:8/255`` or ``l2:0.5``."""
    norm, colon, radius = text.partition(":")
    value = number(radius)
    if not colon or value is None:
        raise BadInput(f"cannot read the bound {text!r}; write a norm and a radius, such as linf:8/255 or l2:0.5")
    return Bound(norm, value)  # type: ignore[arg-type]  # checked by Bound
