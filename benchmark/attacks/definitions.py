"""What each attack is: its parameters as the paper set them, its threat model and the libraries that have it.

A frozen dataclass per attack; its fields are the parameters of a spec such as ``pgd(eps=0.01)``. ``backends``
maps a library to the function that runs it there; the first is the default, chosen by the evidence in
docs/attacks.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from benchmark.attacks.bounds import Bound
from defenses import specs
from defenses.errors import BadInput

FORWARD = 0.5
"""A forward pass beside a gradient: with frozen weights, going back costs about what going forth did."""


@dataclass(frozen=True)
class Attack:
    """Base of every attack."""

    backends: ClassVar[dict[str, str]] = {}
    notes: ClassVar[dict[str, str]] = {}
    """Library to what it is known to do differently; docs/attacks.md has the evidence."""
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    """What the authors handed the attack as the ensemble's logits (tier ``paper``)."""
    paper_labels: ClassVar[Literal["predicted", "true"]] = "predicted"
    """The labels the authors' attack started from (tier ``paper``)."""

    same_in_tiers: ClassVar[bool] = False
    """True when tier ``strict`` takes the images that tier ``paper`` makes: what the attack is handed is the same for
    every image that was right, and the others, which count as wrong, stay in the batch."""
    keeps_survivors: ClassVar[bool] = False
    """True when images that it could not fool come back as they were: those that did not move prove nothing then."""
    query_only: ClassVar[bool] = False
    """True when it never looks at a gradient: what it fools cannot be blamed on one."""
    steps_once: ClassVar[bool] = False
    """True when it has one step and no parameter for their number."""
    minimises: ClassVar[bool] = False
    """True when it looks for the smallest perturbation, and gives the clean image back where it fails."""
    strength: ClassVar[str] = ""
    """The parameter that makes it stronger; for an attack with a bound, the one that is its radius."""
    scaled: ClassVar[tuple[str, ...]] = ("step_size",)
    """Parameters that grow with the strength."""
    work: ClassVar[tuple[str, ...]] = ("steps", "restarts", "queries")
    """Parameters that buy it more work at the same strength."""
    instead: ClassVar[str] = ""
    """What to use where a model has fewer classes than it needs."""

    @property
    def usual_library(self) -> str:
        """The library that runs it when none is named."""
        return next(iter(self.backends))

    @property
    def bound(self) -> Bound | None:
        """The ball that an adversarial image must stay in; None when the attack has no such bound."""
        return None

    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, defaults included: part of a cell's identity."""
        return {key: getattr(self, field.name) for key, field in specs.parameters(type(self)).items()}

    @property
    def parameters(self) -> str:
        """What stands between the parentheses of its spec."""
        return specs.canonical("", self).strip("()")

    @property
    def single_step(self) -> bool:
        """True when it takes one step along one gradient."""
        return self.steps_once or self.settings().get("steps") == 1

    def gradients(self, scalars: int, classes: int) -> float:
        """Gradients it may take for one image of so many scalars; a query counts as `FORWARD`."""
        return getattr(self, "steps", 1) * getattr(self, "restarts", 1)

    @property
    def fewest_classes(self) -> int:
        """Classes that a model must have: with fewer, the attack's loss does not exist or is constant."""
        return 2

    def left_out(self, classes: int) -> tuple[str, ...]:
        """Parts that are not run on a model with so few classes."""
        return ()

    @property
    def wants_target(self) -> bool:
        """True when the attack aims at a class instead of away from one."""
        return bool(self.settings().get("targeted"))


@dataclass(frozen=True)
class _Linf(Attack):
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "probabilities"
    strength: ClassVar[str] = "eps"

    eps: float

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise BadInput(f"eps is {self.eps:g}; images lie in [0, 1], so eps must be above 0 and at most 1")
        _at_least_one("steps", getattr(self, "steps", 1))

    @property
    def bound(self) -> Bound:
        return Bound("linf", self.eps)


def _backends(name: str, *libraries: str) -> dict[str, str]:
    return {library: f"benchmark.attacks.{library}_backend:{name}" for library in libraries}


@dataclass(frozen=True)
class FGSM(_Linf):
    """Fast gradient sign method: one step of size eps."""

    backends: ClassVar[dict[str, str]] = _backends("fgsm", "torchattacks", "art", "foolbox")
    steps_once: ClassVar[bool] = True
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

    backends: ClassVar[dict[str, str]] = {
        **_backends("pgd", "torchattacks", "art", "foolbox"),
        "native": "benchmark.attacks.native.ascent:pgd",
    }
    targeted: bool = False
    restarts: int = 1
    """Starts per image; images that are fooled are not started again."""
    loss: Literal["ce", "margin", "dlr"] = "ce"
    """What is ascended: cross-entropy, the margin to the best other class, or that margin scaled (DLR)."""
    instead: ClassVar[str] = "use loss=margin or loss=ce"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("restarts", self.restarts)
        if self.targeted and self.loss == "dlr":
            raise BadInput("loss=dlr is constant where the target is the third class; use loss=margin with a target")

    @property
    def fewest_classes(self) -> int:
        return 3 if self.loss == "dlr" else 2  # DLR divides by the gap between the first and the third class

    def refuse_extras(self, library: str) -> None:
        """No library restarts on the survivors alone or lets the loss be chosen."""
        if self.restarts > 1 or self.loss != "ce":
            raise BadInput(f"pgd@{library} has neither restarts nor a choice of loss; use pgd@native")

    @property
    def usual_library(self) -> str:
        return "native" if self.restarts > 1 or self.loss != "ce" else super().usual_library


@dataclass(frozen=True)
class MIM(_Stepped):
    """Momentum iterative method: BIM along a running sum of normalised gradients."""

    backends: ClassVar[dict[str, str]] = _backends("mim", "torchattacks", "art", "foolbox")
    notes: ClassVar[dict[str, str]] = {"foolbox": "sums the signs of the gradients, not the gradients"}
    decay: float = 1.0
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("decay", self.decay)


@dataclass(frozen=True)
class CW(Attack):
    """Carlini and Wagner's L2 attack at one constant c, without a search for it."""

    backends: ClassVar[dict[str, str]] = _backends("cw", "foolbox", "torchattacks", "art")
    notes: ClassVar[dict[str, str]] = {
        "torchattacks": "takes any image that is misclassified, whatever kappa; pixels at 0 or 1 cannot move",
        "art": "searches the length of every step",
    }
    same_in_tiers: ClassVar[bool] = True
    minimises: ClassVar[bool] = True
    strength: ClassVar[str] = "c"

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
    notes: ClassVar[dict[str, str]] = {"torchattacks": "overwrites the image that it measures distances from"}
    same_in_tiers: ClassVar[bool] = True
    minimises: ClassVar[bool] = True
    strength: ClassVar[str] = "c"

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
        "native": "benchmark.attacks.native.jsma:jsma",
        **_backends("jsma", "torchattacks", "art"),
    }
    notes: ClassVar[dict[str, str]] = dict.fromkeys(
        ("torchattacks", "art"), "not the same attack: raises two scalars at a time, towards the next class"
    )
    paper_labels: ClassVar[Literal["predicted", "true"]] = "true"
    same_in_tiers: ClassVar[bool] = True

    gamma: float
    eps: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("gamma", self.gamma), ("eps", self.eps)):
            if not 0 < value <= 1:
                raise BadInput(f"{name} is {value:g}; it must be above 0 and at most 1")

    def gradients(self, scalars: int, classes: int) -> int:
        return math.floor(self.gamma * scalars + 1e-9)


@dataclass(frozen=True)
class Evasive(_Linf):
    """PGD that also raises the ensemble's log diversity, to slip past a detector that watches it."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.evasive:evasive"}
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    steps: int = 50
    weight: float = 1.0
    """Weight of the log diversity beside the cross-entropy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise BadInput(f"weight is {self.weight:g}; it must be a number ≥ 0")


@dataclass(frozen=True)
class _Reference(_Linf):
    """A part of reference AutoAttack, with the reference's settings as defaults."""

    keeps_survivors: ClassVar[bool] = True


@dataclass(frozen=True)
class APGDCE(_Reference):
    """Auto-PGD on the cross-entropy: the step size falls where progress stops."""

    backends: ClassVar[dict[str, str]] = _backends("apgd_ce", "pyautoattack", "torchattacks", "art")
    notes: ClassVar[dict[str, str]] = {"art": "returns the last point, not the best one"}
    steps: int = 100
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("restarts", self.restarts)


@dataclass(frozen=True)
class _TargetByTarget(_Reference):
    steps: int = 100
    targets: int = 9
    """Other classes that are tried, the most likely first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("targets", self.targets)

    def gradients(self, scalars: int, classes: int) -> int:
        return self.steps * min(self.targets, classes - 1)


@dataclass(frozen=True)
class APGDT(_TargetByTarget):
    """Auto-PGD on the targeted DLR loss, towards each of the most likely other classes in turn."""

    backends: ClassVar[dict[str, str]] = _backends("apgd_t", "pyautoattack", "torchattacks")
    instead: ClassVar[str] = "use apgd-ce and fab-t"

    @property
    def fewest_classes(self) -> int:
        return 4  # the targeted DLR loss divides by the first class's gap to the third and the fourth


@dataclass(frozen=True)
class FABT(_TargetByTarget):
    """Fast adaptive boundary attack, targeted: the nearest point over the boundary to each other class."""

    backends: ClassVar[dict[str, str]] = _backends("fab_t", "pyautoattack", "torchattacks")


@dataclass(frozen=True)
class Square(_Reference):
    """Random search with squares, without any gradient: the witness against gradients that are masked."""

    backends: ClassVar[dict[str, str]] = _backends("square", "pyautoattack", "torchattacks", "art")
    notes: ClassVar[dict[str, str]] = {
        "art": "asks the model three times per query; its squares shrink sooner when queries are few"
    }
    query_only: ClassVar[bool] = True
    queries: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("queries", self.queries)

    def gradients(self, scalars: int, classes: int) -> float:
        return FORWARD * self.queries


@dataclass(frozen=True)
class AutoAttack(_Reference):
    """Reference AutoAttack, standard version: apgd-ce, apgd-t, fab-t and square, each on what is left."""

    backends: ClassVar[dict[str, str]] = _backends("autoattack", "pyautoattack")
    notes: ClassVar[dict[str, str]] = {"pyautoattack": "without apgd-t on 2 or 3 classes: its loss needs 4"}

    @property
    def parts(self) -> dict[str, Attack]:
        """What it is made of, in the order it runs."""
        eps = self.eps
        return {"apgd-ce": APGDCE(eps), "apgd-t": APGDT(eps), "fab-t": FABT(eps), "square": Square(eps)}

    def left_out(self, classes: int) -> tuple[str, ...]:
        return tuple(name for name, part in self.parts.items() if classes < part.fewest_classes)

    def gradients(self, scalars: int, classes: int) -> float:
        skipped = self.left_out(classes)
        return sum(part.gradients(scalars, classes) for name, part in self.parts.items() if name not in skipped)


@dataclass(frozen=True)
class MORA(_Linf):
    """Ascends the members' logits, weighted by their leverage, together with the averaged output."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.mora:mora"}
    steps: int = 100
    targets: int = 9
    """Other classes that are aimed at, the most likely first, after the untargeted ascents."""
    average: Literal["probabilities", "logits", "votes"] = "probabilities"
    """How the ensemble combines its members."""
    mixes: ClassVar[tuple[float, ...]] = (0.5, 0.0, 0.25, 0.75, 1.0)
    """Shares of the members' logits in the loss of the untargeted ascents, in the order they are tried."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("targets", self.targets)

    def gradients(self, scalars: int, classes: int) -> int:
        return self.steps * (len(self.mixes) + min(self.targets, classes - 1))


@dataclass(frozen=True)
class Cascade(_Linf):
    """PGD-20, PGD-200 and Brendel and Bethge's boundary walk, three times each on what is left."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.cascade:cascade"}
    walks: int = 3
    """Boundary walks of 1,000 steps; they need numba."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("walks", self.walks)

    @property
    def ascents(self) -> tuple[PGD, PGD]:
        """The short ones and the long ones."""
        return (
            PGD(self.eps, steps=20, step_size=self.eps / 10, restarts=3),
            PGD(self.eps, steps=200, step_size=self.eps / 20, restarts=3),
        )

    def gradients(self, scalars: int, classes: int) -> float:
        return sum(ascent.gradients(scalars, classes) for ascent in self.ascents) + 1000 * self.walks


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
