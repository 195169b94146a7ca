"""Claims: the accuracy that a paper reports under an attack, or without one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound, read_bound
from benchmark.findings.statistics import accuracy_interval
from defenses.errors import BadInput
from defenses.specs import number

EXAMPLE = 'write "pgd(eps=8/255)=48.4", "strong(linf:8/255)=30" or "clean=93.2"; the accuracy is in percent'


@dataclass(frozen=True)
class Claim:
    """A claimed accuracy of a model under an attack, or without one."""

    text: str
    accuracy: float
    """Between 0 and 1."""
    attack: NamedAttack | None = None
    """The attack that the claim names; None for ``clean`` and ``strong``."""
    bound: Bound | None = None
    """The bound within which stronger attacks are tried; None for ``clean``."""
    samples: int | None = None
    """The number of images on which it was measured, if the claim states it."""

    @property
    def least(self) -> float:
        """The smallest accuracy that agrees with the claim.

        A number that was measured on few images has a confidence interval, and only an accuracy below this whole
        interval refutes the claim.
        """
        if self.samples is None:
            return self.accuracy
        return accuracy_interval(round(self.accuracy * self.samples), self.samples)[0]

    @property
    def words(self) -> str:
        """The claimed accuracy, with the lower end of its interval if the claim has a number of images."""
        share = f"{100 * self.accuracy:.4g} % claimed"
        if self.samples is None:
            return share
        return f"{share} on {self.samples} images, which allows {100 * self.least:.1f} %"


def read_claim(text: str) -> Claim:
    """Read ``pgd(eps=8/255)=48.4``, ``strong(l2:0.5)=30`` or ``clean=93.2``; ``on 1000`` may follow."""
    match = re.fullmatch(r"\s*(?P<what>.+)=\s*(?P<accuracy>[^=()]+?)\s*%?\s*(?:on\s+(?P<samples>\d{1,9}))?\s*", text)
    if match is None:
        raise BadInput(f"cannot read the claim {text!r}; {EXAMPLE}")
    what, accuracy = match["what"].strip(), number(match["accuracy"])
    if accuracy is None or not 0 <= accuracy <= 100:
        raise BadInput(f"the accuracy of the claim {text!r} is {match['accuracy']!r}; {EXAMPLE}")
    if 0 < accuracy < 1 and "%" not in text:
        told = f"write {100 * accuracy:g}, or {accuracy:g}% if that is meant"
        raise BadInput(f"the claim {text!r} states an accuracy of only {accuracy:g} %; {told}")
    samples = int(match["samples"]) if match["samples"] else None
    if samples == 0:
        raise BadInput(f"the claim {text!r} has 0 images; give the number of images, or omit it")
    share = accuracy / 100
    if what == "clean":
        return Claim(text, share, samples=samples)
    if strong := re.fullmatch(r"strong\((.+)\)", what):
        return Claim(text, share, bound=read_bound(strong[1]), samples=samples)
    named = parse_attack(what)
    if named.bound is None:
        raise BadInput(
            f"{named.label} has no bound, so no stronger attack can be compared with it; "
            f"claim an accuracy within a bound: {EXAMPLE}"
        )
    return Claim(text, share, named, named.bound, samples)
