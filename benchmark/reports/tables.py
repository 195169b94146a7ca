"""Tables: table.csv, tidy, and table.md and table.tex in the paper's layout, attacks down and defenses across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from benchmark.cells import TABLED, Cell, attack_titles
from benchmark.diagnostics import Diagnosis, diagnose
from benchmark.statistics import accuracy_interval, mcnemar
from benchmark.store import Store
from defenses.files import write_text

COLUMNS = (
    "dataset", "defense", "members", "network", "attack", "library", "parameters", "tier", "samples",
    "clean_accuracy", "accuracy", "ci_low", "ci_high", "published", "difference", "unmoved", "out_of_ball",
    "zero_gradient", "forwards", "backwards", "seconds", "seed", "out_of_box", "not_finite", "training", "flags",
)  # fmt: skip
"""Accuracies are in percent; counts are images; forwards and backwards are per image."""

SIGNIFICANT = 0.05
FLAGGED, FLAGGED_TEX = "†", "$^{\\dagger}$"


def summarise(cell: Cell, records: pd.DataFrame, diagnosis: Diagnosis | None = None) -> dict[str, Any]:
    """The row of table.csv for a finished cell; without the diagnosis of its run, it is checked by itself."""
    count, correct = len(records), int(records["correct"].sum())
    low, high = accuracy_interval(correct, count)
    accuracy = 100 * correct / count
    clean = 100 * float((records["clean_prediction"] == records["label"]).mean())
    return {
        **_names(cell),
        "samples": count,
        "clean_accuracy": round(clean, 4),
        "accuracy": round(accuracy, 4),
        "ci_low": round(100 * low, 4),
        "ci_high": round(100 * high, 4),
        "published": cell.published,
        "difference": None if cell.published is None else round(accuracy - cell.published, 4),
        **{name: int(records[name].sum()) for name in ("unmoved", "out_of_ball", "zero_gradient")},
        "forwards": round(float(records["forwards"].mean()), 2),
        "backwards": round(float(records["backwards"].mean()), 2),
        "seconds": round(float(records["seconds"].sum()), 2),
        "seed": cell.seed,
        **{name: int(records[name].sum()) for name in ("out_of_box", "not_finite")},
        "training": cell.training,
        "flags": (diagnosis or diagnose([(cell, records)])).words(cell),
    }


def _names(cell: Cell) -> dict[str, Any]:
    names = ("dataset", "defense", "members", "network", "attack", "library", "parameters", "tier")
    row = {name: getattr(cell, name) for name in names}
    if cell.library_version:
        row["library"] = f"{cell.library} {cell.library_version}"
    return row


class Rows(NamedTuple):
    """What the tables of a run are made of."""

    cells: list[Cell]
    """Cells of the tables, in the manifest's order."""
    table: pd.DataFrame
    """Their rows."""
    records: dict[str, pd.DataFrame]
    """The records of the finished ones by identity."""
    diagnosis: Diagnosis
    """Of every finished cell of the run: some are in no table, but witnesses against one that is."""


def read_rows(store: Store) -> Rows:
    """Read and check what a run has so far."""
    asked = store.asked()
    finished = {cell.identity: store.read(cell) for cell in asked if store.has(cell)}
    diagnosis = diagnose((cell, finished[cell.identity]) for cell in asked if cell.identity in finished)
    cells = [cell for cell in asked if cell.evaluation in TABLED]
    rows, records = [], {}
    for cell in cells:
        if cell.identity in finished:
            records[cell.identity] = finished[cell.identity]
            rows.append(summarise(cell, records[cell.identity], diagnosis))
        else:
            reason = store.failure(cell)
            words = f"failed: {reason}" if reason else "not run yet"
            rows.append({**_names(cell), "samples": 0, "seed": cell.seed, "training": cell.training, "flags": words})
    return Rows(cells, pd.DataFrame(rows, columns=list(COLUMNS)), records, diagnosis)


def write_tables(store: Store, rows: Rows) -> None:
    """Write table.csv, table.md and table.tex."""
    write_text(store.folder / "table.csv", rows.table.to_csv(index=False, lineterminator="\n"))
    layout = Layout(rows.cells, rows.table, rows.records)
    manifest = store.manifest()
    notes = _notes(layout, rows.diagnosis, made_on(store))
    write_text(store.folder / "table.md", _markdown(layout, manifest["title"], notes))
    write_text(store.folder / "table.tex", _latex(layout, manifest["title"], notes))


class Layout:
    """The numbers of a table, arranged as the paper does."""

    def __init__(self, cells: list[Cell], table: pd.DataFrame, records: dict[str, pd.DataFrame]) -> None:
        self.cells = cells
        self.table = table
        self.records = records
        self.datasets = _unique(cell.dataset for cell in cells)
        self.titles = attack_titles(cells)
        self.seeds = len({cell.seed for cell in cells})
        self.all = list(range(len(cells)))

    def defenses(self, dataset: str) -> list[str]:
        return _unique(cell.defense for cell in self.cells if cell.dataset == dataset)

    def tiers(self, dataset: str) -> list[str]:
        return _unique(cell.tier for cell in self.cells if cell.dataset == dataset)

    def attacks(self, dataset: str, tier: str) -> list[tuple[str, str]]:
        chosen = (cell for cell in self.cells if (cell.dataset, cell.tier) == (dataset, tier))
        return _unique(map(self.attack, chosen))

    def attack(self, cell: Cell) -> tuple[str, str]:
        """Name and parameters; the library is named where one table has the attack of several."""
        return self.titles[cell.dataset, cell.attack, cell.library], cell.parameters

    def of(self, dataset: str, attack: tuple[str, str], tier: str, defense: str) -> list[int]:
        """Positions of the cells (one per seed) behind one number of the table."""
        return [
            position
            for position, cell in enumerate(self.cells)
            if (cell.dataset, self.attack(cell), cell.tier, cell.defense) == (dataset, attack, tier, defense)
        ]

    def number(self, positions: list[int], decimals: int = 1) -> str:
        """Accuracy, or mean ± spread over seeds."""
        values = self.table["accuracy"].iloc[positions].dropna()
        if values.empty:
            return "–"
        if len(values) == 1:
            return f"{values.iloc[0]:.{decimals}f}"
        return f"{values.mean():.{decimals}f} ± {values.std(ddof=1):.{decimals}f}"

    def published(self, positions: list[int]) -> str:
        values = self.table["published"].iloc[positions].dropna()
        return f"{values.iloc[0]:.1f}" if len(values) else ""

    def best(self, dataset: str, attack: tuple[str, str], tier: str) -> str | None:
        """The defense that beats every other on the same images, each difference significant for each seed; else none.

        None where a defense has no number, or was not measured alike.
        """
        found: dict[str, dict[int, pd.Series[bool]]] = {}
        conditions: dict[int, dict[str, str]] = {}
        for defense in self.defenses(dataset):
            cells = [self.cells[p] for p in self.of(dataset, attack, tier, defense)]
            if not cells or any(cell.identity not in self.records for cell in cells):
                return None
            if any(cell.conditions != conditions.setdefault(cell.seed, cell.conditions) for cell in cells):
                return None
            found[defense] = {c.seed: self.records[c.identity].set_index("index")["correct"] for c in cells}
        if len(found) < 2:
            return None
        means = {defense: float(pd.concat(seeds.values()).mean()) for defense, seeds in found.items()}
        leader = max(means, key=lambda defense: means[defense])
        others = [seeds for defense, seeds in found.items() if defense != leader]
        return leader if all(_leads(found[leader], seeds) for seeds in others) else None

    def quirk(self, dataset: str, attack: tuple[str, str], defense: str) -> float | None:
        """Tier paper minus tier strict; None where one of them is missing or is of other images."""
        paper, strict = (self.table.iloc[self.of(dataset, attack, tier, defense)] for tier in ("paper", "strict"))
        gap = paper["accuracy"].mean() - strict["accuracy"].mean()
        images = [sorted(zip(part["seed"], part["samples"], strict=True)) for part in (paper, strict)]
        return float(gap) if images[0] == images[1] and not pd.isna(gap) else None

    def flagged(self, positions: list[int]) -> bool:
        """True where a check speaks against one of the numbers."""
        rows = self.table.iloc[positions]
        return bool(((rows["samples"] > 0) & (rows["flags"] != "")).any())

    def unattacked(self, dataset: str, defense: str) -> pd.DataFrame:
        """Rows, one per seed, with the ensemble's clean accuracy on the most images there are."""
        rows = self.table[(self.table["dataset"] == dataset) & (self.table["defense"] == defense)]
        rows = rows[
            ((rows["attack"] != "none") | (rows["parameters"] == "classifier=ensemble")) & (rows["samples"] > 0)
        ]
        return rows[rows["samples"] == rows["samples"].max()].drop_duplicates("seed")

    def _clean(self, dataset: str, defense: str) -> str:
        rows = self.unattacked(dataset, defense)
        return f"{rows['clean_accuracy'].mean():.1f} (of {int(rows['samples'].iloc[0])})" if len(rows) else "–"

    def notes(self) -> list[str]:
        """Sample counts, training and what is missing, for below the table."""
        lines = []
        counts = self.table[self.table["samples"] > 0].groupby(["dataset", "attack"], sort=False)["samples"]
        for dataset in self.datasets:
            shown = [f"{name} {_span(values)}" for (data, name), values in counts if data == dataset]
            if shown:
                lines.append(f"Images on {dataset}: {', '.join(shown)}.")
        for dataset in self.datasets:
            clean = [f"{name} {self._clean(dataset, name)}" for name in self.defenses(dataset)]
            if self.tiers(dataset) != ["clean"]:
                lines.append(f"Right without an attack on {dataset}, of the most images there are: {', '.join(clean)}.")
        attacked = self.table[self.table["library"] != "none"]
        for library, rows in attacked.groupby("library", sort=False):
            lines.append(f"Run by {library}: {', '.join(_unique(rows['attack']))}.")
        trained = self.table.drop_duplicates(["dataset", "defense", "seed"])
        several = trained["dataset"].nunique() > 1
        for (dataset, training), rows in trained.groupby(["dataset", "training"], sort=False):
            where = f" on {dataset}" if several else ""
            lines.append(f"Trained{where} with {training}: {', '.join(_unique(rows['defense']))}.")
        for cell, words in zip(self.cells, self.table["flags"], strict=True):
            if cell.identity not in self.records:
                lines.append(f"Warning, {cell.dataset} · {cell.title}: {words}.")
        return lines


def _leads(mine: dict[int, pd.Series[bool]], theirs: dict[int, pd.Series[bool]]) -> bool:
    """Ahead for each seed: what several seeds make of one image is not independent, so they are not pooled."""
    return mine.keys() == theirs.keys() and all(
        values.index.equals(theirs[seed].index)
        and values.mean() > theirs[seed].mean()
        and mcnemar(values, theirs[seed]) < SIGNIFICANT
        for seed, values in mine.items()
    )


def made_on(store: Store) -> list[str]:
    """A sentence for every surrogate of black-box attacks."""
    told = store.surrogates()
    used = _unique(cell.settings["surrogate"] for cell in store.asked() if "surrogate" in cell.settings)
    return [f"Black-box images were made on {told.get(weights, weights)}." for weights in used]


def _span(counts: pd.Series[int]) -> str:
    """One number of images, or the least and the most there are."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high} (each row's number is in table.csv)"


def _notes(layout: Layout, diagnosis: Diagnosis, surrogates: list[str]) -> list[str]:
    """What a reader of the numbers must know."""
    notes = [*layout.notes(), *surrogates, f"Checks: {diagnosis.summary}."] if diagnosis.cells or layout.cells else []
    return notes + [f"Flag {flag.name}, {flag.where}: {flag.words}. {flag.advice}" for flag in diagnosis.flags]


def _markdown(layout: Layout, title: str, notes: list[str]) -> str:
    words = [
        "Accuracy in percent, the published number in parentheses. Bold: ahead of every other defense on the same",
        f"images, each lead significant (McNemar, {SIGNIFICANT:.0%}). Intervals and costs are in table.csv.",
    ]
    if layout.seeds > 1:
        words += [
            "±: mean and standard deviation over seeds (of the attack alone, where the model is from outside); a lead"
        ]
        words += ["counts where it is significant for each seed."]
    if layout.flagged(layout.all):
        words += [f"{FLAGGED}: a check speaks against the number, see below the tables."]
    if not layout.cells:
        words = ["Nothing here has rows in a table: the figures are in report.html and in figures/."]
    lines = [f"# {title}", "", *words, ""]
    for dataset in layout.datasets:
        defenses = layout.defenses(dataset)
        for tier in layout.tiers(dataset):
            lines += [f"## {dataset}, {_tier_title(tier)}", "", *_head(["attack", "parameters", *defenses])]
            for attack in layout.attacks(dataset, tier):
                best = layout.best(dataset, attack, tier)
                line = list(attack)
                for defense in defenses:
                    positions = layout.of(dataset, attack, tier, defense)
                    number, published = layout.number(positions), layout.published(positions)
                    number = f"**{number}**" if best == defense else number
                    number += FLAGGED if layout.flagged(positions) else ""
                    line.append(f"{number} ({published})" if published else number)
                lines.append(_row(line))
            lines.append("")
        lines += _quirks(layout, dataset)
    return "\n".join([*lines, *(f"- {line}" for line in notes)]) + "\n"


def _tier_title(tier: str) -> str:
    return "no attack" if tier == "clean" else f"tier {tier}"


def _quirks(layout: Layout, dataset: str) -> list[str]:
    """How much of each number is owed to the paper's way of attacking: paper minus strict, in points."""
    if not {"paper", "strict"} <= set(layout.tiers(dataset)):
        return []
    defenses = layout.defenses(dataset)
    lines = [
        f"## {dataset}, what the paper's quirks are worth",
        "",
        "Tier paper minus tier strict, in points: above zero, the paper's way of attacking leaves the higher number.",
        "",
        *_head(["attack", "parameters", *defenses]),
    ]
    rows = []
    for attack in layout.attacks(dataset, "paper"):
        gaps = [layout.quirk(dataset, attack, defense) for defense in defenses]
        if any(gap is not None for gap in gaps):
            rows.append(_row([*attack, *("–" if gap is None else f"{gap:+.1f}" for gap in gaps)]))
    return [*lines, *rows, ""] if rows else []


def _latex(layout: Layout, title: str, notes: list[str]) -> str:
    lines = ["% needs \\usepackage{booktabs}", *(f"% {note}" for note in notes)]
    doubts = f" {FLAGGED_TEX}: a check speaks against the number." if layout.flagged(layout.all) else ""
    for dataset in layout.datasets:
        defenses = layout.defenses(dataset)
        lines += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(title)}, {_tex(dataset)}: accuracy (\\%), the published number in parentheses.",
            f"Bold: significantly ahead of every other defense on the same images.{doubts}}}",
            f"\\begin{{tabular}}{{ll{'r' * len(defenses)}}}",
            "\\toprule",
            " & ".join(["Attack", "Para.", *map(_tex, defenses)]) + " \\\\",
        ]
        for tier in layout.tiers(dataset):
            heading = _tex(_tier_title(tier).capitalize())
            lines += ["\\midrule", f"\\multicolumn{{{len(defenses) + 2}}}{{l}}{{\\textit{{{heading}}}}} \\\\"]
            previous = ""
            for attack in layout.attacks(dataset, tier):
                best = layout.best(dataset, attack, tier)
                line = ["" if attack[0] == previous else _tex(attack[0].upper()), _tex(attack[1])]
                previous = attack[0]
                for defense in defenses:
                    positions = layout.of(dataset, attack, tier, defense)
                    number = layout.number(positions).replace("±", "$\\pm$").replace("–", "--")
                    number = f"\\textbf{{{number}}}" if best == defense else number
                    number += FLAGGED_TEX if layout.flagged(positions) else ""
                    published = layout.published(positions)
                    line.append(f"{number} ({published})" if published else number)
                lines.append(" & ".join(line) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    words = {"\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
    return "".join(words.get(sign, f"\\{sign}" if sign in "_%&#${}" else sign) for sign in text)


def _head(titles: list[str]) -> list[str]:
    return [_row(titles), _row(["---", "---", *["---:"] * (len(titles) - 2)])]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
