"""The tables of docs/statistics.md on early stopping, made anew: simulated comparisons, and committed records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmark.cells.cell import Cell, rows_in
from benchmark.cells.store import Store
from benchmark.findings.comparison import pairs_of
from benchmark.findings.decisions import Decided
from benchmark.findings.results import read_results
from benchmark.findings.sequential import Decision, decide

ROOT = Path(__file__).parents[3]
ACCURACY, SHARED, ALPHA, MARGIN = 0.4, 0.8, 0.05, 0.02
"""The reference is right on 40 % of the images; on 80 % of them, both models hang on the same luck."""
BATCH = 20


def _in_document(lines: list[str]) -> None:
    text = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    missing = [line for line in lines if line not in text]
    assert not missing, "docs/statistics.md lacks\n" + "\n".join(missing)


def _simulated(lead: float, runs: int, images: int, margin: float = MARGIN) -> list[Decision]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(runs):
        luck = rng.random(images)
        others = np.where(rng.random(images) < SHARED, luck, rng.random(images))
        found.append(decide(luck < ACCURACY + lead, others < ACCURACY, ALPHA, margin))
    return found


def _power(images: int, ahead: float, behind: float) -> float:
    """Of McNemar's exact test, summed over every number of images on which the models differ."""
    differ = np.arange(images + 1)
    most = stats.binom.ppf(ALPHA / 2, differ, 0.5)
    most = np.where(stats.binom.cdf(most, differ, 0.5) <= ALPHA / 2, most, most - 1)
    share = ahead / (ahead + behind)
    rejected = stats.binom.cdf(most, differ, share) + stats.binom.sf(differ - most - 1, differ, share)
    return float((stats.binom.pmf(differ, images, ahead + behind) * rejected).sum())


def _fixed_size(lead: float) -> int:
    """The images that McNemar's test needs for a power of 80 %."""
    apart = 1 - SHARED
    ahead = SHARED * lead + apart * (ACCURACY + lead) * (1 - ACCURACY)
    behind = apart * (1 - ACCURACY - lead) * ACCURACY
    low, high = 1, 20_000
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, ahead, behind) >= 0.8 else (middle + 1, high)
    return low


@pytest.mark.slow
def test_equal_models_are_told_apart_in_fewer_runs_than_alpha_allows() -> None:
    found = Counter(decision.verdict for decision in _simulated(0.0, 2000, 10_000))
    wrong = found["first leads"] + found["second leads"]
    assert wrong <= 2000 * ALPHA
    _in_document([f"{wrong} of 2000 ({100 * wrong / 2000:.2g} %)", f"{found['equal']} were called equal"])


@pytest.mark.slow
def test_the_number_of_images_to_a_decision_is_as_documented() -> None:
    lines = []
    for lead in (0.02, 0.05, 0.1, 0.2):
        found = _simulated(lead, 500, 20_000)
        right = sum(decision.verdict == "first leads" for decision in found)
        images = [decision.images for decision in found]
        lines.append(
            f"| {100 * lead:.0f} | {np.mean(images):.0f} | {np.median(images):.0f} | {np.percentile(images, 90):.0f} | "
            f"{100 * right / 500:.1f} % | {_fixed_size(lead)} |"
        )
    _in_document(lines)


def test_committed_records_are_decided_after_as_many_images_as_documented() -> None:
    results = read_results(Store(ROOT / "results" / "cifar10-whitebox"))
    candidates = ("adp-2-0.5", "label-smoothing-0.6")
    rows: dict[str, list[str]] = {}
    lines = []
    for candidate in candidates:
        pairs = [pair for pair in pairs_of(results, candidate, "baseline") if pair[0].task.attacks]
        rule = Decided(ALPHA, 100 * MARGIN, len(pairs))
        taken = planned = 0
        spent = whole = 0.0
        decided = 0

        def outcomes(cell: Cell) -> NDArray[np.bool_]:
            right = results.records[cell]["correct"].to_numpy(dtype=bool)
            return np.asarray(right[rows_in("shuffled", len(right))])

        for one, other in pairs:
            found = rule.decision(outcomes(one), outcomes(other))
            samples = one.images.samples
            run = min(samples, -(-found.images // BATCH) * BATCH)
            seconds = sum(float(results.records[cell]["seconds"].sum()) for cell in (one, other))
            taken, planned = taken + run, planned + samples
            spent, whole = spent + seconds * run / samples, whole + seconds
            decided += found.verdict != "open"
            if one.task.tier == "strict":
                word = {"first leads": f"{found.images}", "open": "open"}[found.verdict]
                rows.setdefault(f"`{one.task.attack_title}` | {samples}", []).append(word)
        lines.append(
            f"| `{candidate}` | {decided} of {len(pairs)} | {taken} of {planned} | "
            f"{spent / 60:.0f} of {whole / 60:.0f} min |"
        )
    lines += [f"| {what} | {' | '.join(words)} |" for what, words in rows.items()]
    _in_document(lines)
