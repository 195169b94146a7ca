"""Attacks by name: ``pgd(eps=0.01)`` runs the default library's, ``pgd@art(eps=0.01)`` another's."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import Attack
from defenses import specs
from defenses.errors import BadInput
from defenses.registry import Registry, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

    Backend = Callable[[nn.Module, Tensor, Tensor, Any], Tensor]
    """(model, images, labels, attack) → adversarial images; ``labels`` are the targets of a targeted attack."""

ATTACKS: Registry[type[Attack]] = Registry("attack")
for _name in ("FGSM", "BIM", "PGD", "MIM", "JSMA", "CW", "EAD", "Evasive", "Square", "AutoAttack", "MORA", "Cascade"):
    ATTACKS.register(_name.lower(), f"benchmark.attacks.definitions:{_name}")
for _name, _class in (("apgd-ce", "APGDCE"), ("apgd-t", "APGDT"), ("fab-t", "FABT")):
    ATTACKS.register(_name, f"benchmark.attacks.definitions:{_class}")


@dataclass(frozen=True)
class NamedAttack:
    """An attack, the library that runs it and its version; ``text`` stands for all but the version."""

    name: str
    library: str
    attack: Attack
    version: str = ""

    @property
    def label(self) -> str:
        """Spec without the library, such as ``pgd(eps=0.01)``."""
        return self._spec(self.name)

    @property
    def text(self) -> str:
        """Canonical spec, such as ``pgd@torchattacks(eps=0.01)``."""
        return self._spec(f"{self.name}@{self.library}")

    @property
    def title(self) -> str:
        """Spec for readers: the library is named where it is not the attack's first."""
        first = next(iter(self.attack.backends), "")
        return self.label if self.library == first else self.text

    @property
    def bound(self) -> Bound | None:
        """The ball that its images must stay in."""
        return self.attack.bound

    def _spec(self, name: str) -> str:
        return f"{name}({self.attack.parameters})" if self.attack.parameters else name

    def check_classes(self, classes: int) -> None:
        """Refuse a model or dataset with fewer classes than the attack needs."""
        fewest = self.attack.fewest_classes
        if classes < fewest:
            raise BadInput(f"{self.label} needs {fewest} classes, and here are {classes}; {self.attack.instead}")

    def remark(self, classes: int) -> str:
        """What it leaves out with so few classes, in words; empty where that is nothing."""
        return without(self.label, self.attack.left_out(classes), classes)

    def backend(self) -> Backend:
        """The function that runs it."""
        module, _, function = self.attack.backends[self.library].partition(":")
        return getattr(importlib.import_module(module), function)


@dataclass(frozen=True)
class RecordedAttack(Attack):
    """An attack known from the record of a cell alone: its package is gone, or its parameters have changed since."""

    written: str
    """Its parameters as they were written."""
    values: tuple[tuple[str, Any], ...] = field(repr=False)
    limit: Bound | None = None

    @property
    def bound(self) -> Bound | None:
        return self.limit

    @property
    def parameters(self) -> str:
        return self.written

    def settings(self) -> dict[str, Any]:
        return dict(self.values)


def without(what: str, names: Sequence[str], classes: int) -> str:
    """That some attacks are left out for want of classes; empty where there are none."""
    verb = "needs" if len(names) == 1 else "need"
    return f"{what} runs without {' and '.join(names)}, which {verb} more than {classes} classes" if names else ""


FACTS = ("query_only", "minimises", "steps_once", "strength", "scaled", "work", "same_in_tiers", "keeps_survivors")
"""What a class of attacks says of every attack of its name, whatever its parameters."""


@functools.cache
def recorded_class(name: str) -> type[RecordedAttack]:
    """The class of attacks of a name that are known from records alone, with what is known of that name."""
    if name not in ATTACKS.targets():
        return RecordedAttack
    known = ATTACKS.get(name)
    return type(f"Recorded{known.__name__}", (RecordedAttack,), {fact: getattr(known, fact) for fact in FACTS})


def parse_attack(text: str) -> NamedAttack:
    """Read an attack spec."""
    call = specs.parse(text, "attack")
    name, _, library = call.name.partition("@")
    attack = specs.build(ATTACKS.get(name), specs.Call(name, call.arguments), "attack")
    library = library or attack.usual_library
    if library not in attack.backends:
        raise BadInput(f"no library {library!r} for attack {name!r}; {did_you_mean(library, attack.backends)}")
    return NamedAttack(name, library, attack, library_version(library))


@functools.cache
def library_version(library: str) -> str:
    """Version of the library behind an attack; native ones have their own, raised when their results change."""
    from importlib.metadata import PackageNotFoundError, version

    if library == "native":
        return "1"
    package = {"art": "adversarial-robustness-toolbox"}.get(library, library)
    try:
        return version(package)
    except PackageNotFoundError:
        alone = "--no-deps " if library == "torchattacks" else ""  # what it asks for has known vulnerabilities
        raise BadInput(f"{package} is not installed, which this attack needs: pip install {alone}{package}") from None
