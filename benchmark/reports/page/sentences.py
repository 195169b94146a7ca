"""What a run says in a few sentences, and what a reader must not overlook."""

from __future__ import annotations

from benchmark.evaluations.clean import Clean
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.findings.survival import Survival, lowest, survival
from benchmark.reports.page.widgets import Warned, listed

TIERS = {
    "paper": "the attacks as published, quirks included",
    "strict": "the same attacks with true labels and correct outputs; what was wrong before counts as wrong",
    "strong": "attacks of today, per-image worst case",
    "black-box": "images made on a surrogate: another ensemble, such as an attacker would train",
}
"""Parts of the tables with an attack, in words."""


def attacked(layout: Layout, dataset: str) -> list[str]:
    """The parts of a dataset's tables that have an attack."""
    found = set(layout.groups(dataset)) - {Clean.evaluation}
    return [group for group in TIERS if group in found] + sorted(found - set(TIERS))


def summary(layout: Layout, lead: bool) -> list[tuple[str, str]]:
    """Per dataset and tier, what it is about and what was found; who is ahead, unless a comparison says so."""
    sentences = []
    for dataset in layout.datasets:
        for tier in attacked(layout, dataset):
            words = [*_worst_words(survival(layout, dataset, tier), lead), *_lowest_words(layout, dataset, tier)]
            chosen = layout.table[(layout.table["dataset"] == dataset) & (layout.table["tier"] == tier)]
            if flagged := int(((chosen["samples"] > 0) & (chosen["flags"] != "")).sum()):
                words.append(f"Flagged: {flagged} of {len(chosen)} cells; see below before believing the order.")
            if words:
                sentences.append((f"{dataset}, tier {tier}", " ".join(words)))
    return sentences


def _worst_words(worst: Survival | None, with_lead: bool) -> list[str]:
    if worst is None:
        return []
    ranked = sorted(worst.right, key=lambda defense: float(worst.right[defense].mean()))
    attacks, norm = worst.attacks, worst.bound.symbol
    under = f"under {norm} {attacks[0]}" if len(attacks) == 1 else f"under each of the {norm} attacks {listed(attacks)}"
    if worst.suite:
        under = "under the worst of the suite's attacks"
    seeds = f", {worst.seeds} seeds" if worst.seeds > 1 else ""

    def says(defense: str) -> str:
        interval = interval_words(worst, defense)
        return f"{worst.percent(defense):.1f} % for {defense}" + (f" (95 % interval {interval})" if interval else "")

    start = f"the share of {worst.images} images{seeds} still classified correctly {under} at {bound_words(worst)} is"
    if len(ranked) == 1:
        return [f"{start} {says(ranked[0])}."]
    if worst.lacking:
        left = f"Not compared: {worst.lacking} without all of these attacks."
        return [f"{start} highest, {says(ranked[-1])}, and lowest, {says(ranked[0])}.", left]
    lead = (
        f"{ranked[-1]} is ahead of every other defense, each difference significant (McNemar, {100 * SIGNIFICANT:g} %)."
    )
    none = "There, no defense is significantly ahead of all others."
    ends = f"{start} highest, {says(ranked[-1])}, and lowest, {says(ranked[0])}."
    return [ends, *([lead if worst.leads(ranked[-1]) else none] if with_lead else [])]


def interval_words(worst: Survival, defense: str) -> str:
    """The interval of a defense, where it has one."""
    interval = worst.interval(defense)
    return f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else ""


def bound_words(worst: Survival) -> str:
    """The radius of the attacks."""
    return f"ε = {worst.bound.radius:g}"


def _lowest_words(layout: Layout, dataset: str, tier: str) -> list[str]:
    found = lowest(layout, dataset, tier)
    settings = len(layout.attacks(dataset, tier))
    if not found:
        return ["No defense has every attack of this tier finished."]
    if settings == 1:
        return []
    low, high = (f"{pick(value for value, _ in found.values()):.1f}" for pick in (min, max))
    span = f"{low} %" if low == high else f"between {low} and {high} %, depending on the defense"
    missing = len(layout.defenses(dataset)) - len(found)
    left = f"; {missing} with unfinished attacks left out" if missing else ""
    return [f"The lowest accuracy among the {settings} attack settings of the tier is {span}{left}."]


def counts(results: Results, warned: list[Warned]) -> str:
    """How much of what was asked is there."""
    finished = results.finished
    defenses = len({cell.ensemble.defense for cell in results.cells})
    datasets = list(dict.fromkeys(cell.images.dataset for cell in results.cells))
    kinds = {kind: sum(1 for one in warned if one.kind == kind) for kind in ("failed", "not run", "flagged")}
    told = [f"{count} {kind}" for kind, count in kinds.items() if count]
    images = f", up to {max(cell.images.samples for cell in finished)} test images in a cell" if finished else ""
    return (
        f"{len(finished)} of {len(results.cells)} cells are finished: {defenses} defense{'s' * (defenses != 1)} "
        f"on {listed(datasets) if datasets else 'nothing'}{images}. "
        + (f"To be read with care: {listed(told)}." if told else "No cell failed and none is flagged.")
    )


def warned_of(results: Results) -> list[Warned]:
    """Cells that failed, were not run or are flagged, in this order."""
    found = []
    for cell in results.cells:
        dataset = cell.images.dataset
        if cell not in results.records:
            reason = results.failures.get(cell)
            kind, words = ("failed", reason) if reason else ("not run", "no result yet; run the command again")
            found.append(Warned(kind, dataset, cell.title, words))
        elif words := results.diagnosis.words(cell):
            found.append(Warned("flagged", dataset, cell.title, words))
    return sorted(found, key=lambda one: ("failed", "not run", "flagged").index(one.kind))
