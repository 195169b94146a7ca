"""One attack in several libraries, on the same images: agreement of the results, cost and failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.cells.pictures import Pictures
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.results import Results
from benchmark.findings.rows import percent_mean_interval
from benchmark.findings.statistics import SIGNIFICANT, holm, paired_test
from defenses.errors import BadInput

NORMS = ("linf", "l2", "l1")
ROUNDING = 2**-11
"""Images are stored in half precision, so that equal images may differ by this much."""
LARGER = 1.1
"""For an attack without a bound, perturbations that are larger or smaller by this factor are reported."""
DEARER = 2.0
"""A number of model passes that differs by this factor is reported."""
COUNTS = ("unmoved", "out_of_box", "out_of_ball", "not_finite", "zero_gradient")
COLUMNS = (
    "dataset", "defense", "tier", "seed", "attack", "parameters", "library", "samples",
    "accuracy", "ci_low", "ci_high", "difference", "p", "p_holm", "same_outcome", "same_class", "pixel_difference",
    "l2", "linf", "l2_ratio", *COUNTS, "forwards", "backwards", "seconds", "cost", "relation", "verdict",
)  # fmt: skip
RULES = (
    "The first library of each attack is its default. The other libraries are compared with it on the same images. An "
    "attack that is named in full, of a library or of a file, is compared with the first attack within its bound.",
    "Accuracy is in percent with its 95 % interval. Same outcome: share of images that both fool or both fail to fool. "
    "Same class: share of images with the same predicted class. Pixel: largest difference between the two adversarial "
    "images, over the few images that are stored.",
    "L2 and L∞: mean size of the perturbations that fool. Forward and backward passes, and seconds, are per image. "
    "Cost: seconds as a multiple of the default's.",
    "Verdicts. Same images: every predicted class and every size (L∞, L2, L1) is equal, and no stored pixel differs. "
    "Same outcomes: every outcome is equal. Weaker or stronger: accuracies differ significantly (McNemar's exact test, "
    f"Holm's correction over the whole table, {100 * SIGNIFICANT:g} %). Otherwise: no significant difference, which is "
    "no proof that they are equal.",
    "A verdict also names repairs (images outside the box or the ball, or not finite), attacks that changed fewer than "
    f"1 % of the images, perturbations without a bound that are {100 * (LARGER - 1):.0f} % larger or smaller (L2, "
    f"images that both fool), and passes that differ by a factor of {DEARER:g}. Known differences of a library stand "
    "behind a dash; docs/attacks.md has the evidence.",
)
"""The explanation of the table, as paragraphs."""


def crosscheck_table(results: Results) -> pd.DataFrame:
    """A row per library for every attack setting that several libraries ran; empty without such a setting."""
    groups: dict[object, list[Cell]] = {}
    for cell in results.cells:
        if isinstance(cell.task, WhiteBox):
            groups.setdefault((cell.column, cell.task.variant()), []).append(cell)
    found = [*groups.values(), *(_within_one_bound(results) if results.manifest.get("preset") == "crosscheck" else ())]
    rows = [row for cells in found if len(cells) > 1 for row in _rows(results, cells)]
    tested = [row for row in rows if "p" in row]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    for row in rows:
        row["relation"] = _relation(row)
        row["verdict"] = _verdict(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _within_one_bound(results: Results) -> list[list[Cell]]:
    """Groups of cells with the same bound: the first attack of the run, then the attacks named in full."""
    groups: dict[object, list[Cell]] = {}
    for cell in results.cells:
        if isinstance(cell.task, WhiteBox):
            attack = cell.task.named.attack
            cells = groups.setdefault((cell.column, cell.task.tier, cell.task.bound, attack.wants_target), [])
            if not cells or attack.named_in_full:
                cells.append(cell)
    return list(groups.values())


def _rows(results: Results, cells: list[Cell]) -> list[dict[str, Any]]:
    """The rows of one attack setting, a row per library: the usual library first, else the first one of the run."""
    cells = sorted(cells, key=lambda cell: cell.task.library != _usual(cell))
    default = results.records[cells[0]].set_index("index") if cells[0] in results.records else None
    rows: list[dict[str, Any]] = []
    for cell in cells:
        row = _names(cell, cells[0]) | {"failure": results.failures.get(cell, "not run yet")}
        rows.append(row)
        if cell not in results.records:
            continue
        records = results.records[cell].set_index("index")
        row |= _measured(records)
        if default is None:
            continue
        first = rows[0]
        row["cost"] = round(row["seconds"] / first["seconds"], 2) if first["seconds"] else None
        passes = first["forwards"] + first["backwards"]
        row["passes"] = (row["forwards"] + row["backwards"]) / passes if passes else 1.0
        if cell is not cells[0]:
            row |= _compared(records, default)
            moved = {*records.index[records["linf"] > 0], *default.index[default["linf"] > 0]}
            row["pixel_difference"] = _pixel_difference(results.pictures(cell), results.pictures(cells[0]), moved)
    return rows


def _names(cell: Cell, default: Cell) -> dict[str, Any]:
    """The columns that identify a row, and the note of the attack's definition on this library."""
    assert isinstance(cell.task, WhiteBox)
    named = cell.task.named
    return {
        "dataset": cell.images.dataset,
        "defense": cell.ensemble.defense,
        "tier": cell.task.tier,
        "seed": cell.conditions.seed,
        "attack": named.name,
        "parameters": named.parameters,
        "samples": 0,
        "library": f"{named.library} {named.version}".strip(),
        "default": default.task.library,
        "is_default": cell is default,
        "bounded": named.bound is not None,
        "note": named.attack.notes.get(named.library, ""),
    }


def _usual(cell: Cell) -> str:
    """The library that runs the attack by default; empty for an attack that is no longer registered."""
    attack = cell.task.attack.attack if cell.task.attack else None
    return attack.usual_library if attack and attack.backends else ""


def _measured(records: pd.DataFrame) -> dict[str, Any]:
    count, right = len(records), float(records["p_correct"].sum())
    low, high = percent_mean_interval(records["p_correct"])
    fooled = records[records["attacked"] & ~records["correct"]]
    return {
        "samples": count,
        "accuracy": round(100 * right / count, 4),
        "ci_low": low,
        "ci_high": high,
        "attacked": int(records["attacked"].sum()),
        **{name: int(records[name].sum()) for name in COUNTS},
        **{name: round(float(records[name].mean()), 2) for name in ("forwards", "backwards")},
        "seconds": round(float(records["seconds"].mean()), 6),
        **{norm: round(float(fooled[norm].mean()), 4) if len(fooled) else None for norm in ("l2", "linf")},
    }


def _compared(records: pd.DataFrame, default: pd.DataFrame) -> dict[str, Any]:
    """The paired comparison of two libraries on their common images."""
    mine, other = records.align(default, join="inner", axis=0)
    right, right_there = (frame["p_correct"].to_numpy(dtype=float) for frame in (mine, other))
    both = ~(mine["correct"] | other["correct"]).to_numpy(dtype=bool) & mine["attacked"].to_numpy(dtype=bool)
    size, size_there = (float(frame["l2"][both].mean()) if both.any() else 0.0 for frame in (mine, other))
    return {
        "pairs": len(mine),
        "apart": int((right != right_there).sum()),
        "difference": round(100 * float(right.mean() - right_there.mean()), 4),
        "p": paired_test(right, right_there),
        "same_outcome": round(100 * float((right == right_there).mean()), 4),
        "same_class": round(100 * float((mine["adversarial_prediction"] == other["adversarial_prediction"]).mean()), 4),
        "same_sizes": bool(np.allclose(mine[list(NORMS)], other[list(NORMS)], rtol=1e-3, atol=1e-4)),
        "l2_ratio": round(size / size_there, 4) if size_there else None,
    }


def _pixel_difference(mine: Pictures | None, other: Pictures | None, moved: set[Any]) -> float | None:
    """The largest pixel difference between the stored adversarial images of two libraries, if one changed the image."""
    if mine is None or other is None:
        return None
    places = [
        (place, int(there[0]))
        for place, row in enumerate(mine.index)
        if row in moved and len(there := np.flatnonzero(other.index == row))
    ]
    differences = [
        float(np.abs(mine.adversarial[here].astype(float) - other.adversarial[there].astype(float)).max())
        for here, there in places
    ]
    return round(max(differences), 6) if differences else None


# --- verdicts in words ---


def _relation(row: dict[str, Any]) -> str:
    """The relation of a row to the default library, as one of a few terms."""
    if not row["samples"]:
        return "not run" if row["failure"] == "not run yet" else "failed"
    if row["is_default"]:
        return "default"
    if "p_holm" not in row:
        return "alone"
    same = row["pixel_difference"] is not None and row["pixel_difference"] <= ROUNDING
    if same and row["same_sizes"] and row["same_class"] == 100:
        return "same images"
    if row["same_outcome"] == 100:
        return "same outcomes"
    if row["p_holm"] < SIGNIFICANT:
        return "weaker" if row["difference"] > 0 else "stronger"
    return "similar"


def _verdict(row: dict[str, Any]) -> str:
    relation, default = row["relation"], row["default"]
    if relation in ("failed", "not run"):
        refused = row["failure"].removeprefix(f"{BadInput.__name__}: ")  # a setting that the library does not support
        words = "refused" if refused != row["failure"] else "failed"
        return f"{words}: {refused}" if relation == "failed" else "not run yet"
    words = {
        "default": "the default",
        "alone": f"nothing to compare with: {default} has no result",
        "same images": f"same images as {default}",
        "same outcomes": f"same outcomes as {default}",
        "weaker": f"weaker than {default}, by {row.get('difference', 0):.1f} points",
        "stronger": f"stronger than {default}, by {-row.get('difference', 0):.1f} points",
        "similar": f"no significant difference from {default} ({_signed(row.get('difference', 0))} points): "
        f"{row.get('apart')} of {row.get('pairs')} images end differently",
    }[relation]
    parts = [*_mended(row), words, *_unlike(row)]
    return "; ".join(parts) + (f" – {row['note']}" if row["note"] else "")


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _mended(row: dict[str, Any]) -> list[str]:
    """The defects of an attack, repaired by the harness or not."""
    parts = []
    attacked = row["attacked"]
    moved = attacked - row["unmoved"]
    if attacked and moved < 0.01 * attacked:
        parts.append(f"moved {moved} of {attacked} images" if moved else "moved nothing")
    if row["not_finite"]:
        parts.append(f"{row['not_finite']} images not finite")
    if row["out_of_box"]:
        parts.append(f"left the box on {row['out_of_box']} of {attacked} images")
    if row["out_of_ball"]:
        parts.append(f"left the ball on {row['out_of_ball']} of {attacked} images")
    if row["zero_gradient"] > 0.01 * attacked:
        parts.append(f"no gradient on {row['zero_gradient']} of {attacked} images")
    return parts


def _unlike(row: dict[str, Any]) -> list[str]:
    """Perturbation sizes and costs that differ much from the default library's."""
    parts = []
    ratio = row.get("l2_ratio")
    if ratio and not row["bounded"] and not 1 / LARGER < ratio < LARGER:
        parts.append(f"perturbations {100 * abs(ratio - 1):.0f} % {'larger' if ratio > 1 else 'smaller'}")
    passes = row.get("passes", 1.0)
    if not 1 / DEARER < passes < DEARER:
        parts.append(f"{passes:.2g} times the passes")
    return parts


def summary(table: pd.DataFrame) -> str:
    """The whole table in one sentence."""
    relations = table["relation"]
    attacks = len(table.drop_duplicates(["dataset", "defense", "tier", "seed", "attack", "parameters"]))
    others = len(table) - attacks
    told = {
        "same images": "the same images",
        "same outcomes": "the same outcome on every image",
        "similar": "no significant difference",
        "weaker": "weaker",
        "stronger": "stronger",
        "alone": "nothing to compare with",
        "failed": "failed",
        "not run": "not run",
    }
    parts = [f"{words}: {int((relations == word).sum())}" for word, words in told.items() if (relations == word).any()]
    mended = int((table[["out_of_box", "out_of_ball", "not_finite"]].fillna(0).sum(axis=1) > 0).sum())
    if mended:
        parts.append(f"images outside the box or the ball, or not finite: {mended}")
    counted = f"{attacks} attack{'s' * (attacks != 1)}, {others} version{'s' * (others != 1)} beside the default's"
    return f"{counted}. {'; '.join(parts).capitalize()}."
