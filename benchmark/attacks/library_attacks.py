"""Every attack class of torchattacks, ART and foolbox by its own name: ``torchattacks:DIFGSM(eps=8/255,steps=20)``."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmark.attacks.bounds import Bound, Norm
from benchmark.attacks.foreign import ForeignAttack
from benchmark.attacks.library_facts import (
    ALWAYS_TARGETED,
    LEFT_OUT,
    LIBRARIES,
    NEEDS_COLOUR,
    NEEDS_PACKAGE,
    ONE_STEP,
    QUERY_ONLY,
    SURVIVORS_UNMOVED,
    UNTARGETED,
    BoundFacts,
    bound_facts,
)
from benchmark.attacks.signatures import Parameter, objects_needed, plain_parameters, read_values, value_text, written
from defenses import specs
from defenses.errors import BadInput
from defenses.registry import did_you_mean

MODULES = {"torchattacks": "torchattacks", "art": "art.attacks.evasion", "foolbox": "foolbox.attacks"}
SET_HERE: dict[str, tuple[str, ...]] = {
    "torchattacks": ("model", "seed", "n_classes", "verbose"),
    "art": ("classifier", "estimator", "estimator_orig", "batch_size", "verbose", "summary_writer"),
    "foolbox": ("init_attack", "tensorboard", "args", "kwargs"),
}
"""Parameters that the harness sets, or that do not affect the result."""
TARGETED = Parameter("targeted", bool, False)


@dataclass(frozen=True)
class LibraryAttack(ForeignAttack):
    """A class of a library, built with its own parameters for every batch."""

    backends: ClassVar[dict[str, str]] = {
        library: f"benchmark.attacks.{library}_backend:run_class" for library in LIBRARIES
    }

    library: str

    @property
    def _place(self) -> tuple[str, str]:
        return self.library, self.callable_name

    @property
    def usual_library(self) -> str:
        return self.library

    def check_images(self, channels: int) -> None:
        """Refuse images that the class does not accept."""
        if self._place in NEEDS_COLOUR and channels != 3:
            raise BadInput(
                f"{self.library}:{self.callable_name} needs images with 3 channels, but these have {channels}; "
                "choose another attack"
            )

    @property
    def facts(self) -> BoundFacts:
        """How its bound follows from its parameters."""
        return bound_facts(*self._place, self.settings())

    @property
    def bound(self) -> Bound | None:
        return self.facts.bound(self.settings())

    @property
    def bound_known(self) -> bool:
        return self.facts.kind == "minimum-norm" or self.bound is not None

    @property
    def minimises(self) -> bool:  # type: ignore[override]
        return self.facts.kind == "minimum-norm"

    @property
    def minimised(self) -> Norm | None:
        return self.facts.minimised(self.settings())

    @property
    def strength(self) -> str:  # type: ignore[override]
        return self.facts.radius

    @property
    def keeps_survivors(self) -> bool:  # type: ignore[override]
        return self._place in SURVIVORS_UNMOVED

    @property
    def query_only(self) -> bool:  # type: ignore[override]
        return self._place in QUERY_ONLY

    @property
    def steps_once(self) -> bool:  # type: ignore[override]
        return self._place in ONE_STEP


@dataclass(frozen=True)
class LibraryClass:
    """An attack class of a library, with the parameters that a spec can set."""

    library: str
    name: str
    target: Any
    aliases: tuple[str, ...] = ()

    @property
    def left_out(self) -> str:
        """Why it cannot be used; empty if it can."""
        reason = LEFT_OUT.get(self.library, {}).get(self.name, "")  # type: ignore[call-overload]
        package = NEEDS_PACKAGE.get((self.library, self.name))
        if package and importlib.util.find_spec(package) is None:
            return f"needs the package {package}: pip install {package}"
        needed = [] if reason else objects_needed(self.target.__init__, ("self", *SET_HERE[self.library]))
        return f"needs {' and '.join(needed)}, which no spec can give" if needed else reason

    @property
    def fixed_epsilon(self) -> bool:
        """Whether it is a foolbox attack that gets its radius at run time, not at construction."""
        return any(base.__name__ == "FixedEpsilonAttack" for base in self.target.__mro__)

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters that a spec can set: those of the constructor, and eps and targeted if they are set elsewhere."""
        found = plain_parameters(self.target.__init__, ("self", *SET_HERE[self.library]))
        if self.fixed_epsilon:
            found = {"eps": Parameter("eps", float), **found}
        if "targeted" in found:
            found["targeted"] = TARGETED  # whatever the library's own default
        elif (self.library, self.name) in ALWAYS_TARGETED:
            found["targeted"] = Parameter("targeted", bool, True)
        elif self.library != "art" and self.name not in UNTARGETED[self.library]:  # type: ignore[index]
            found["targeted"] = TARGETED
        return found

    @property
    def example(self) -> str:
        """Its spec with every parameter and its default."""
        shown = [f"{one.name}={'…' if one.required else value_text(one.default)}" for one in self.parameters.values()]
        return f"{self.library}:{self.name}({','.join(shown)})"

    @property
    def bound_facts(self) -> BoundFacts:
        """How its bound follows from its parameters."""
        return bound_facts(self.library, self.name, self.parameters)

    def read(self, call: specs.Call, bound: Bound | None) -> LibraryAttack:
        """The attack with the parameters of a spec; for foolbox, a bound can replace eps."""
        arguments = dict(call.arguments)
        for key in arguments.keys() & set(SET_HERE[self.library]):
            raise BadInput(f"{key} of {self.library}:{self.name} is set by the harness; omit it")
        if self.fixed_epsilon and "eps" not in arguments:
            norm = self.bound_facts.norm
            if bound is None or bound.norm != norm:
                raise BadInput(
                    f"{self.library}:{self.name} needs eps, its {norm} radius; write {self.name}(eps=…) "
                    f"or {self.name}(bound={norm}:…)"
                )
            arguments["eps"] = repr(bound.radius)
        values = read_values(self.parameters, specs.Call(self.name, arguments), f"{self.library} attack")
        return self.build(values)

    def build(self, values: Mapping[str, Any]) -> LibraryAttack:
        """The attack at these values."""
        if (self.library, self.name) in ALWAYS_TARGETED and not values["targeted"]:
            raise BadInput(f"{self.library}:{self.name} is always targeted; omit targeted=false")
        whole = {name: values[name] for name in self.parameters}
        text = written(self.parameters, whole, self.bound_facts.radius)
        return LibraryAttack(self.name, tuple(whole.items()), text, self.library)


@functools.cache
def library_classes(library: str) -> dict[str, LibraryClass]:
    """The attack classes of an installed library by name, in alphabetic order."""
    module = import_library(library)
    base: Any = {
        "torchattacks": lambda: module.Attack if hasattr(module, "Attack") else module.FGSM.__mro__[1],
        "art": lambda: importlib.import_module("art.attacks.attack").EvasionAttack,
        "foolbox": lambda: module.Attack,
    }[library]()
    names: dict[Any, list[str]] = {}
    for name, value in sorted(vars(module).items()):
        if inspect.isclass(value) and issubclass(value, base) and value is not base:
            names.setdefault(value, []).append(name)
    found = [
        LibraryClass(library, target.__name__, target, tuple(name for name in aliases if name != target.__name__))
        for target, aliases in names.items()
    ]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def import_library(library: str) -> Any:
    """The module with the attack classes of a library."""
    from benchmark.attacks import library_version

    if library not in MODULES:
        raise BadInput(f"unknown attack library {library!r}; {did_you_mean(library, MODULES)}")
    library_version(library)  # raises an error with the install command if the library is missing
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(MODULES[library])


def find_class(library: str, name: str) -> LibraryClass:
    """A class of a library by its name or by an alias of the library."""
    known = library_classes(library)
    by_alias = {alias: one for one in known.values() for alias in (one.name, *one.aliases)}
    if name not in by_alias:
        raise BadInput(f"{library} has no attack class {name!r}; {did_you_mean(name, by_alias)}")
    found = by_alias[name]
    if found.left_out:
        raise BadInput(f"{library}:{found.name} cannot be used: it {found.left_out}")
    return found
