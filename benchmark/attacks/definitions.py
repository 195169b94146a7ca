"""The attacks: their parameters with the paper's defaults, their threat models, and the libraries that have them.

Each attack is a frozen dataclass; its fields are the parameters of a spec such as ``pgd(eps=0.01)``. ``backends`` maps
a library to the function that runs the attack there. The first library is the default, chosen by the evidence in
docs/attacks.md.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from benchmark.attacks.bounds import NORMS, SYMBOLS, Bound, Norm
from defenses import specs
from defenses.errors import BadInput

FORWARD = 0.5
"""Cost of a forward pass in gradients: with frozen weights, a backward pass costs about as much as a forward pass."""


@dataclass(frozen=True)
class Attack:
    """Base of every attack."""

    backends: ClassVar[dict[str, str]] = {}
    notes: ClassVar[dict[str, str]] = {}
    """Known differences of each library; docs/attacks.md has the evidence."""
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    """The ensemble's output that the authors passed to the attack as logits (tier ``paper``)."""
    paper_labels: ClassVar[Literal["predicted", "true"]] = "predicted"
    """The labels the authors' attack started from (tier ``paper``)."""

    same_in_tiers: ClassVar[bool] = False
    """True if tier ``strict`` reuses the images of tier ``paper``: the attack gets the same input for every correctly
    classified image. Misclassified images count as wrong, and stay in the batch."""
    keeps_survivors: ClassVar[bool] = False
    """True if a failed attack returns the clean image: an unmoved image is then no evidence of a fault."""
    query_only: ClassVar[bool] = False
    """True if the attack uses no gradient, so gradient masking does not affect it."""
    steps_once: ClassVar[bool] = False
    """True if the attack takes one step and has no parameter for the number of steps."""
    minimises: ClassVar[bool] = False
    """True if the attack minimises the perturbation, and returns the clean image if it fails."""
    strength: ClassVar[str] = ""
    """The parameter that makes the attack stronger; for an attack with a bound, the radius."""
    scaled: ClassVar[tuple[str, ...]] = ("step_size",)
    """Parameters that grow in proportion to the strength."""
    work: ClassVar[tuple[str, ...]] = ("steps", "restarts", "queries")
    """Parameters that increase the work at the same strength."""
    instead: ClassVar[str] = ""
    """The alternative for a model with too few classes."""

    @property
    def usual_library(self) -> str:
        """The library that runs it by default."""
        return next(iter(self.backends))

    def backend(self, library: str) -> Callable[..., Any]:
        """The function that runs it in a library."""
        module, _, function = self.backends[library].partition(":")
        return getattr(importlib.import_module(module), function)

    @property
    def bound(self) -> Bound | None:
        """The ball that an adversarial image must stay in, from ``eps`` and ``norm``; None without a bound."""
        eps, norm = getattr(self, "eps", None), getattr(self, "norm", None)
        return Bound(norm, float(eps)) if norm in NORMS and isinstance(eps, (int, float)) else None

    @property
    def bound_known(self) -> bool:
        """Whether its class defines the bound; otherwise the spec must define it with ``bound=``.

        A class with ``eps``, but without ``norm`` and without its own `bound`, does not define one.
        """
        return type(self).bound is not Attack.bound or self.bound is not None or not hasattr(self, "eps")

    @property
    def minimised(self) -> Norm | None:
        """The norm that it minimises; None if it does not minimise the perturbation."""
        return None

    @property
    def averages(self) -> bool:
        """True if the attack averages over a randomised model by itself, without ``eot``."""
        return False

    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, defaults included: part of a cell's identity.

        A parameter that was added later counts only if it differs from its default, so that older cells stay valid.
        """
        values = {key: (one, getattr(self, one.name)) for key, one in specs.parameters(type(self)).items()}
        return {key: value for key, (one, value) in values.items() if not (came_later(one) and value == one.default)}

    def refusal(self, library: str) -> str:
        """Why a library cannot run it with these parameters, and the remedy; empty if it can."""
        return ""

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Attack:
        """The attack with these settings."""
        fields = specs.parameters(cls)
        return cls(**{fields[key].name: value for key, value in settings.items()})

    @property
    def parameters(self) -> str:
        """The text between the parentheses of its spec."""
        return specs.canonical("", self).strip("()")

    @property
    def single_step(self) -> bool:
        """True when it takes one step along one gradient."""
        return self.steps_once or self.settings().get("steps") == 1

    def gradients(self, scalars: int, classes: int) -> float:
        """Largest number of gradients for one image of ``scalars`` scalars; a query counts as `FORWARD`."""
        return getattr(self, "steps", 1) * getattr(self, "restarts", 1)

    @property
    def cost_known(self) -> bool:
        """Whether `gradients` is known; otherwise it is a guess."""
        return True

    @property
    def fewest_classes(self) -> int:
        """Smallest number of classes; with fewer, the attack's loss does not exist or is constant."""
        return 2

    def left_out(self, classes: int) -> tuple[str, ...]:
        """Parts that do not run on a model with ``classes`` classes."""
        return ()

    @property
    def wants_target(self) -> bool:
        """True if the attack is targeted."""
        return bool(self.settings().get("targeted"))

    @property
    def can_aim(self) -> bool:
        """True if it has a targeted and an untargeted form."""
        return hasattr(self, "targeted")

    def aimed(self, targeted: bool) -> Attack:
        """The targeted or the untargeted form of the attack."""
        return replace(self, targeted=targeted)  # type: ignore[call-arg]

    def full_name(self, name: str, library: str) -> str:
        """The text before the parentheses of its spec, with the library."""
        return f"{name}@{library}"

    @property
    def named_in_full(self) -> bool:
        """True if its name has a meaning only together with its library or file."""
        return False


LATER = "later"


def came_later(parameter: Any) -> bool:
    """Whether the parameter was added after the first cells were written."""
    return bool(parameter.metadata.get(LATER))


@dataclass(frozen=True)
class _Linf(Attack):
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "probabilities"
    strength: ClassVar[str] = "eps"

    eps: float

    def __post_init__(self) -> None:
        self._check_eps()
        _at_least_one("steps", getattr(self, "steps", 1))

    def _check_eps(self) -> None:
        if not 0 < self.eps <= 1:
            raise BadInput(f"eps is {self.eps:g}; images lie in [0, 1], so eps must be above 0 and at most 1")

    @property
    def bound(self) -> Bound:
        return Bound("linf", self.eps)


@dataclass(frozen=True)
class _AnyBall(_Linf):
    """An attack that also works in L2 and L1 balls; ``norms_of`` lists the libraries with these norms."""

    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {}
    """Library to its norms besides L∞."""

    norm: Literal["linf", "l2", "l1"] = field(default="linf", metadata={LATER: True})
    """The norm of eps."""

    def _check_eps(self) -> None:
        if self.norm == "linf":
            super()._check_eps()
        _positive("eps", self.eps)

    @property
    def bound(self) -> Bound:
        return Bound(self.norm, self.eps)

    def refusal(self, library: str) -> str:
        if self.norm == "linf" or self.norm in self.norms_of.get(library, ()):
            return ""
        others = [name for name, norms in self.norms_of.items() if self.norm in norms]
        return f"{library} does not have it in {SYMBOLS[self.norm]}; {' and '.join(others)} {_have(others)}"

    @property
    def usual_library(self) -> str:
        return next(library for library in self.backends if not self.refusal(library))


def _have(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


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
    """Basic iterative method: steps of size eps/steps, starting from the clean image."""

    backends: ClassVar[dict[str, str]] = _backends("bim", "torchattacks", "art", "foolbox")
    steps: int = 10
    targeted: bool = False


@dataclass(frozen=True)
class _Stepped(_Linf):
    steps: int = 10
    step_size: float | None = None
    """Step size; the default is eps/steps, as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            _positive("step_size", self.step_size)

    @property
    def step(self) -> float:
        """Size of one step."""
        return self.eps / self.steps if self.step_size is None else self.step_size


@dataclass(frozen=True)
class PGD(_Stepped, _AnyBall):
    """Projected gradient descent: steepest ascent from a uniformly drawn start in the ball."""

    backends: ClassVar[dict[str, str]] = {
        **_backends("pgd", "torchattacks", "art", "foolbox"),
        "native": "benchmark.attacks.native.ascent:pgd",
    }
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {
        "native": ("l2", "l1"),
        "torchattacks": ("l2",),
        "art": ("l2", "l1"),
        "foolbox": ("l2", "l1"),
    }
    targeted: bool = False
    restarts: int = 1
    """Starts per image; a fooled image is not restarted."""
    loss: Literal["ce", "margin", "dlr", "pma"] = "ce"
    """The maximised loss: cross-entropy, the margin to the best other class, the scaled margin (DLR), or the margin of
    the probabilities (PMA)."""
    instead: ClassVar[str] = "use loss=margin or loss=ce"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("restarts", self.restarts)
        if self.targeted and self.loss == "dlr":
            raise BadInput(
                "loss=dlr has no gradient if the target is the third class; use loss=margin for targeted attacks"
            )

    @property
    def fewest_classes(self) -> int:
        return 3 if self.loss == "dlr" else 2  # DLR divides by the gap between the first and the third class

    def refusal(self, library: str) -> str:
        """Only the native attack has restarts on survivors and a choice of loss."""
        if library != "native" and (self.restarts > 1 or self.loss != "ce"):
            return f"pgd@{library} has neither restarts nor a choice of loss; use pgd@native"
        return super().refusal(library)

    @property
    def usual_library(self) -> str:
        if self.norm == "l1":  # a dense step along the gradient, as foolbox takes it, hardly moves an image in L1
            return "native"
        return super().usual_library


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
    """Carlini and Wagner's L2 attack with a fixed constant c, without a binary search."""

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
    """Stop if the summed loss of the batch did not fall over a tenth of the steps, as the authors did."""
    targeted: bool = False

    def __post_init__(self) -> None:
        _check_minimiser(self)

    @property
    def minimised(self) -> Norm:
        return "l2"


@dataclass(frozen=True)
class EAD(Attack):
    """Elastic-net attack with a fixed constant c: minimises the sum of L2 and beta·L1."""

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

    @property
    def minimised(self) -> Norm:
        return "l1"


@dataclass(frozen=True)
class FMN(Attack):
    """Fast minimum norm: maximises the margin in a ball that shrinks if the image is fooled and grows if not."""

    backends: ClassVar[dict[str, str]] = _backends("fmn", "foolbox")
    notes: ClassVar[dict[str, str]] = {
        "foolbox": "in L2 and L1 projected by the adapter: bare, it stops short of the boundary"
    }
    same_in_tiers: ClassVar[bool] = True
    minimises: ClassVar[bool] = True

    norm: Norm
    """The minimised norm of the perturbation."""
    steps: int = 100
    step_size: float = 1.0
    """L2 length of the first step; it falls to a hundredth of that."""
    gamma: float = 0.05
    """Share by which the ball grows or shrinks at first; it falls to 0.001."""
    targeted: bool = False

    def __post_init__(self) -> None:
        Bound(self.norm, 1.0)  # refuses an unknown norm
        _at_least_one("steps", self.steps)
        _positive("step_size", self.step_size)
        _share("gamma", self.gamma)

    @property
    def minimised(self) -> Norm | None:
        norm: Norm | None = self.settings().get("norm")  # also for a recorded attack, which has no field norm
        return norm


@dataclass(frozen=True)
class DDN(Attack):
    """Decoupled direction and norm: L2 steps along the gradient, on a sphere that shrinks if the image is fooled."""

    backends: ClassVar[dict[str, str]] = _backends("ddn", "foolbox")
    same_in_tiers: ClassVar[bool] = True
    minimises: ClassVar[bool] = True

    steps: int = 100
    init_eps: float = 1.0
    """Radius of the first sphere."""
    gamma: float = 0.05
    """Share by which the sphere grows or shrinks."""
    targeted: bool = False

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)
        _positive("init_eps", self.init_eps)
        _share("gamma", self.gamma)

    @property
    def minimised(self) -> Norm:
        return "l2"


@dataclass(frozen=True)
class JSMA(Attack):
    """Saliency-map attack as the authors ran it: floor(gamma·D) steps, each lowers the most salient scalar by eps."""

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

    @property
    def bound(self) -> None:
        """None: gamma limits the number of changed scalars, and eps is the step size of one scalar."""
        return None

    def gradients(self, scalars: int, classes: int) -> int:
        return math.floor(self.gamma * scalars + 1e-9)


@dataclass(frozen=True)
class Evasive(_Linf):
    """PGD that also maximises the ensemble's log diversity, to evade a detector of low diversity."""

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
class _Reference(_AnyBall):
    """A part of the reference AutoAttack, with the reference's settings as defaults."""

    keeps_survivors: ClassVar[bool] = True


@dataclass(frozen=True)
class APGDCE(_Reference):
    """Auto-PGD on the cross-entropy; the step size shrinks when progress stops."""

    backends: ClassVar[dict[str, str]] = _backends("apgd_ce", "pyautoattack", "torchattacks", "art")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {
        "pyautoattack": ("l2", "l1"),
        "torchattacks": ("l2",),
        "art": ("l2",),
    }
    notes: ClassVar[dict[str, str]] = {"art": "returns the last point, not the best one"}
    steps: int = 100
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("restarts", self.restarts)


@dataclass(frozen=True)
class APGD(_Reference):
    """Auto-PGD with a choice of loss; apgd-t is the targeted form."""

    backends: ClassVar[dict[str, str]] = _backends("apgd", "pyautoattack")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"pyautoattack": ("l2", "l1")}
    instead: ClassVar[str] = "use loss=margin or loss=pma"
    steps: int = 100
    restarts: int = 1
    loss: Literal["ce", "margin", "dlr", "pma"] = "dlr"
    """The maximised loss: cross-entropy (apgd-ce), the margin to the best other class, the scaled margin (DLR, the
    library's own), or the margin of the probabilities (PMA)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("restarts", self.restarts)

    @property
    def fewest_classes(self) -> int:
        return 3 if self.loss == "dlr" else 2  # DLR divides by the gap between the first and the third class


@dataclass(frozen=True)
class _TargetByTarget(_Reference):
    steps: int = 100
    targets: int = 9
    """Number of other classes that are tried, the most likely first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("targets", self.targets)

    def gradients(self, scalars: int, classes: int) -> int:
        return self.steps * min(self.targets, classes - 1)


@dataclass(frozen=True)
class APGDT(_TargetByTarget):
    """Auto-PGD on the targeted DLR loss, towards each of the most likely other classes in turn."""

    backends: ClassVar[dict[str, str]] = _backends("apgd_t", "pyautoattack", "torchattacks")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"pyautoattack": ("l2", "l1"), "torchattacks": ("l2",)}
    instead: ClassVar[str] = "use apgd-ce and fab-t"

    @property
    def fewest_classes(self) -> int:
        return 4  # the targeted DLR loss divides by the first class's gap to the third and the fourth


@dataclass(frozen=True)
class FABT(_TargetByTarget):
    """Targeted fast adaptive boundary attack: the nearest point beyond the boundary to each other class."""

    backends: ClassVar[dict[str, str]] = _backends("fab_t", "pyautoattack", "torchattacks")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"pyautoattack": ("l2", "l1"), "torchattacks": ("l2",)}


@dataclass(frozen=True)
class Square(_Reference):
    """Random search with squares; it uses no gradient, so it reveals gradient masking."""

    backends: ClassVar[dict[str, str]] = _backends("square", "pyautoattack", "torchattacks", "art")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {
        "pyautoattack": ("l2", "l1"),
        "torchattacks": ("l2",),
        "art": ("l2",),
    }
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
    """Reference AutoAttack: apgd-ce, apgd-t, fab-t and square, each on the remaining images.

    Version ``rand``, for randomised models: apgd-ce and apgd-dlr, with gradients averaged over 20 draws.
    """

    backends: ClassVar[dict[str, str]] = _backends("autoattack", "pyautoattack")
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"pyautoattack": ("l2", "l1")}
    notes: ClassVar[dict[str, str]] = {"pyautoattack": "without apgd-t on 2 or 3 classes: its loss needs 4"}
    rand_draws: ClassVar[int] = 20
    """Draws that version ``rand`` of the reference averages."""

    version: Literal["standard", "rand"] = field(default="standard", metadata={LATER: True})
    """The reference's version: ``rand`` is for randomised models."""

    @property
    def averages(self) -> bool:
        return self.version == "rand"

    @property
    def parts(self) -> dict[str, Attack]:
        """Its parts, in the order of execution."""
        ball: dict[str, Any] = {"eps": self.eps, "norm": self.norm}
        sparse = self.norm == "l1"  # in L1, the reference uses more restarts and fewer targets
        return {
            "apgd-ce": APGDCE(**ball, restarts=5 if sparse else 1),
            "apgd-t": APGDT(**ball, targets=5 if sparse else 9),
            "fab-t": FABT(**ball),
            "square": Square(**ball),
        }

    def left_out(self, classes: int) -> tuple[str, ...]:
        if self.version == "rand":
            return ("apgd-dlr",) if classes < 3 else ()
        return tuple(name for name, part in self.parts.items() if classes < part.fewest_classes)

    def gradients(self, scalars: int, classes: int) -> float:
        if self.version == "rand":
            one = self.parts["apgd-ce"].gradients(scalars, classes)
            return self.rand_draws * one * (2 - len(self.left_out(classes)))
        skipped = self.left_out(classes)
        return sum(part.gradients(scalars, classes) for name, part in self.parts.items() if name not in skipped)


@dataclass(frozen=True)
class MORA(_AnyBall):
    """For ensembles: maximises a loss of the averaged output and of the members' logits, weighted by leverage."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.mora:mora"}
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"native": ("l2", "l1")}
    steps: int = 100
    targets: int = 9
    """Number of target classes, the most likely first; their ascents follow the untargeted ones."""
    average: Literal["ensemble", "probabilities", "logits", "votes"] = "ensemble"
    """The rule that combines the members; ``ensemble`` is the ensemble's own rule."""
    variant: Literal["derived", "reference"] = field(default="derived", metadata={LATER: True})
    """How members are scaled and weighted: by the derivation in benchmark/attacks/native/mora.py, or as in the authors'
    public code."""
    mixes: ClassVar[tuple[float, ...]] = (0.5, 0.0, 0.25, 0.75, 1.0)
    """Shares of the members' logits in the loss of the untargeted ascents, in the order they are tried."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("targets", self.targets)

    def settings(self) -> dict[str, Any]:
        own = super().settings()
        return {**own, "average": _AVERAGES.get(self.average, self.average)}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Attack:
        read = {written: value for value, written in _AVERAGES.items()}
        return super().from_settings({**settings, "average": read.get(settings["average"], settings["average"])})

    def gradients(self, scalars: int, classes: int) -> int:
        return self.steps * (len(self.mixes) + min(self.targets, classes - 1))


_AVERAGES = {"ensemble": "probabilities", "probabilities": "always probabilities"}
"""Names of MORA's ``average`` in files: the first ensembles had only one rule, the mean of the probabilities."""


@dataclass(frozen=True)
class ARC(_AnyBall):
    """For randomised ensembles: crosses the nearest boundary of each member in turn; no step raises the accuracy."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.arc:arc"}
    norms_of: ClassVar[dict[str, tuple[Norm, ...]]] = {"native": ("l2",)}
    paper_output: ClassVar[Literal["probabilities", "log-probabilities"]] = "log-probabilities"
    steps: int = 20
    """Rounds over all members."""
    targets: int = 9
    """Number of other classes that are searched for the nearest boundary, the most likely first."""
    restarts: int = 1
    """Starts per image: the image itself, then points drawn in the ball."""

    def __post_init__(self) -> None:
        if self.norm == "l1":
            raise BadInput("arc works in linf and l2; for l1 use pgd or mora")
        super().__post_init__()
        _at_least_one("targets", self.targets)
        _at_least_one("restarts", self.restarts)

    @property
    def averages(self) -> bool:
        return True

    def gradients(self, scalars: int, classes: int) -> float:
        return self.steps * self.restarts * (min(self.targets, classes - 1) + 2)


@dataclass(frozen=True)
class Cascade(_Linf):
    """PGD-20, PGD-200 and Brendel and Bethge's boundary attack, three runs each on the surviving images."""

    backends: ClassVar[dict[str, str]] = {"native": "benchmark.attacks.native.cascade:cascade"}
    walks: int = 3
    """Boundary walks of 1,000 steps; they need numba."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("walks", self.walks)

    @property
    def ascents(self) -> tuple[PGD, PGD]:
        """PGD-20 and PGD-200."""
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


def _share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise BadInput(f"{name} is {value:g}; it must be above 0 and below 1")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise BadInput(f"{name} is {value}; it must be at least 1")
