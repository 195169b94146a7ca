"""report.html: a whole run on one page that works offline, by keyboard and with a screen reader."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmark.findings import crosscheck
from benchmark.findings.comparison import Comparison
from benchmark.findings.layout import Layout
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import Figure
from benchmark.reports.page import accuracies, differences, facts
from benchmark.reports.page.library_tables import library_tables
from benchmark.reports.page.sentences import TIERS, counts, findings, verdict, warned_of, warning_lines
from benchmark.reports.page.widgets import Picture, plain
from benchmark.reports.tables.notes import made_on
from defenses.files import write_text

LIBRARIES = "One attack in several libraries"
GAP = "Accuracy by tier"
KINDS = {
    "gap": GAP,
    "tiers": GAP,
    "crosscheck": LIBRARIES,
    "curve": "Security curves",
    "transfer": "Transferability",
    "detection": "Detection",
    "diversity": "Diversity",
    "geometry": "Diversity",
    "features": "Diversity",
    "attacks": "Adversarial images",
}
"""Headings of the figures, by the first word of their names."""
PER_INCH, WIDEST = 158, 1080
"""Pixels on the page per inch of a figure, and of the widest figure."""
HALF = 580
"""Pixels of half the page."""


class Shown(NamedTuple):
    """The content of the page."""

    layout: Layout
    comparison: Comparison | None
    libraries: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    """The tables of the evaluations, by the name of their file."""
    figures: Sequence[Figure]


def write_page(folder: Path, shown: Shown) -> None:
    """Write report.html; the figures must already be in its folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        finalize=escaping.html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = _digest
    write_text(folder / "report.html", environment.get_template("report.html.j2").render(_content(folder, shown)))


def _digest(script: str) -> str:
    """The hash in the content security policy that allows only the page's own script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _content(folder: Path, shown: Shown) -> dict[str, Any]:
    layout, compared, tables = shown.layout, shown.libraries, shown.tables
    results = layout.results
    warned = warned_of(results)
    first = next(iter(sorted(shown.figures, key=lambda figure: _kind(figure.name) != GAP)), None)
    groups: dict[str, list[Picture]] = {}
    for figure in shown.figures:
        if figure is not first:
            groups.setdefault(_kind(figure.name), []).append(_picture(folder, figure))
    more = {
        LIBRARIES: plain("crosscheck.csv: a row per library, accuracies in percent", compared),
        GAP: plain(
            "strong.csv: the attacks of tier strong in their order, and how many images each fooled first",
            tables["strong"],
        ),
        "Transferability": plain("transfer.csv: every source and target model, in percent", tables["transfer"]),
        "Diversity": plain(
            "diversity.csv: median log ensemble diversity, mean confidence, and accuracy in percent",
            tables["diversity"],
        ),
        "Seeds": plain("seeds.csv: mean and standard deviation over seeds, in percent", tables["seeds"]),
        "Detection": plain(
            "detection.csv: AUC, and true positive rate at fixed false positive rates", tables["detection"]
        ),
    }
    return {
        "title": differences.title(shown.comparison) if shown.comparison else results.title,
        "preset": results.manifest["preset"],
        "counts": counts(results),
        "verdict": verdict(layout, shown.comparison, tables),
        "first": _picture(folder, first) if first else None,
        "findings": findings(layout, shown.comparison is None),
        "warning_lines": warning_lines(warned),
        "checked": f"{results.diagnosis.summary}.".capitalize(),
        "warnings": facts.warnings(warned),
        "glances": [found for dataset in layout.datasets if (found := accuracies.glance(layout, dataset))],
        "differences": differences.differences(shown.comparison) if shown.comparison else [],
        "clean": [found for dataset in layout.datasets if (found := accuracies.clean(layout, dataset))],
        "tiers": [found for dataset in layout.datasets for found in accuracies.by_tier(layout, dataset)],
        "tier_words": {tier: words for tier, words in TIERS.items() if tier in set(layout.table["tier"])},
        "libraries": library_tables(compared),
        "libraries_words": [crosscheck.summary(compared), *crosscheck.RULES] if len(compared) else [],
        "libraries_pictures": groups.pop(LIBRARIES, []),
        "groups": groups,
        "more": {kind: found for kind, found in more.items() if found},
        "tidy": plain("table.csv: one row per cell, accuracies in percent", layout.table),
        "commands": results.manifest.get("commands", []),
        "versions": results.manifest.get("versions", {}) | facts.code_of(results),
        "machine": results.manifest.get("machine", {}),
        "ensembles": facts.ensembles(results.cells),
        "surrogates": made_on(results),
        "attacks": facts.attacks(results.cells),
    }


def _kind(name: str) -> str:
    return KINDS.get(name.split("-")[0], "More figures")


def _picture(folder: Path, figure: Figure) -> Picture:
    source = _embedded((folder / "figures" / f"{figure.name}.svg").read_bytes())
    narrow = _embedded(svg) if (svg := figure.narrow_svg()) else ""
    width = min(round(PER_INCH * float(figure.canvas.get_size_inches()[0])), WIDEST)
    return Picture(figure.name, figure.title, figure.words, source, width, width > HALF, narrow)


def _embedded(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
