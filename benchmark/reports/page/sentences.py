"""A run in a few sentences: the verdict, the findings of each tier, and the warnings."""

from __future__ import annotations

import pandas as pd

from benchmark.attacks.bounds import SYMBOLS, Norm
from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.checks import CHECKS
from benchmark.findings.comparison import Comparison
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.findings.survival import Survival, by_norm, lowest, survival
from benchmark.reports.page.widgets import Warned
from defenses import specs

TIERS = {
    "paper": "the attacks as published, including the authors' setup (predicted labels, averaged outputs)",
    "strict": "the same attacks with true labels and correct outputs; images misclassified before count as wrong",
    "strong": "a suite of current attacks; an image counts only if it withstands all of them",
    "black-box": "images made on a surrogate: another ensemble, such as an attacker would train",
}
"""Parts of the tables with an attack, in words."""
UPPER_BOUND = "Accuracy under attack is an upper bound on robustness: a stronger attack can only lower it."


def attacked(layout: Layout, dataset: str) -> list[str]:
    """The parts of a dataset's tables that have an attack."""
    found = set(layout.groups(dataset)) - {Clean.evaluation}
    return [group for group in TIERS if group in found] + sorted(found - set(TIERS))


# --- the verdict ---


def verdict(layout: Layout, comparison: Comparison | None, tables: dict[str, pd.DataFrame]) -> list[str]:
    """The main result of the run, in about two sentences."""
    if comparison:
        return list(comparison.sentences)
    for dataset in layout.datasets:
        tiers = [tier for tier in attacked(layout, dataset) if tier != "black-box"]
        found = next((left for tier in reversed(tiers) if (left := survival(layout, dataset, tier))), None)
        if found:
            strong = "" if "strong" in tiers else " This run lacks tier strong, so expect lower values."
            return [_fall(layout, dataset, found, tiers[-1]), UPPER_BOUND + strong]
    if not tables["detection"].empty:
        return _detected(tables["detection"])
    if not tables["transfer"].empty:
        return _transferred(tables["transfer"])
    if not tables["diversity"].empty:
        return _diverse(tables["diversity"])
    values = [
        layout.unattacked(d, name)["clean_accuracy"].mean() for d in layout.datasets for name in layout.defenses(d)
    ]
    known = [value for value in values if not pd.isna(value)]
    if not known:
        return ["The figures below show what this run found."]
    return [f"Clean accuracy is {_between(known)}.", "This run has no attack, so it says nothing about robustness."]


def _fall(layout: Layout, dataset: str, worst: Survival, tier: str) -> str:
    clean = [float(layout.unattacked(dataset, name)["clean_accuracy"].mean()) for name in worst.right]
    left = [worst.percent(name) for name in worst.right]
    under = "the suite of tier strong" if worst.suite else f"the attacks of tier {tier}"
    start = (
        f"On {naming.dataset(dataset)}, accuracy falls from {_between(clean)} (clean) to {_between(left)} under {under}"
    )
    return f"{start} at {bound_words(worst)} ({worst.images} images); {_leader(worst)}."


def _leader(worst: Survival) -> str:
    if len(worst.right) == 1:
        return f"{naming.inline(next(iter(worst.right)))} is the only defense"
    if worst.lacking:
        return f"{worst.lacking} without all of these attacks are not compared"
    best = max(worst.right, key=worst.percent)
    if worst.leads(best):
        return f"{naming.inline(best)} is significantly ahead of every other defense (McNemar, {100 * SIGNIFICANT:g} %)"
    return "no defense is significantly ahead of all others"


def _between(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{low} %" if low == high else f"{low}–{high} %"


def _detected(table: pd.DataFrame) -> list[str]:
    rows = table[(table["score"] == "diversity") & table["auc"].notna()]
    if rows.empty:
        return ["No attack fooled an image, so there is nothing to detect."]
    low, high = (rows.loc[getattr(rows["auc"], pick)()] for pick in ("idxmin", "idxmax"))
    told = [
        f"{row['auc']:.2f} ({naming.attack(row['attack'], row['parameters'])} on {naming.inline(row['defense'])})"
        for row in (low, high)
    ]
    return [
        f"The diversity score detects attacks with an AUC between {told[0]} and {told[1]}.",
        "An AUC of 0.5 is chance: an attack below it makes its images look more normal than clean ones.",
    ]


def _transferred(table: pd.DataFrame) -> list[str]:
    rows = table[
        (table["source"] != table["target"]) & (table["target"] != "ensemble") & (table["mode"] == "untargeted")
    ]
    rates = rows.groupby("defense", sort=False)["transfer_rate"].mean().dropna()
    if rates.empty:
        return ["No image that fools one member was tried on another."]
    told = naming.listed(f"{naming.inline(str(name))}: {rate:.0f} %" for name, rate in rates.items())
    return [
        f"Share of images made on one member that also fool another: {told}.",
        "A lower share means members that fail on different images; it is no robustness of the ensemble by itself.",
    ]


def _diverse(table: pd.DataFrame) -> list[str]:
    means = table.groupby("defense", sort=False)[["led_median", "confidence_mean"]].mean()
    told = naming.listed(f"{naming.inline(str(name))}: {value:.2f}" for name, value in means["led_median"].items())
    words = [
        f"Median log ensemble diversity: {told}.",
        "Zero is the most diverse. Diversity is what ADP trains for; it is no robustness by itself.",
    ]
    confident = means["confidence_mean"].dropna()
    if not confident.empty:
        told = naming.listed(f"{naming.inline(str(name))}: {value:.2f}" for name, value in confident.items())
        words.append(f"Mean confidence: {told}. Compare defenses with equal confidence.")
    return words


# --- the findings of each tier ---


def findings(layout: Layout, lead: bool) -> list[tuple[str, str]]:
    """For each dataset and tier, its name and its findings; with ``lead``, also the defense that is ahead."""
    sentences = []
    for dataset in layout.datasets:
        for tier in attacked(layout, dataset):
            words = [*_worst_words(survival(layout, dataset, tier), lead), *_lowest_words(layout, dataset, tier)]
            chosen = layout.table[(layout.table["dataset"] == dataset) & (layout.table["tier"] == tier)]
            if flagged := int(((chosen["samples"] > 0) & (chosen["flags"] != "")).sum()):
                words.append(f"Warnings concern {flagged} of {len(chosen)} numbers.")
            if words:
                group = tier if tier == "black-box" else f"tier {tier}"
                sentences.append((f"{naming.dataset(dataset)}, {group}", " ".join(words)))
    return sentences


def _worst_words(worst: Survival | None, with_lead: bool) -> list[str]:
    if worst is None:
        return []
    ranked = sorted(worst.right, key=lambda defense: float(worst.right[defense].mean()))
    names = naming.listed(map(naming.attack, worst.attacks))
    under = "the suite" if worst.suite else names if len(worst.attacks) == 1 else f"every one of {names}"
    seeds = f" and {worst.seeds} seeds" if worst.seeds > 1 else ""

    def says(defense: str) -> str:
        interval = interval_words(worst, defense)
        told = f" (95 % interval {interval})" if interval else ""
        return f"{worst.percent(defense):.1f} % for {naming.inline(defense)}{told}"

    start = f"Accuracy under {under} at {bound_words(worst)}, on {worst.images} images{seeds}:"
    if len(ranked) == 1:
        return [f"{start} {says(ranked[0])}."]
    ends = f"{start} highest {says(ranked[-1])}, lowest {says(ranked[0])}."
    if worst.lacking:
        return [ends, f"Not compared: {worst.lacking} without all of these attacks."]
    leader = _leader(worst)
    return [ends, *([f"{leader[0].upper()}{leader[1:]}."] if with_lead else [])]


def interval_words(worst: Survival, defense: str) -> str:
    """The interval of a defense, if it has one."""
    interval = worst.interval(defense)
    return f"{interval[0]:.1f}–{interval[1]:.1f}" if interval else ""


def bound_words(worst: Survival) -> str:
    """The norm and radius of the attacks."""
    return f"{worst.bound.symbol}, ε={specs.value_text(worst.bound.radius)}"


def _lowest_words(layout: Layout, dataset: str, tier: str) -> list[str]:
    """A sentence for each norm, because a number over several norms cannot be compared."""
    sentences = []
    for norm, attacks in by_norm(layout, dataset, tier).items():
        found = lowest(layout, dataset, tier, attacks)
        if not found:
            sentences.append(f"No defense has finished every {norm_words('attack', norm)} of this tier.")
        elif len(attacks) > 1:
            span = _between([value for value, _ in found.values()])
            missing = len(layout.defenses(dataset)) - len(found)
            left = f" ({missing} with unfinished attacks left out)" if missing else ""
            settings = f"{len(attacks)} {norm_words('attack settings', norm)}"
            sentences.append(f"Lowest accuracy under any of the {settings} of the tier: {span}{left}.")
    return sentences


def norm_words(what: str, norm: Norm | None) -> str:
    """Attacks of one norm in words, such as ``L2 attack`` or ``attack without a bound``."""
    return f"{SYMBOLS[norm]} {what}" if norm else f"{what} without a bound"


# --- size of the run, and warnings ---


def counts(results: Results) -> str:
    """The size of the run, and how much of it is finished."""
    finished, cells = results.finished, results.cells
    defenses = len({cell.ensemble.defense for cell in cells})
    datasets = naming.listed(map(naming.dataset, dict.fromkeys(cell.images.dataset for cell in cells)))
    seeds = len({cell.conditions.seed for cell in cells})
    parts = [
        datasets or "no dataset",
        f"{defenses} defense{'s' * (defenses != 1)}",
        f"up to {max(cell.images.samples for cell in finished)} test images" if finished else "",
        f"{seeds} seeds" if seeds > 1 else "",
        f"{len(finished)} of {len(cells)} cells finished",
    ]
    return ", ".join(filter(None, parts))


def warned_of(results: Results) -> list[Warned]:
    """Cells that failed or were not run, then every flag."""
    found = []
    for cell in results.cells:
        if cell not in results.records:
            reason = results.failures.get(cell)
            kind, words = ("failed", reason) if reason else ("not run", "no result yet")
            parts = (naming.defense(cell.ensemble.defense), naming.attack(cell.task.name, cell.task.parameters))
            where = " · ".join([naming.dataset(cell.images.dataset), *parts, cell.task.group])
            found.append(Warned(kind, where, words, "Run the same command again to resume."))
    found.sort(key=lambda one: ("failed", "not run").index(one.kind))
    flags = results.diagnosis.flags
    return found + [Warned(flag.name, flag.where, flag.words, flag.advice) for flag in flags]


def warning_lines(warned: list[Warned]) -> list[tuple[str, str]]:
    """A line for each kind of warning: its number and its meaning."""
    kinds: dict[str, list[Warned]] = {}
    for one in warned:
        kinds.setdefault(one.kind, []).append(one)
    lines = []
    for kind, found in kinds.items():
        several = f" ({len(found)})" if len(found) > 1 else ""
        words = CHECKS[kind].rule if kind in CHECKS else f"{found[0].where}: {found[0].words}"
        lines.append((f"{kind}{several}", words))
    return lines
