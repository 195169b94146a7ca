"""Attacks by name: ``pgd(eps=0.01)`` runs in the default library, ``pgd@art(eps=0.01)`` in another one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmark.attacks.bounds import BOUND, Bound, read_bound
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
for _name in ("APGD", "ARC", "FMN", "DDN"):
    ATTACKS.register(_name.lower(), f"benchmark.attacks.definitions:{_name}")
for _name, _class in (("apgd-ce", "APGDCE"), ("apgd-t", "APGDT"), ("fab-t", "FABT")):
    ATTACKS.register(_name, f"benchmark.attacks.definitions:{_class}")


Asked = Bound | Literal["none"]
EOT = "eot"
"""Parameter of a spec for expectation over randomness."""
DIGITS = 16
"""Number of digits kept of a file's digest, which serves as its version."""


@dataclass(frozen=True)
class NamedAttack:
    """An attack, the library that runs it, and its version; ``text`` has everything except the version."""

    name: str
    library: str
    attack: Attack
    version: str = ""
    asked: Asked | None = None
    """The bound that the spec sets with ``bound=``, if it differs from the attack's own bound."""
    eot: int = 1
    """Draws of a randomised model that each forward pass averages: expectation over randomness."""

    @property
    def label(self) -> str:
        """Spec without the library, such as ``pgd(eps=0.01)``."""
        return self._spec(self.name)

    @property
    def text(self) -> str:
        """Canonical spec, such as ``pgd@torchattacks(eps=0.01)``."""
        return self._spec(self.attack.full_name(self.name, self.library))

    @property
    def title(self) -> str:
        """Spec for readers, with the library if it is not the attack's first library."""
        first = next(iter(self.attack.backends), "")
        return self.label if self.library == first and not self.attack.named_in_full else self.text

    @property
    def bound(self) -> Bound | None:
        """The ball that the adversarial images must stay in."""
        if self.asked is None:
            return self.attack.bound
        return None if self.asked == "none" else self.asked

    @property
    def parameters(self) -> str:
        """The text between the parentheses of its spec."""
        eot = f"{EOT}={self.eot}" if self.eot > 1 else ""
        bound = "" if self.asked is None else f"{BOUND}={self.asked}"
        return ",".join(filter(None, (self.attack.parameters, eot, bound)))

    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, and the bound if the spec has one: part of a cell's identity."""
        own = self.attack.settings() | ({EOT: self.eot} if self.eot > 1 else {})
        return own if self.asked is None else {**own, BOUND: str(self.asked)}

    @property
    def averages(self) -> bool:
        """Whether it attacks the expectation of a randomised model."""
        return self.eot > 1 or self.attack.averages

    def gradients(self, scalars: int, classes: int) -> float:
        """Largest number of gradients for one image; see `Attack.gradients`."""
        return self.eot * self.attack.gradients(scalars, classes)

    @property
    def strength(self) -> str:
        """The parameter that makes it stronger: ``bound`` if the spec has one, or else the attack's own parameter."""
        return BOUND if isinstance(self.asked, Bound) else self.attack.strength

    def _spec(self, name: str) -> str:
        return f"{name}({self.parameters})" if self.parameters else name

    def check_classes(self, classes: int) -> None:
        """Refuse a model or dataset with fewer classes than the attack needs."""
        fewest = self.attack.fewest_classes
        if classes < fewest:
            raise BadInput(
                f"{self.label} needs at least {fewest} classes, but the data have {classes}; {self.attack.instead}"
            )

    def remark(self, classes: int) -> str:
        """A message about its parts that need more classes; empty if there are none."""
        return without(self.label, self.attack.left_out(classes), classes)

    def backend(self) -> Backend:
        """The function that runs it."""
        return self.attack.backend(self.library)


@dataclass(frozen=True)
class RecordedAttack(Attack):
    """An attack that is known only from the record of a cell: its package is missing, or its parameters changed."""

    written: str
    """The parameters, as written in the record."""
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
    """A message about attacks that are left out because they need more classes; empty if there are none."""
    verb = "needs" if len(names) == 1 else "need"
    return f"{what} runs without {' and '.join(names)}, which {verb} more than {classes} classes" if names else ""


FACTS = (
    "query_only",
    "minimises",
    "steps_once",
    "strength",
    "scaled",
    "work",
    "same_in_tiers",
    "keeps_survivors",
    "minimised",
)
"""Attributes of a registered attack class that recorded attacks of the same name share."""


@functools.cache
def recorded_class(name: str) -> type[RecordedAttack]:
    """The class for recorded attacks of a name, with the facts of the registered attack of that name."""
    if name not in ATTACKS.targets():
        return RecordedAttack
    known = ATTACKS.get(name)
    return type(f"Recorded{known.__name__}", (RecordedAttack,), {fact: getattr(known, fact) for fact in FACTS})


FILE_SPEC = re.compile(r"\s*(?P<path>.+?\.py):(?P<call>[^:/\\]+(?:\(.*)?)", re.DOTALL)
LIBRARY_SPEC = re.compile(r"\s*(?P<library>[\w.-]+):(?P<call>[^:]+(?:\(.*)?)", re.DOTALL)
"""A file or a library stands before the colon. The colon of a bound stands after the opening parenthesis."""


def parse_attack(text: str) -> NamedAttack:
    """Read a spec: ``pgd(eps=0.1)``, ``pgd@art(eps=0.1)``, ``torchattacks:DIFGSM(eps=0.1)`` or ``mine.py:attack``."""
    of_file, of_library = FILE_SPEC.fullmatch(text), LIBRARY_SPEC.fullmatch(text)
    if of_file:
        return _file_attack(Path(of_file["path"]), of_file["call"])
    if of_library:
        return _library_attack(of_library["library"], of_library["call"])
    call = specs.parse(text, "attack")
    name, _, library = call.name.partition("@")
    asked, eot = read_asked(call.arguments.pop(BOUND, None)), read_eot(call.arguments.pop(EOT, None))
    attack = specs.build(ATTACKS.get(name), specs.Call(name, call.arguments), "attack")
    library = library or attack.usual_library
    if library not in attack.backends:
        raise BadInput(
            f"attack {name!r} does not exist in library {library!r}; {did_you_mean(library, attack.backends)}"
        )
    refusal = attack.refusal(library)
    if refusal:
        raise BadInput(f"cannot run {text!r}: {refusal}")
    return bounded(NamedAttack(name, library, attack, library_version(library), eot=eot), asked)


def _library_attack(library: str, text: str) -> NamedAttack:
    from benchmark.attacks.library_attacks import find_class

    call = specs.parse(text, "attack")
    asked, eot = read_asked(call.arguments.pop(BOUND, None)), read_eot(call.arguments.pop(EOT, None))
    known = find_class(library, call.name)
    attack = known.read(call, asked if isinstance(asked, Bound) else None)
    return bounded(NamedAttack(known.name, library, attack, library_version(library), eot=eot), asked)


def _file_attack(path: Path, text: str) -> NamedAttack:
    from benchmark.attacks.own_attacks import read_file_attack
    from defenses.source_digest import source_digest

    call = specs.parse(text, "attack")
    asked, eot = read_asked(call.arguments.pop(BOUND, None)), read_eot(call.arguments.pop(EOT, None))
    attack = read_file_attack(path, call, asked if isinstance(asked, Bound) else None)
    return bounded(NamedAttack(call.name, path.name, attack, source_digest(path)[:DIGITS], eot=eot), asked)


def read_eot(text: str | None) -> int:
    """The number of draws of ``eot=`` in a spec; 1 by default."""
    if text is None:
        return 1
    if not specs.is_whole(text) or int(text) < 1:
        raise BadInput(f"eot is {text!r}; write how many draws of a randomised model to average, such as eot=20")
    return int(text)


def read_asked(text: str | None) -> Asked | None:
    """The bound of ``bound=`` in a spec: a norm and a radius, or ``none``."""
    if text is None:
        return None
    return "none" if text.lower() == "none" else read_bound(text)


def bounded(named: NamedAttack, asked: Asked | None) -> NamedAttack:
    """The attack with the requested bound; the attack's own bound needs no ``bound=``."""
    own = named.attack.bound
    if asked == "none" and own is not None:
        raise BadInput(f"{named.label} has the bound {own}; omit bound=none")
    if asked is None and not named.attack.bound_known:
        eps = named.attack.settings().get("eps")
        example = f"bound=linf:{eps}" if isinstance(eps, float) else "bound=l2:0.5"
        raise BadInput(
            f"the parameters of {named.label} do not define a bound, which needs eps and norm; add {example}, or "
            f"bound=none for an attack without a bound"
        )
    said = own or ("none" if named.attack.bound_known else None)
    return named if asked in (None, said) else replace(named, asked=asked)


@functools.cache
def library_version(library: str) -> str:
    """Version of the library behind an attack; native attacks have their own, raised when their results change."""
    from importlib.metadata import PackageNotFoundError, version

    if library == "native":
        return "1"
    package = {"art": "adversarial-robustness-toolbox"}.get(library, library)
    try:
        return version(package)
    except PackageNotFoundError:
        alone = "--no-deps " if library == "torchattacks" else ""  # its dependencies have known vulnerabilities
        raise BadInput(f"this attack needs {package}, which is not installed: pip install {alone}{package}") from None
