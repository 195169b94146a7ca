"""What each attack is: its parameters as the paper set them, its threat model and the libraries that have it.

A frozen dataclass per attack; its fields are the parameters of a spec such as ``pgd(eps=0.01)``. ``backends``
maps a library to the function that runs it there; the first is the default, chosen by the evidence in
docs/attacks.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from defenses.errors import BadInput


@dataclass(frozen=True)
class Attack:
    """Base of every attack."""

    backends: ClassVar[dict[str, str]] = {}
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    """What the authors handed the attack as the ensemble's logits (tier ``paper``)."""
    paper_labels: ClassVar[Literal["predicted", "true"]] = "predicted"
    """The labels the authors' attack started from (tier ``paper``)."""

    @property
    def budget(self) -> float | None:
        """Radius of the L∞ ball the adversarial image must stay in; None when the attack has no such bound."""
        return None

    @property
    def wants_target(self) -> bool:
        """True when the attack aims at a class instead of away from one."""
        return bool(getattr(self, "targeted", False))


@dataclass(frozen=True)
class _Linf(Attack):
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "probabilities"

    eps: float

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise BadInput(f"eps is {self.eps:g}; images lie in [0, 1], so eps must be above 0 and at most 1")
        _at_least_one("steps", getattr(self, "steps", 1))

    @property
    def budget(self) -> float:
        return self.eps


def _backends(name: str, *libraries: str) -> dict[str, str]:
    return {library: f"benchmark.attacks.{library}_backend:{name}" for library in libraries}


@dataclass(frozen=True)
class FGSM(_Linf):
    """Fast gradient sign method: one step of size eps."""

    backends: ClassVar[dict[str, str]] = _backends("fgsm", "torchattacks", "art", "foolbox")
    targeted: bool = False


@dataclass(frozen=True)
class BIM(_Linf):
    """Basic iterative method: steps of eps/steps from the image itself."""

    backends: ClassVar[dict[str, str]] = _backends("bim", "torchattacks", "art", "foolbox")
    steps: int = 10
    targeted: bool = False


@dataclass(frozen=True)
class _Stepped(_Linf):
    steps: int = 10
    step_size: float | None = None
    """Step size; by default eps/steps, the paper's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            _positive("step_size", self.step_size)

    @property
    def step(self) -> float:
        """Size of one step."""
        return self.eps / self.steps if self.step_size is None else self.step_size


@dataclass(frozen=True)
class PGD(_Stepped):
    """Projected gradient descent: BIM from a uniformly drawn start in the ball."""

    backends: ClassVar[dict[str, str]] = _backends("pgd", "torchattacks", "art", "foolbox")
    targeted: bool = False


@dataclass(frozen=True)
class MIM(_Stepped):
    """Momentum iterative method: BIM along a running sum of normalised gradients."""

    backends: ClassVar[dict[str, str]] = _backends("mim", "torchattacks", "art", "foolbox")
    decay: float = 1.0
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("decay", self.decay)


@dataclass(frozen=True)
class CW(Attack):
    """Carlini and Wagner's L2 attack at one constant c, without a search for it."""

    backends: ClassVar[dict[str, str]] = _backends("cw", "foolbox", "torchattacks", "art")

    c: float
    kappa: float = 0.1
    steps: int = 1000
    lr: float = 0.01
    abort_early: bool = True
    """Stop when, over a tenth of the steps, the summed loss of the batch did not fall: as the authors did."""
    targeted: bool = False

    def __post_init__(self) -> None:
        _check_minimiser(self)


@dataclass(frozen=True)
class EAD(Attack):
    """Elastic-net attack at one constant c: L2 and beta·L1 together, best by their sum."""

    backends: ClassVar[dict[str, str]] = _backends("ead", "foolbox", "torchattacks", "art")

    c: float
    beta: float = 0.01
    kappa: float = 0.1
    steps: int = 1000
    lr: float = 0.01
    targeted: bool = False

    def __post_init__(self) -> None:
        _check_minimiser(self)
        _not_negative("beta", self.beta)


@dataclass(frozen=True)
class JSMA(Attack):
    """Saliency attack as the authors ran it: floor(gamma·D) times, the most helpful scalar falls by eps."""

    backends: ClassVar[dict[str, str]] = {
        "native": "benchmark.attacks.native:jsma",
        **_backends("jsma", "torchattacks", "art"),
    }
    paper_labels: ClassVar[Literal["predicted", "true"]] = "true"

    gamma: float
    eps: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("gamma", self.gamma), ("eps", self.eps)):
            if not 0 < value <= 1:
                raise BadInput(f"{name} is {value:g}; it must be above 0 and at most 1")

    def iterations(self, scalars: int) -> int:
        """Steps on an image of so many scalars."""
        return math.floor(self.gamma * scalars + 1e-9)


@dataclass(frozen=True)
class Evasive(_Linf):
    """PGD that also raises the ensemble's log diversity, to slip past a detector that watches it."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native:evasive"}
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    steps: int = 50
    weight: float = 1.0
    """Weight of the log diversity beside the cross-entropy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise BadInput(f"weight is {self.weight:g}; it must be a number ≥ 0")


def _check_minimiser(attack: Any) -> None:
    _positive("c", attack.c)
    _positive("lr", attack.lr)
    _at_least_one("steps", attack.steps)
    _not_negative("kappa", attack.kappa)


def _not_negative(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise BadInput(f"{name} is {value:g}; it must be a finite number, at least 0")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{name} is {value:g}; it must be a finite number above 0")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise BadInput(f"{name} is {value}; it must be at least 1")
