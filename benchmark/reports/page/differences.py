"""Differences on the page of a comparison: candidate minus reference on the same images, one row per attack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.comparison import Comparison, under_attack
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.reports.page.widgets import NOTHING, Field, Heading, Table, attack_field, number_field, signed


def title(found: Comparison) -> str:
    """The title: the compared defenses, with their names in the tables."""
    return f"{naming.inline(found.candidate)} against {naming.listed(map(naming.inline, found.references))}"


def differences(found: Comparison) -> list[Table]:
    """A table per reference: over training seeds if there are several, else for the one seed."""
    return [_table(found, name) for name in found.references]


def _table(found: Comparison, reference: str) -> Table:
    by_seed, over_seeds = found.against(reference)
    rows = over_seeds if len(over_seeds) else by_seed
    rows = rows[under_attack(rows) | (rows["parameters"] == Clean().parameters)]  # clean accuracy: only of the ensemble
    count = "seeds" if "seeds" in rows else "seed"
    several = count == "seeds" or rows["seed"].nunique() > 1
    candidate, other = naming.defense(found.candidate), naming.defense(reference)
    columns = [Heading("attack", number=False, heads=True), Heading("tier", number=False)]
    columns += [Heading(count)] if several else []
    columns += [Heading(candidate), Heading(other), Heading("difference", "points")]
    columns += [Heading("p", "Holm's correction")] if found.rule is None else []
    fields = [_fields(row, count if several else "", found.rule is None) for row in rows.to_dict("records")]
    caption = f"{naming.inline(found.candidate)} minus {naming.inline(reference)}, in points"
    return Table(caption, columns, fields)


def _fields(row: dict[Any, Any], count: str, fixed_size: bool) -> list[Field]:
    clear = fixed_size and row["p_holm"] < SIGNIFICANT
    interval = "" if pd.isna(row["ci_low"]) else f"{row['ci_low']:+.1f} to {row['ci_high']:+.1f}".replace("-", "−")
    flags = [f"warning about the {side}: {row[f'{side}_flags']}" for side in _SIDES if row[f"{side}_flags"]]
    difference = replace(
        signed(row["difference"]), note=interval, bold=bool(clear), flagged=bool(flags),
        more=(f"{row['samples']} test images", *flags),
    )  # fmt: skip
    fields = [attack_field(row["attack"], row["parameters"]), Field(row["tier"])]
    fields += [Field(str(row[count]))] if count else []
    fields += [number_field(f"{row[side]:.1f}", "") for side in _SIDES]
    p = NOTHING if pd.isna(row["p_holm"]) else f"{row['p_holm']:.2g}"
    return [*fields, difference, *([number_field(p, "")] if fixed_size else [])]


_SIDES = ("candidate", "reference")
