"""Decisions from images in random order, valid at any time: one defense leads, or two are equal within a margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells.cell import Cell
from benchmark.findings.results import UNTIL, Results
from benchmark.findings.sequential import Decision, decide, interval
from defenses.errors import BadInput

Outcomes = NDArray[np.float64]
"""For every image, the probability of a correct prediction: 0 or 1, unless the model is randomised."""
WORDS = {"first leads": "candidate leads", "second leads": "reference leads"}
COLUMNS = (
    "against", "dataset", "attack", "parameters", "library", "tier", "seed", "verdict", "images", "run", "planned",
    "difference", "ci_low", "ci_high", "level", "candidate_flags", "reference_flags",
)  # fmt: skip
"""``images`` is the number of images after which the verdict was reached, or of all images if it is open. ``run`` is
the number of attacked images, ``planned`` the number without early stopping. The interval is that of the difference in
points over ``run`` images. For any number of looks, it misses the true difference with probability ``level`` at most.
"""


@dataclass(frozen=True)
class Narrow:
    """A stopping rule: a row is settled when the interval of every accuracy is narrow enough."""

    half_width: float
    """In points."""
    alpha: float = 0.05

    def settled(self, outcomes: Sequence[Outcomes]) -> bool:
        """True if all intervals are narrow enough."""
        found = [interval(right, alpha=self.alpha) for right in outcomes]
        return all(50 * (one.high - one.low) <= self.half_width for one in found)


@dataclass(frozen=True)
class Decided:
    """A stopping rule: a row is settled when every reference is ahead, behind, or equal within a margin."""

    alpha: float = 0.05
    """Largest probability of any wrong decision in the whole run."""
    margin: float = 2.0
    """In points; with 0, two defenses are never decided to be equal."""
    comparisons: int = 1
    """Rows times references; each comparison is tested at its share of alpha."""
    planned: Mapping[str, int] = field(default_factory=dict)
    """Images without early stopping, by the series of the candidate's cell."""

    @property
    def level(self) -> float:
        """The largest probability of a wrong decision in one comparison."""
        return self.alpha / max(1, self.comparisons)

    def decision(self, candidate: Outcomes, reference: Outcomes) -> Decision:
        """The decision of one comparison so far."""
        return decide(candidate, reference, self.level, self.margin / 100)

    def settled(self, outcomes: Sequence[Outcomes]) -> bool:
        """True if every comparison of the first model with another is decided."""
        candidate, *references = outcomes
        return all(self.decision(candidate, right).verdict != "open" for right in references)

    def over(self, lines: int, references: int, planned: Mapping[str, int]) -> Decided:
        """The rule for all comparisons of a run, with the number of images of each without early stopping."""
        return replace(self, comparisons=max(1, lines * references), planned={**self.planned, **planned})

    def written(self) -> dict[str, Any]:
        """The rule as it is stored in a file."""
        return {
            "alpha": self.alpha,
            "margin": self.margin,
            "comparisons": self.comparisons,
            "planned": dict(self.planned),
        }


def read_rule(written: Mapping[str, Any]) -> Decided:
    """The rule that a file describes."""
    try:
        planned = {str(series): int(images) for series, images in written["planned"].items()}
        found = Decided(float(written["alpha"]), float(written["margin"]), int(written["comparisons"]), planned)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{UNTIL} cannot be read ({error}); run the comparison again") from None
    if not (0 < found.alpha < 1 and 0 <= found.margin < 100 and found.comparisons >= 1):
        raise BadInput(f"{UNTIL} has alpha {found.alpha:g} and margin {found.margin:g}; run the comparison again")
    return found


@dataclass(frozen=True)
class Until:
    """The conditions under which a run takes no more images."""

    rule: Decided | Narrow
    budget: float | None = None
    """Seconds after which no new batch starts; every row gets its first batch."""


def decision_table(results: Results, pairs: Sequence[tuple[Cell, Cell]], rule: Decided) -> pd.DataFrame:
    """A row per pair of cells with an attack, the candidate's cell first: the decision and its number of images."""
    rows = []
    for one, other in pairs:
        if not one.task.attacks:
            continue
        first, second = (results.records[cell]["p_correct"].to_numpy(dtype=float) for cell in (one, other))
        found = rule.decision(first, second)
        known = interval(first - second, low=-1.0, alpha=rule.level)
        rows.append(
            {
                "against": other.ensemble.defense,
                "dataset": one.images.dataset,
                "attack": one.task.name,
                "parameters": one.task.parameters,
                "library": one.task.library,
                "tier": one.task.group,
                "seed": one.conditions.seed,
                "verdict": WORDS.get(found.verdict, found.verdict),
                "images": found.images,
                "run": len(first),
                "planned": rule.planned.get(one.series, len(first)),
                "difference": round(100 * known.mean, 4),
                "ci_low": round(100 * known.low, 4),
                "ci_high": round(100 * known.high, 4),
                "level": rule.level,
                "candidate_flags": ", ".join(results.diagnosis.names(one)),
                "reference_flags": ", ".join(results.diagnosis.names(other)),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def decided_words(table: pd.DataFrame, candidate: str, reference: str, rule: Decided) -> str:
    """The decisions against one reference, in a sentence or two."""
    count = len(table)
    settings = "attack setting" if count == 1 else "attack settings"
    names = {
        "candidate leads": f"{candidate} leads {reference}",
        "reference leads": f"{reference} leads {candidate}",
        "equal": f"they are equal within {rule.margin:g} points",
    }
    parts = [
        f"{words} in {len(rows)} of {count} {settings} (after {_range(rows['images'])} images)"
        for verdict, words in names.items()
        if len(rows := table[table["verdict"] == verdict])
    ]
    left = table[table["verdict"] == "open"]
    if len(left):
        parts.append(f"{len(left)} of {count} {settings} stay open after {_range(left['run'])} images")
    ran, planned = int(table["run"].sum()), int(table["planned"].sum())
    saved = f"{planned - ran} of {planned} images per defense were saved" if planned > ran else "no image was saved"
    joined = "; ".join(parts)
    return (
        f"{joined[:1].upper() if joined.startswith('they') else joined[:1]}{joined[1:]}. "
        f"{saved[0].upper()}{saved[1:]}. The betting test holds however often one looks: each of "
        f"{rule.comparisons} comparisons is wrong with probability {_level(rule.level)} at most, any of them with "
        f"{_level(rule.alpha)}. Tests for a fixed number of images, such as McNemar's, do not hold here. Decisions "
        "hold for these attacks, not for stronger ones."
    )


def _level(value: float) -> str:
    digits = max(0, 1 - math.floor(math.log10(100 * value)))
    return f"{100 * value:.{digits}f}".rstrip("0").rstrip(".") + " %" if digits else f"{100 * value:g} %"


def _range(values: pd.Series[int]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low} to {high}"
