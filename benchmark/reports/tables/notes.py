"""Notes below the tables: numbers of images, clean accuracy, libraries, training, missing cells and warnings."""

from __future__ import annotations

import pandas as pd

from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings import naming
from benchmark.findings.layout import Layout, unique
from benchmark.findings.radii import without_curve
from benchmark.findings.results import Results


def notes_of(layout: Layout) -> list[str]:
    """Every note, a line each."""
    results = layout.results
    diagnosis = results.diagnosis
    notes = []
    if diagnosis.cells or layout.cells:
        notes = [
            *_lines(layout),
            *made_on(results),
            *suites(results),
            *_no_curve(results),
            f"Checks: {diagnosis.summary}.",
        ]
    return notes + [f"Warning {flag.name}, {flag.where}: {flag.words}. {flag.advice}" for flag in diagnosis.flags]


def made_on(results: Results) -> list[str]:
    """A sentence for every surrogate of black-box attacks."""
    told = results.manifest.get("surrogates", {})
    used = unique(cell.task.surrogate for cell in results.cells if isinstance(cell.task, BlackBox))
    return [f"Black-box images were made on {told.get(weights, weights)}." for weights in used]


def suites(results: Results) -> list[str]:
    """The attacks of every worst case; if they differ between defenses, the defenses are named."""
    ran: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        if isinstance(cell.task, WorstCase):
            ran.setdefault((cell.task.suite, cell.task.lineup), []).append(naming.defense(cell.ensemble.defense))
    several = len(ran) > len({suite for suite, _ in ran})
    return [
        f"Worst case, suite {suite}{f', for {naming.listed(unique(names))}' if several else ''}: {lineup}."
        for (suite, lineup), names in ran.items()
    ]


def _no_curve(results: Results) -> list[str]:
    """A sentence for every minimum-norm attack without a security curve."""
    return [f"No security curve for {one}: the norm that it minimises is not known." for one in without_curve(results)]


def _lines(layout: Layout) -> list[str]:
    """Numbers of images, training and missing cells."""
    lines = []
    table = layout.table
    counts = table[table["samples"] > 0].groupby(["dataset", "attack"], sort=False)["samples"]
    for dataset in layout.datasets:
        shown = [f"{naming.attack(name)} {_span(values)}" for (data, name), values in counts if data == dataset]
        if shown:
            lines.append(f"Test images of {naming.dataset(dataset)}: {', '.join(shown)}.")
    for dataset in layout.datasets:
        clean = [f"{naming.defense(name)}: {_clean(layout, dataset, name)}" for name in layout.defenses(dataset)]
        if layout.groups(dataset) != [Clean.evaluation]:
            lines.append(f"Clean accuracy on {naming.dataset(dataset)}. {'; '.join(clean)}.")
    attacked = table[table["library"] != "none"]
    for library, rows in attacked.groupby("library", sort=False):
        words = "Several libraries, named in strong.csv" if library == "several" else f"Library {library}"
        lines.append(f"{words}: {', '.join(map(naming.attack, unique(rows['attack'])))}.")
    trained = table.drop_duplicates(["dataset", "defense", "seed"])
    several = trained["dataset"].nunique() > 1
    for (dataset, training), rows in trained.groupby(["dataset", "training"], sort=False):
        where = f" on {naming.dataset(dataset)}" if several else ""
        names = naming.listed(map(naming.defense, unique(rows["defense"])))
        lines.append(f"Training of {names}{where}: {training or 'elsewhere'}.")
    for cell, words in zip(layout.cells, table["flags"], strict=True):
        if cell not in layout.records:
            lines.append(f"Warning, {cell.images.dataset} · {cell.title}: {words}.")
    return lines


def _clean(layout: Layout, dataset: str, defense: str) -> str:
    rows = layout.unattacked(dataset, defense)
    if rows.empty:
        return "–"
    return f"{rows['clean_accuracy'].mean():.1f} % of {int(rows['samples'].iloc[0])} images"


def _span(counts: pd.Series[int]) -> str:
    """One number of images, or the smallest and the largest number."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high} (each row's number is in table.csv)"
