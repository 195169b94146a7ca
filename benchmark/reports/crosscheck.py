"""One attack in several libraries, on the same images: do they do the same, at which cost, and what went wrong."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchmark.attacks import parse_attack
from benchmark.cells import Cell
from benchmark.reports.figures import (
    COLOURS,
    Figure,
    canvas,
    legend_columns,
    legend_height,
    margins,
    seed_mark,
    slug,
    style,
    text_width,
)
from benchmark.statistics import accuracy_interval, holm, mcnemar
from benchmark.store import Store
from defenses.errors import BadInput
from defenses.files import write_text

SIGNIFICANT = 0.05
NORMS = ("linf", "l2", "l1")
ROUNDING = 2**-11
"""Images are kept in half precision: two that are equal may differ by so much."""
LARGER = 1.1
"""Perturbations of an attack without a bound that are larger, or smaller, by this factor are told."""
DEARER = 2.0
"""So are passes through the model."""
COUNTS = ("unmoved", "out_of_box", "out_of_ball", "not_finite", "zero_gradient")
COLUMNS = (
    "dataset", "defense", "tier", "seed", "attack", "parameters", "library", "samples",
    "accuracy", "ci_low", "ci_high", "difference", "p", "p_holm", "same_outcome", "same_class", "pixel_difference",
    "l2", "linf", "l2_ratio", *COUNTS, "forwards", "backwards", "seconds", "cost", "relation", "verdict",
)  # fmt: skip
RULES = (
    "The first library of each attack is its default; the others are compared with it on the same images.",
    "Accuracy is in percent with its 95 % interval. Same outcome: share of images that both fool or both leave right; "
    "same class: share with the same predicted class. Pixel: the largest difference between the adversarial images of "
    "both, on the few that are kept.",
    "L2 and L∞: mean size of the perturbations that fool. Forward and backward passes, and seconds, are per image; "
    "cost is seconds as a multiple of the default's.",
    "Verdict: same images, where every class and every size (L∞, L2, L1) is the same and no pixel that is kept "
    "differs; same outcomes, where every outcome is; weaker or stronger, where accuracies differ significantly "
    f"(McNemar's exact test, Holm's correction over the whole table, {100 * SIGNIFICANT:g} %); no significant "
    "difference otherwise, which is no proof that they are equal.",
    "A verdict also tells what had to be mended (images that left the box or the ball, or are not finite), when fewer "
    f"than 1 % of the images moved, perturbations without a bound that are {100 * (LARGER - 1):.0f} % larger or "
    f"smaller (L2, images that both fool), and passes that differ by a factor of {DEARER:g}. What the library is known "
    "to do differently stands behind a dash; the evidence is in docs/attacks.md.",
)
"""How the table is to be read, a paragraph each."""


def crosscheck_table(store: Store) -> pd.DataFrame:
    """A row per library of every attack that was run, at one setting, by more than one; empty where none was."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in store.asked():
        if cell.evaluation == "whitebox":
            groups.setdefault(replace(cell, library="").place, []).append(cell)
    rows = [row for cells in groups.values() if len(cells) > 1 for row in _rows(store, cells)]
    tested = [row for row in rows if "p" in row]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    for row in rows:
        row["relation"] = _relation(row)
        row["verdict"] = _verdict(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(store: Store, cells: list[Cell]) -> list[dict[str, Any]]:
    """The libraries of one attack at one setting, the default first: the usual one, or else the first asked for."""
    cells = sorted(cells, key=lambda cell: cell.library != _known(cell)["usual"])
    default = store.read(cells[0]).set_index("index") if store.has(cells[0]) else None
    rows: list[dict[str, Any]] = []
    for cell in cells:
        row: dict[str, Any] = {name: getattr(cell, name) for name in ("dataset", "defense", "tier", "seed")}
        row |= {"attack": cell.attack, "parameters": cell.parameters, "samples": 0}
        row |= {"library": f"{cell.library} {cell.library_version}".strip(), "default": cells[0].library}
        row |= {"is_default": cell is cells[0], "failure": store.failure(cell) or "not run yet", **_known(cell)}
        rows.append(row)
        if not store.has(cell):
            continue
        records = store.read(cell).set_index("index")
        row |= _measured(records)
        if default is None:
            continue
        first = rows[0]
        row["cost"] = round(row["seconds"] / first["seconds"], 2) if first["seconds"] else None
        passes = first["forwards"] + first["backwards"]
        row["passes"] = (row["forwards"] + row["backwards"]) / passes if passes else 1.0
        if cell is not cells[0]:
            row |= _compared(records, default)
    return rows


def _known(cell: Cell) -> dict[str, Any]:
    """What the definition of the attack says: whether it is bounded, and what this library does differently."""
    with contextlib.suppress(BadInput):  # an attack of a package that is gone is compared all the same
        attack = parse_attack(f"{cell.attack}@{cell.library}({cell.parameters})").attack
        note = attack.notes.get(cell.library, "")
        return {"bounded": attack.budget is not None, "note": note, "usual": attack.usual_library}
    return {"bounded": True, "note": "", "usual": ""}


def _measured(records: pd.DataFrame) -> dict[str, Any]:
    count, right = len(records), int(records["correct"].sum())
    low, high = accuracy_interval(right, count)
    fooled = records[records["attacked"] & ~records["correct"]]
    return {
        "samples": count,
        "accuracy": round(100 * right / count, 4),
        "ci_low": round(100 * low, 4),
        "ci_high": round(100 * high, 4),
        "attacked": int(records["attacked"].sum()),
        **{name: int(records[name].sum()) for name in COUNTS},
        **{name: round(float(records[name].mean()), 2) for name in ("forwards", "backwards")},
        "seconds": round(float(records["seconds"].mean()), 6),
        **{norm: round(float(fooled[norm].mean()), 4) if len(fooled) else None for norm in ("l2", "linf")},
    }


def _compared(records: pd.DataFrame, default: pd.DataFrame) -> dict[str, Any]:
    """What pairs of outcomes say, on the images that both have."""
    mine, other = records.align(default, join="inner", axis=0)
    right, right_there = (frame["correct"].to_numpy(dtype=bool) for frame in (mine, other))
    both = ~right & ~right_there & mine["attacked"].to_numpy(dtype=bool)
    size, size_there = (float(frame["l2"][both].mean()) if both.any() else 0.0 for frame in (mine, other))
    return {
        "pairs": len(mine),
        "apart": int((right != right_there).sum()),
        "difference": round(100 * float(right.mean() - right_there.mean()), 4),
        "p": mcnemar(right, right_there),
        "same_outcome": round(100 * float((right == right_there).mean()), 4),
        "same_class": round(100 * float((mine["adversarial_prediction"] == other["adversarial_prediction"]).mean()), 4),
        "pixel_difference": _pixel_difference(mine, other),
        "same_sizes": bool(np.allclose(mine[list(NORMS)], other[list(NORMS)], rtol=1e-3, atol=1e-4)),
        "l2_ratio": round(size / size_there, 4) if size_there else None,
    }


def _pixel_difference(mine: pd.DataFrame, other: pd.DataFrame) -> float | None:
    if "image_adversarial" not in mine or "image_adversarial" not in other:
        return None
    kept = mine["image_adversarial"].notna() & other["image_adversarial"].notna()
    kept &= (mine["linf"] > 0) | (other["linf"] > 0)  # two images that nobody moved show nothing
    one, two = (
        [np.frombuffer(content, dtype=np.float16).astype(float) for content in frame["image_adversarial"][kept]]
        for frame in (mine, other)
    )
    return round(max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)), 6) if one else None


# --- the words ---


def _relation(row: dict[str, Any]) -> str:
    """What the row is to the default, in one of a few words."""
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
        refused = row["failure"].removeprefix(f"{BadInput.__name__}: ")  # a setting that the library cannot honour
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
    """What the harness had to put right, or could not."""
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
    """Sizes and costs that are far from the default's."""
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


# --- files ---


def write_crosscheck(store: Store) -> pd.DataFrame:
    """Write crosscheck.csv and crosscheck.md of a run with an attack in several libraries; the table."""
    table = crosscheck_table(store)
    files = store.folder / "crosscheck.csv", store.folder / "crosscheck.md"
    if table.empty:
        for path in files:
            path.unlink(missing_ok=True)
    else:
        write_text(files[0], table.to_csv(index=False, lineterminator="\n"))
        write_text(files[1], _markdown(table))
    return table


HEADS = (
    "attack", "library", "accuracy", "same outcome", "same class", "pixel", "L2", "L∞", "unmoved", "out of box",
    "out of ball", "not finite", "zero gradient", "forwards", "backwards", "s/image", "cost", "verdict",
)  # fmt: skip


def _markdown(table: pd.DataFrame) -> str:
    lines = ["# One attack, every library", "", summary(table), ""]
    for (dataset, defense, tier, seed), rows in table.groupby(["dataset", "defense", "tier", "seed"], sort=False):
        lines += [f"## {dataset}, {defense}, tier {tier}{f', seed {seed}' if seed else ''}", ""]
        lines += ["| " + " | ".join(HEADS) + " |", "| --- | --- |" + " ---: |" * (len(HEADS) - 3) + " --- |"]
        for row in rows.to_dict("records"):
            accuracy = f"{row['accuracy']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})" if row["samples"] else "–"
            attack = f"{row['attack']}({row['parameters']}), {row['samples']} images"
            shown = [
                attack if row["relation"] == "default" or not row["samples"] else f"{row['attack']}",
                row["library"],
                accuracy,
                number(row["same_outcome"], "{:.0f} %"),
                number(row["same_class"], "{:.0f} %"),
                number(row["pixel_difference"], "{:.2g}"),
                *(number(row[name], "{:.3g}") for name in ("l2", "linf")),
                *(number(row[name], "{:.0f}") for name in COUNTS),
                *(number(row[name], "{:.1f}") for name in ("forwards", "backwards")),
                number(row["seconds"], "{:.2g}"),
                number(row["cost"], "{:.1f}"),
                row["verdict"].replace("|", "\\|"),
            ]
            lines.append("| " + " | ".join(shown) + " |")
        lines.append("")
    return "\n".join([*lines, *(f"- {rule}" for rule in RULES)]) + "\n"


def number(value: Any, form: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None or pd.isna(value) else form.format(value)


def crosscheck_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset and defense: accuracy with its interval, and seconds, of every library."""
    keys = ["dataset", "defense", "tier", "seed"]
    return [_figure(rows) for _, rows in table.groupby(keys, sort=False) if rows["samples"].any()]


def _figure(rows: pd.DataFrame) -> Figure:
    dataset, defense, tier = (str(rows[name].iloc[0]) for name in ("dataset", "defense", "tier"))
    done = rows[rows["samples"] > 0]
    names = done["attack"] + done["parameters"].map(lambda text: f"\n{text.replace(',', ', ')}" if text else "")
    attacks = list(dict.fromkeys(names))
    libraries = list(dict.fromkeys(done["library"]))
    several = names.groupby(names)
    heights = names.map(attacks.index) + 0.17 * (several.cumcount() - (several.transform("size") - 1) / 2)
    with style():
        across = legend_columns(libraries, 5)
        above = legend_height(-(-len(libraries) // across)) + 0.05
        figure = canvas(0.42 * len(attacks) + 0.45 + above)
        margins(figure, left=0.1 + text_width(attacks), top=above)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2), gridspec_kw={"wspace": 0.06})
        for position, library in enumerate(libraries):
            mine = done[done["library"] == library]
            y = heights[mine.index]
            whiskers = [mine["accuracy"] - mine["ci_low"], mine["ci_high"] - mine["accuracy"]]
            look: dict[str, Any] = {"color": COLOURS[position % len(COLOURS)], "ms": 4, "linestyle": "none"}
            look["marker"] = "osD^vPX*"[position % 8]
            left.errorbar(mine["accuracy"], y, xerr=whiskers, elinewidth=0.7, label=library, **look)
            right.plot(1000 * mine["seconds"], y, **look)
        left.set_yticks(range(len(attacks)), attacks)
        left.set_ylim(len(attacks) - 0.5, -0.5)
        left.set_xlim(-2, 102)
        left.set_xlabel("accuracy under attack, %")
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
        right.set_xlabel("milliseconds per image")
        for axis in (left, right):
            axis.grid(axis="x", lw=0.4, color="0.85")
            axis.set_axisbelow(True)
            for line in range(1, len(attacks)):
                axis.axhline(line - 0.5, lw=0.5, color="0.75")
            axis.tick_params(axis="y", length=0)
        figure.legend(loc="upper center", ncols=across, borderaxespad=0.2)
    title = f"One attack, every library: {defense} on {dataset}, tier {tier}"
    name = slug("crosscheck", dataset, defense, tier, seed_mark(int(rows["seed"].iloc[0])))
    columns = ["attack", "parameters", "library", "samples", "accuracy", "ci_low", "ci_high", "seconds"]
    words = "Accuracy with its 95 % interval, and time on a logarithmic scale; the default library is the topmost."
    return Figure(name, title, words, figure, rows[columns])
