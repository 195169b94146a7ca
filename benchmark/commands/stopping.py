"""Options of early stopping: a run tests its results after every batch, and stops when they suffice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.findings.decisions import Until

ALPHA, MARGIN = 0.05, 2.0
IN_RANDOM_ORDER = "in random order"
"""Ends the name of such a run, so that it never shares a folder with a run in file order."""


def read_decided(
    until: str | None, alpha: float | None, margin: float | None, budget: str | None, seeds: int
) -> Until | None:
    """The rule of ``compare --until decided``; None without it."""
    from benchmark.findings.decisions import Decided, Until
    from benchmark.machine.clock import seconds_of

    if until is None:
        _need({"alpha": alpha, "margin": margin, "budget": budget}, "--until decided")
        return None
    if until != "decided":
        raise BadInput(f"--until is {until[:40]!r}; write --until decided, or omit the option")
    margin = MARGIN if margin is None else margin
    if not 0 <= margin < 100:
        raise BadInput(f"--margin is {margin:g}; it must lie between 0 and 100 points")
    if seeds > 1:
        raise BadInput(f"--until decided compares one training of each defense, not {seeds}; give one --seed")
    return Until(Decided(_checked(alpha), margin), seconds_of(budget) if budget is not None else None)


def read_narrow(until: str | None, alpha: float | None, budget: str | None) -> Until | None:
    """The rule of ``run --until ±2``; None without it."""
    from benchmark.findings.decisions import Narrow, Until
    from benchmark.machine.clock import seconds_of

    if until is None:
        _need({"alpha": alpha, "budget": budget}, "--until ±2")
        return None
    match = re.fullmatch(r"\s*(?:±|\+-|\+/-)\s*(\d{1,3}(?:\.\d{1,6})?)\s*", until)
    if match is None or not 0 < float(match[1]) < 50:
        raise BadInput(f"--until is {until[:40]!r}; write a half-width in points, such as ±2 or +-2")
    return Until(Narrow(float(match[1]), _checked(alpha)), seconds_of(budget) if budget is not None else None)


def _checked(alpha: float | None) -> float:
    found = ALPHA if alpha is None else alpha
    if not 0 < found < 1:
        raise BadInput(f"--alpha is {found:g}; it must lie between 0 and 1")
    return found


def _need(options: dict[str, object], until: str) -> None:
    """Refuse options that have no effect without ``--until``."""
    for name, value in options.items():
        if value is not None:
            raise BadInput(f"--{name} needs {until}")
