"""Facts about the attack classes that the libraries do not provide: bounds, targets, and reasons for exclusion.

Nothing here imports a library, because the cells of a run must be readable without the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmark.attacks.bounds import NORMS, SYMBOLS, Bound, Norm

Library = Literal["torchattacks", "art", "foolbox"]
LIBRARIES: tuple[Library, ...] = ("torchattacks", "art", "foolbox")
"""Libraries whose classes can be named in a spec."""

_DETECTION = "attacks object detectors or trackers"
_SPEECH = "attacks speech recognisers"
_VIDEO = "attacks videos"
_PATCH = "makes a patch to be put on images, not adversarial images"
_GUIDE = "needs guide images beside the images that it attacks"
_TENSORFLOW = "needs TensorFlow"
_PHYSICAL = "needs OpenCV and stickers with a mask for every image"

LEFT_OUT: dict[Library, dict[str, str]] = {
    "torchattacks": {
        "LGV": "needs the training data, to train the model further",
        "MultiAttack": "puts other attacks together; name each of them",
        "VANILA": "returns the clean images",
    },
    "art": {
        "AdversarialPatch": _PATCH,
        "AdversarialPatchNumpy": _PATCH,
        "AdversarialPatchPyTorch": _PATCH,
        "AdversarialPatchTensorFlowV2": _PATCH,
        "AdversarialTexturePyTorch": _DETECTION,
        "CarliniWagnerASR": _SPEECH,
        "DPatch": _DETECTION,
        "DecisionTreeAttack": "attacks decision trees",
        "FeatureAdversariesNumpy": _GUIDE,
        "FeatureAdversariesPyTorch": _GUIDE,
        "FeatureAdversariesTensorFlowV2": _GUIDE,
        "FrameSaliencyAttack": _VIDEO,
        "GeoDA": "calls numpy.mat, which NumPy 2 no longer has",
        "GRAPHITEBlackbox": _PHYSICAL,
        "GRAPHITEWhiteboxPyTorch": _PHYSICAL,
        "HighConfidenceLowUncertainty": "attacks Gaussian processes",
        "ImperceptibleASR": _SPEECH,
        "ImperceptibleASRPyTorch": _SPEECH,
        "LaserAttack": "needs a generator of laser beams",
        "LowProFool": "attacks tables: it needs the importance of every feature",
        "MalwareGDTensorFlow": "attacks malware detectors",
        "OverTheAirFlickeringPyTorch": _VIDEO,
        "OverloadPyTorch": _DETECTION,
        "ProjectedGradientDescentTensorFlowV2": _TENSORFLOW,
        "RobustDPatch": _DETECTION,
        "SNAL": _DETECTION,
    },
    "foolbox": {
        "BinarizationRefinementAttack": "refines images that another attack made for a model with binary inputs",
    },
}
"""Classes that cannot take part, and why."""
NEEDS_PACKAGE = {
    ("art", "AutoAttack"): "multiprocess",
    ("art", "CompositeAdversarialAttackPyTorch"): "kornia",
    **{("foolbox", f"{norm}BrendelBethgeAttack"): "numba" for norm in ("L0", "L1", "L2", "Linfinity")},
}
"""Packages that a class imports and its library does not install."""
NEEDS_COLOUR = frozenset(
    {
        *(("torchattacks", name) for name in ("PIFGSM", "PIFGSMPP", "TIFGSM")),
        ("art", "CompositeAdversarialAttackPyTorch"),
    }
)
"""Classes that accept only images with three channels."""
MINIMUM_NORM: dict[Library, dict[str, Norm | None]] = {
    "torchattacks": {"CW": "l2", "DeepFool": "l2", "EADEN": "l1", "EADL1": "l1", "SparseFool": None},
    "art": {
        "BoundaryAttack": "l2",
        "BrendelBethgeAttack": None,
        "CarliniL0Method": "l0",
        "CarliniL2Method": "l2",
        "CarliniLInfMethod": "linf",
        "DeepFool": "l2",
        "ElasticNet": "l1",
        "HopSkipJump": None,
        "NewtonFool": "l2",
        "SignOPTAttack": "l2",
        "ZooAttack": "l2",
    },
    "foolbox": {
        "BinarySearchContrastReductionAttack": None,
        "BoundaryAttack": "l2",
        "DDNAttack": "l2",
        "DatasetAttack": None,
        "EADAttack": "l1",
        "GaussianBlurAttack": None,
        "HopSkipJumpAttack": None,
        "InversionAttack": None,
        "L0BrendelBethgeAttack": "l0",
        "L0FMNAttack": "l0",
        "L1BrendelBethgeAttack": "l1",
        "L1FMNAttack": "l1",
        "L2BrendelBethgeAttack": "l2",
        "L2CarliniWagnerAttack": "l2",
        "L2DeepFoolAttack": "l2",
        "L2FMNAttack": "l2",
        "LInfFMNAttack": "linf",
        "LinearSearchBlendedUniformNoiseAttack": None,
        "LinearSearchContrastReductionAttack": None,
        "LinfDeepFoolAttack": "linf",
        "LinfinityBrendelBethgeAttack": "linf",
        "NewtonFoolAttack": "l2",
        "PointwiseAttack": None,
        "SaltAndPepperNoiseAttack": "l2",
    },
}
"""Classes that minimise the perturbation and have no bound, with the norm that they minimise.

None if a parameter chooses the norm (`NORM_PARAMETERS`), or if the class has no single norm: SparseFool searches for
few changed pixels through L1, and Pointwise first for few changed scalars, then for small changes.
"""
NORM_PARAMETERS = ("norm", "constraint", "distance", "decision_rule")
"""Parameters that choose the norm of a minimum-norm class."""
UNTARGETED: dict[Library, frozenset[str]] = {
    "torchattacks": frozenset({"APGD", "APGDT", "AutoAttack", "DeepFool", "GN", "PIFGSM", "SparseFool", "TPGD"}),
    "art": frozenset(),  # a class with a targeted form has a parameter `targeted`
    "foolbox": frozenset({"NewtonFoolAttack", "SaltAndPepperNoiseAttack", "VirtualAdversarialAttack"}),
}
"""Attack classes without a targeted form."""
ALWAYS_TARGETED = frozenset(
    {("art", "SaliencyMapMethod"), ("art", "TargetedUniversalPerturbation"), ("foolbox", "GenAttack")}
)
"""Classes that always treat the given labels as targets."""
SURVIVORS_UNMOVED = frozenset(
    {
        *(("torchattacks", name) for name in ("APGD", "APGDT", "AutoAttack", "FAB", "OnePixel", "Pixle", "Square")),
        *(("art", name) for name in ("AutoAttack", "PixelAttack", "SpatialTransformation", "SquareAttack")),
        *(("art", name) for name in ("SimBA", "ThresholdAttack")),
        ("foolbox", "SpatialAttack"),
    }
)
"""Classes that return the clean image if the attack fails."""
QUERY_ONLY = frozenset(
    {
        *(("torchattacks", name) for name in ("GN", "OnePixel", "Pixle", "SPSA", "Square")),
        *(("art", name) for name in ("PixelAttack", "SimBA", "SpatialTransformation", "SquareAttack")),
        *(("art", name) for name in ("ThresholdAttack",)),
        *(("foolbox", name) for name in ("GenAttack", "L2ContrastReductionAttack", "SpatialAttack")),
        *(("foolbox", f"L2{kind}Additive{noise}NoiseAttack") for kind in ("", "Repeated", "ClippingAware",
          "ClippingAwareRepeated") for noise in ("Gaussian", "Uniform")),
        *(("foolbox", f"Linf{kind}AdditiveUniformNoiseAttack") for kind in ("", "Repeated")),
    }
)  # fmt: skip
"""Classes with a bound that use no gradient."""
ONE_STEP = frozenset(
    {
        *(("torchattacks", name) for name in ("FGSM", "FFGSM")),
        ("art", "FastGradientMethod"),
        *(("foolbox", f"{norm}FastGradientAttack") for norm in ("L1", "L2", "Linf")),
    }
)
"""Classes that take one step along one gradient."""
_STARTS = "images without an adversarial start come back clean; the library gives the whole batch up"
_UNTARGETED = "untargeted unless asked; the library's default is targeted"
_CLASSES = "gets the number of classes; the library takes 10"
MENDED: dict[tuple[str, str], str] = {
    **{("torchattacks", name): _CLASSES for name in ("APGDT", "AutoAttack", "FAB")},
    ("torchattacks", "JSMA"): "aims at the next of the model's classes; the library takes 10",
    **{("art", name): _UNTARGETED for name in ("BoundaryAttack", "SignOPTAttack")},
    ("art", "SaliencyMapMethod"): "gets drawn targets; it takes labels for targets",
    ("art", "TargetedUniversalPerturbation"): "gets drawn targets; it takes labels for targets",
    ("art", "ShadowAttack"): "one image at a time",
    ("art", "SimBA"): "gets probabilities, one image at a time",
    ("art", "VirtualAdversarialMethod"): "gets probabilities",
    ("art", "ZooAttack"): "one image at a time",
    ("foolbox", "DatasetAttack"): "draws from the other images of the batch",
    ("foolbox", "GenAttack"): "gets drawn targets; it has no untargeted form",
    **{
        ("foolbox", name): _STARTS
        for name in (
            "BoundaryAttack",
            "HopSkipJumpAttack",
            "L0BrendelBethgeAttack",
            "L1BrendelBethgeAttack",
            "L2BrendelBethgeAttack",
            "LinfinityBrendelBethgeAttack",
            "PointwiseAttack",
        )
    },
}
"""Adaptations of classes that would otherwise fail or give misleading results."""
RADII = ("eps", "max_epsilon")
"""Parameters that are the radius of the bound."""
_FIXED_NORMS: dict[tuple[str, str], Norm] = {
    ("art", "BasicIterativeMethod"): "linf",
    ("art", "VirtualAdversarialMethod"): "l2",
    ("foolbox", "GenAttack"): "linf",
    ("foolbox", "SparseL1DescentAttack"): "l1",
    ("foolbox", "VirtualAdversarialAttack"): "l2",
}
_OTHER_BALLS = frozenset({("art", "Wasserstein")})
"""Classes whose eps is not the radius of a norm ball."""


@dataclass(frozen=True)
class BoundFacts:
    """How the bound of a class follows from its parameters."""

    kind: Literal["radius", "minimum-norm", "asked for"]
    radius: str = ""
    """The parameter that is the radius."""
    norm: Norm | None = None
    """The norm of the bound, or the minimised norm, if no parameter chooses it."""

    def bound(self, values: Mapping[str, Any]) -> Bound | None:
        """The bound for these parameter values; None if it is unknown or does not exist."""
        norm = self.norm or values.get("norm")
        radius = values.get(self.radius)
        if self.kind != "radius" or norm not in NORMS or not isinstance(radius, (int, float)):
            return None
        return Bound(norm, float(radius))

    def minimised(self, values: Mapping[str, Any]) -> Norm | None:
        """The norm that is minimised for these parameter values; None if it is unknown or does not exist."""
        if self.kind != "minimum-norm":
            return None
        chosen = {str(values.get(key)).lower() for key in NORM_PARAMETERS}
        return next((norm for norm in NORMS if norm in chosen), self.norm)

    @property
    def words(self) -> str:
        """The bound in words, for a list of classes."""
        if self.kind == "radius":
            return f"{self.norm or 'norm'}:{self.radius}"
        if self.kind == "asked for":
            return "bound=… is needed"
        return f"none (minimum {SYMBOLS[self.norm]})" if self.norm else "none (minimum norm)"


def bound_facts(library: str, name: str, parameters: Mapping[str, Any]) -> BoundFacts:
    """The facts about a class with these parameters; an unknown class follows the conventions of its library."""
    minimum_norm = MINIMUM_NORM.get(library, {})  # type: ignore[call-overload]
    if name in minimum_norm:
        return BoundFacts("minimum-norm", norm=minimum_norm[name])
    radius = next((key for key in RADII if key in parameters), "")
    if not radius or (library, name) in _OTHER_BALLS:
        return BoundFacts("asked for")
    if (library, name) in _FIXED_NORMS:
        return BoundFacts("radius", radius, _FIXED_NORMS[library, name])
    if "norm" in parameters:
        return BoundFacts("radius", radius)
    if library == "torchattacks":
        return BoundFacts("radius", radius, "l2" if name.endswith("L2") else "linf")
    prefix = next((norm for norm in NORMS if library == "foolbox" and name.lower().startswith(norm)), None)
    return BoundFacts("radius", radius, prefix) if prefix else BoundFacts("asked for")
