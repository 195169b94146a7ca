"""Signs that a training has not converged, from the scores in its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defenses.checkpoints import Provenance

TENTH = 10
"""The last tenth of the epochs is compared with the tenth before it."""
RISE = 0.05
"""The training accuracy counts as still rising if it grows by at least this much between the two tenths."""
LEARNED = 0.95
"""At or above this training accuracy, a further rise does not count."""
LIFT = 0.1
"""A trained member has covered at least this share of the distance from chance to 100 % accuracy."""
BELOW = 0.05
"""Accepted difference of an ensemble's accuracy below the mean accuracy of its members."""

ADVICE = (
    "Train longer (--epochs), with another learning rate or with more images, and look at history.csv: the accuracy of "
    "an ensemble that has not been trained to the end says nothing about its defense."
)

LAST, BEFORE = "train_accuracy", "train_accuracy_before"


def curve_scores(history: Sequence[dict[str, Any]], epochs: int) -> dict[str, float]:
    """Mean training accuracy of the last tenth of the epochs, and of the tenth before it where there is one.

    If the members were trained one after the other, each has its own curve of up to ``epochs`` rows. The steepest curve
    counts.
    """
    curves: dict[int, list[float]] = {}
    for row in history:  # a member that was frozen early has fewer rows
        curves.setdefault((row["epoch"] - 1) // epochs, []).append(row["train_accuracy"])
    found = []
    for curve in curves.values():
        width = max(len(curve) // TENTH, 1)
        found.append([_mean(part) for part in (curve[-width:], curve[-2 * width : -width]) if part])
    last, *before = max(found, key=lambda pair: pair[0] - pair[-1])
    return {LAST: round(last, 6)} | ({BEFORE: round(before[0], 6)} if before else {})


def doubts(origin: Provenance) -> str | None:
    """The signs that a training has not converged, in words; empty without signs, None if the scores are not stored."""
    scores = origin.scores
    if (
        LAST not in scores or "test_accuracy" not in scores or not scores.get("test_member_accuracy")
    ):  # of an older version, or not from this project
        return None
    return "; ".join([*_still_rising(scores), *_near_chance(scores, origin.classes), *_far_below(scores)])


def _still_rising(scores: dict[str, Any]) -> list[str]:
    last, before = scores[LAST], scores.get(BEFORE)
    if before is None or last >= LEARNED or last - before < RISE:
        return []
    return [f"training accuracy still rose from {before:.1%} to {last:.1%} in the last epochs"]


def _near_chance(scores: dict[str, Any], classes: int) -> list[str]:
    chance = 1 / classes
    found = [
        f"member {number} is right on {accuracy:.1%} of the test images (chance is {chance:.1%})"
        for number, accuracy in enumerate(scores["test_member_accuracy"], 1)
        if accuracy - chance < LIFT * (1 - chance)
    ]
    return found if len(found) < 3 else [f"{found[0]}; {len(found) - 1} more members are near chance"]


def _far_below(scores: dict[str, Any]) -> list[str]:
    ensemble, members = scores["test_accuracy"], _mean(scores["test_member_accuracy"])
    if members - ensemble < BELOW:
        return []
    return [f"the ensemble is right on {ensemble:.1%} of the test images, its members on {members:.1%} on average"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
