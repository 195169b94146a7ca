"""Attacks by name: ``pgd(eps=0.01)`` runs the default library's, ``pgd@art(eps=0.01)`` another's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """An attack, the library that runs it, and the one text that stands for both."""

    name: str
    library: str
    attack: Attack

    @property
    def label(self) -> str:
        """Spec without the library, such as ``pgd(eps=0.01)``."""
        return specs.canonical(self.name, self.attack)

    @property
    def text(self) -> str:
        """Canonical spec, such as ``pgd@torchattacks(eps=0.01)``."""
        return specs.canonical(f"{self.name}@{self.library}", self.attack)

    @property
    def parameters(self) -> str:
        """What stands between the parentheses."""
        return self.label.removeprefix(self.name).strip("()")

    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, defaults included: part of a cell's identity."""
        return {key: getattr(self.attack, field.name) for key, field in specs.parameters(type(self.attack)).items()}

    def backend(self) -> Backend:
        """The function that runs it."""
        module, _, function = self.attack.backends[self.library].partition(":")
        return getattr(importlib.import_module(module), function)


def parse_attack(text: str) -> NamedAttack:
    """Read an attack spec."""
    call = specs.parse(text, "attack")
    name, _, library = call.name.partition("@")
    attack = specs.build(ATTACKS.get(name), specs.Call(name, call.arguments), "attack")
    library = library or attack.usual_library
    if library not in attack.backends:
        raise BadInput(f"no library {library!r} for attack {name!r}; {did_you_mean(library, attack.backends)}")
    return NamedAttack(name, library, attack)


def library_version(library: str) -> str:
    """Version of the library behind an attack; native ones have their own, raised when their results change."""
    from importlib.metadata import version

    if library == "native":
        return "1"
    return version({"art": "adversarial-robustness-toolbox"}.get(library, library))
