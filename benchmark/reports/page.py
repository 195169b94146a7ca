"""report.html: one page that holds a whole run and needs no network, no mouse and no good eyes to be read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from benchmark.cells import Cell, in_both_tiers
from benchmark.comparison import comparison_of
from benchmark.diagnostics import Diagnosis
from benchmark.evaluations.strong import ATTACK as WORST
from benchmark.reports import crosscheck
from benchmark.reports.detection import detection_table
from benchmark.reports.figures import Figure
from benchmark.reports.strong import suite_table
from benchmark.reports.tables import SIGNIFICANT, Layout, made_on, read_rows
from benchmark.reports.transfer import transfer_table
from benchmark.statistics import accuracy_interval, mcnemar
from benchmark.store import Store
from defenses.files import write_text

NOTHING = "–"
LIBRARIES = "One attack, every library"
TIERS = {
    "paper": "the attacks as published, quirks included",
    "strict": "the same attacks with true labels and correct outputs; what was wrong before counts as wrong",
    "strong": "attacks of today, per-image worst case",
    "black-box": "images made on a surrogate: another ensemble, such as an attacker would train",
}
GAP = "How far the tiers lie apart"
KINDS = {
    "gap": GAP,
    "crosscheck": LIBRARIES,
    "curve": "Security curves",
    "transfer": "Transferability",
    "detection": "Detection",
    "diversity": "Diversity",
    "geometry": "Diversity",
    "features": "Diversity",
    "attacks": "A look at the attacks",
}
"""Headings of the figures, by the first word of their names."""


@dataclass(frozen=True)
class Column:
    """A column of a table; rows are named by the columns that head them."""

    title: str
    note: str = ""
    number: bool = True
    heads: bool = False


@dataclass(frozen=True)
class Field:
    """One field of a table: what it says, a smaller note below, and what it is sorted by where that is not its text."""

    text: str
    note: str = ""
    order: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table in the order in which it is first shown; a break is a row that begins another group."""

    caption: str
    columns: list[Column]
    rows: list[list[Field]]
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure with its SVG inside, so that nothing is fetched and no two figures share identifiers."""

    name: str
    title: str
    words: str
    source: str
    wide: bool
    """Panels side by side, which would be too small in half of the page."""


@dataclass(frozen=True)
class Warned:
    """A cell that a reader must not overlook."""

    kind: str
    dataset: str
    title: str
    words: str


def write_page(store: Store, figures: Sequence[Figure]) -> None:
    """Write report.html from the store and from figures that are kept in its folder already."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = _digest
    write_text(
        store.folder / "report.html", environment.get_template("report.html.j2").render(_content(store, figures))
    )


def _digest(script: str) -> str:
    """The hash by which a page allows its own script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _content(store: Store, figures: Sequence[Figure]) -> dict[str, Any]:
    manifest = store.manifest()
    asked = store.asked()
    cells, table, records, diagnosis = read_rows(store)
    run = _Run(cells, table, records)
    warned = _warned(store, asked, diagnosis)
    comparison = comparison_of(store)
    groups: dict[str, list[Picture]] = {}
    for figure in figures:
        groups.setdefault(_kind(figure.name), []).append(_picture(store, figure))
    compared = crosscheck.crosscheck_table(store)
    suite = suite_table(store)
    more = {
        LIBRARIES: _plain("crosscheck.csv: a row per library, accuracies in percent", compared),
        GAP: _plain("strong.csv: the attacks of the strong tier in their order, and what each fooled first", suite),
        "Transferability": _plain("transfer.csv: every source and target, in percent", transfer_table(store)),
        "Detection": _plain("detection.csv: area under the ROC curve and share caught", detection_table(store)),
    }
    return {
        "title": manifest["title"],
        "preset": manifest["preset"],
        "counts": _counts(store, asked, warned),
        "summary": _summary(run, comparison is None),
        "comparison": comparison.sentence if comparison else "",
        "strong": "strong" in {cell.tier for cell in cells},
        "warned": warned,
        "checked": f"{diagnosis.summary}.".capitalize(),
        "checks": _checks(diagnosis),
        "glances": [found for dataset in run.datasets if (found := _glance(run, dataset))],
        "clean": [_clean(run, dataset) for dataset in run.datasets],
        "tiers": [found for dataset in run.datasets if (found := _tiers(run, dataset))],
        "tier_words": {tier: words for tier, words in TIERS.items() if tier in set(table["tier"])},
        "libraries": _libraries(compared),
        "libraries_words": [crosscheck.summary(compared), *crosscheck.RULES] if len(compared) else [],
        "libraries_pictures": groups.pop(LIBRARIES, []),
        "groups": groups,
        "more": {kind: found for kind, found in more.items() if found},
        "tidy": _plain("table.csv: one row per cell, accuracies in percent", table),
        "commands": manifest.get("commands", []),
        "versions": manifest.get("versions", {}) | _code(store),
        "machine": manifest.get("machine", {}),
        "ensembles": _ensembles(asked),
        "surrogates": made_on(store),
        "attacks": _attacks(asked),
    }


def _code(store: Store) -> dict[str, str]:
    """Which state of the code finished the cells, where they say so; a run may have had several sittings."""
    commits = store.commits()
    words = [f"{commit or 'not recorded'} ({count} cell{'s' * (count != 1)})" for commit, count in commits.items()]
    return {"commit": ", ".join(words)} if any(commits) else {}


# --- what the run says in a few sentences ---


@dataclass(frozen=True)
class WorstCase:
    """Per defense, whether each image stays right under every attack of one budget."""

    budget: str
    attacks: list[str]
    images: int
    right: dict[str, NDArray[np.bool_]]
    """Images of all seeds, one after the other; only defenses for which every cell is finished."""
    seeds: int
    lacking: int
    """Defenses that are left out for that reason."""
    alike: bool
    """Whether the cells of each row were measured alike."""

    def number(self, defense: str) -> str:
        return f"{100 * float(self.right[defense].mean()):.1f}"

    def interval(self, defense: str) -> str:
        """Clopper–Pearson over the images; several seeds share images, so they get none."""
        if self.seeds > 1:
            return ""
        low, high = accuracy_interval(int(self.right[defense].sum()), self.images)
        return f"{100 * low:.1f} to {100 * high:.1f}"

    def leads(self, leader: str) -> bool:
        """Ahead of every other defense on the same images, each difference significant for each seed."""
        return (
            not self.lacking
            and self.alike
            and all(
                mine.mean() > theirs.mean() and mcnemar(mine, theirs) < SIGNIFICANT
                for defense, values in self.right.items()
                if defense != leader
                for mine, theirs in zip(
                    self.right[leader].reshape(self.seeds, -1), values.reshape(self.seeds, -1), strict=True
                )
            )
        )


class _Run(Layout):
    """The numbers of a run, as the tables arrange them, and what follows from several of them."""

    def attacked(self, dataset: str) -> list[str]:
        found = {cell.tier for cell in self.cells if cell.dataset == dataset and cell.attack != "none"}
        return [tier for tier in TIERS if tier in found] + sorted(found - set(TIERS))

    def asked_for(self, dataset: str, tier: str, defense: str) -> bool:
        return any((cell.dataset, cell.tier, cell.defense) == (dataset, tier, defense) for cell in self.cells)

    def worst_case(self, dataset: str, tier: str) -> WorstCase | None:
        """Over the L∞ attacks of the budget that most attacks share: bounds of other kinds do not compare.

        Tiers paper and strict over the attacks that both have: their difference is the way of attacking.
        """
        budgets: dict[float, list[Cell]] = {}
        here = [cell for cell in self.cells if cell.dataset == dataset]
        # JSMA calls its step eps, too; its bound is gamma
        here = [cell for cell in here if "eps" in cell.settings and "gamma" not in cell.settings]
        both = in_both_tiers(here)
        for cell in here:
            compared = tier not in ("paper", "strict") or not both or cell.setting in both
            if cell.tier == tier and compared:
                budgets.setdefault(float(cell.settings["eps"]), []).append(cell)
        if not budgets:
            return None
        eps = max(budgets, key=lambda budget: len({cell.setting for cell in budgets[budget]}))
        chosen = budgets[eps]
        finished = [cell for cell in chosen if cell.identity in self.records]
        images = min((len(self.records[cell.identity]) for cell in finished), default=0)
        settings = list(dict.fromkeys(cell.setting for cell in chosen))
        right: dict[str, NDArray[np.bool_]] = {}
        seeds = {cell.seed for cell in chosen}
        for defense in self.defenses(dataset):
            mine = [cell for cell in finished if cell.defense == defense]
            if {(cell.setting, cell.seed) for cell in mine} == {(s, seed) for s in settings for seed in seeds}:
                per_seed = [
                    [
                        self.records[cell.identity]["correct"].to_numpy(dtype=bool)[:images]
                        for cell in mine
                        if s == cell.seed
                    ]
                    for s in sorted(seeds)
                ]
                right[defense] = np.concatenate([np.logical_and.reduce(values) for values in per_seed])
        names = list(dict.fromkeys(attack for attack, _, _ in settings))
        lacking = len(self.defenses(dataset)) - len(right)
        rows: dict[str, dict[str, str]] = {}
        alike = all(cell.conditions == rows.setdefault(cell.question, cell.conditions) for cell in finished)
        return WorstCase(f"ε = {eps:g}", names, images, right, len(seeds), lacking, alike) if right else None

    def lowest(self, dataset: str, tier: str) -> dict[str, tuple[float, str]]:
        """Per defense with every attack of the tier finished: the lowest accuracy and the attack that gives it."""
        found = {}
        attacks = self.attacks(dataset, tier)
        for defense in self.defenses(dataset):
            values = {}
            for attack in attacks:
                numbers = self.table["accuracy"].iloc[self.of(dataset, attack, tier, defense)]
                if len(numbers) and numbers.notna().all():
                    values[attack] = float(numbers.mean())
            if attacks and len(values) == len(attacks):
                worst = min(values, key=lambda attack: values[attack])
                found[defense] = values[worst], _attack_title(*worst)
        return found


def _attack_title(attack: str, parameters: str) -> str:
    return f"{attack}({parameters.replace(',', ', ')})" if parameters else attack


def _summary(run: _Run, lead: bool) -> list[tuple[str, str]]:
    """Per dataset and tier, what it is about and what was found; who is ahead, unless a comparison says so."""
    sentences = []
    for dataset in run.datasets:
        for tier in run.attacked(dataset):
            words = [*_worst_words(run.worst_case(dataset, tier), lead), *_lowest_words(run, dataset, tier)]
            chosen = run.table[(run.table["dataset"] == dataset) & (run.table["tier"] == tier)]
            if flagged := int(((chosen["samples"] > 0) & (chosen["flags"] != "")).sum()):
                words.append(f"Flagged: {flagged} of {len(chosen)} cells; see below before believing the order.")
            if words:
                sentences.append((f"{dataset}, tier {tier}", " ".join(words)))
    return sentences


def _worst_words(worst: WorstCase | None, with_lead: bool) -> list[str]:
    if worst is None:
        return []
    ranked = sorted(worst.right, key=lambda defense: float(worst.right[defense].mean()))
    attacks = worst.attacks
    under = f"under L∞ {attacks[0]}" if len(attacks) == 1 else f"under each of the L∞ attacks {_list(attacks)}"
    if attacks == [WORST]:
        under = "under the worst of the suite's attacks"
    seeds = f", {worst.seeds} seeds" if worst.seeds > 1 else ""

    def says(defense: str) -> str:
        interval = worst.interval(defense)
        return f"{worst.number(defense)} % for {defense}" + (f" (95 % interval {interval})" if interval else "")

    start = f"the share of {worst.images} images{seeds} still classified correctly {under} at {worst.budget} is"
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


def _lowest_words(run: _Run, dataset: str, tier: str) -> list[str]:
    lowest = run.lowest(dataset, tier)
    settings = len(run.attacks(dataset, tier))
    if not lowest:
        return ["No defense has every attack of this tier finished."]
    if settings == 1:
        return []
    low, high = (f"{pick(value for value, _ in lowest.values()):.1f}" for pick in (min, max))
    span = f"{low} %" if low == high else f"between {low} and {high} %, depending on the defense"
    missing = len(run.defenses(dataset)) - len(lowest)
    left = f"; {missing} with unfinished attacks left out" if missing else ""
    return [f"The lowest accuracy among the {settings} attack settings of the tier is {span}{left}."]


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _counts(store: Store, asked: list[Cell], warned: list[Warned]) -> str:
    finished = [cell for cell in asked if store.has(cell)]
    defenses = len({cell.defense for cell in asked})
    datasets = list(dict.fromkeys(cell.dataset for cell in asked))
    kinds = {kind: sum(1 for one in warned if one.kind == kind) for kind in ("failed", "not run", "flagged")}
    told = [f"{count} {kind}" for kind, count in kinds.items() if count]
    images = f", up to {max(cell.samples for cell in finished)} test images in a cell" if finished else ""
    return (
        f"{len(finished)} of {len(asked)} cells are finished: {defenses} defense{'s' * (defenses != 1)} "
        f"on {_list(datasets) if datasets else 'nothing'}{images}. "
        + (f"To be read with care: {_list(told)}." if told else "No cell failed and none is flagged.")
    )


def _warned(store: Store, asked: list[Cell], diagnosis: Diagnosis) -> list[Warned]:
    found = []
    for cell in asked:
        if not store.has(cell):
            reason = store.failure(cell)
            kind, words = ("failed", reason) if reason else ("not run", "no result yet; run the command again")
            found.append(Warned(kind, cell.dataset, cell.title, words))
        elif words := diagnosis.words(cell):
            found.append(Warned("flagged", cell.dataset, cell.title, words))
    return sorted(found, key=lambda one: ("failed", "not run", "flagged").index(one.kind))


# --- tables ---


def _checks(diagnosis: Diagnosis) -> Table | None:
    """Every flag: where it was raised, what was seen and what to do about it."""
    names = ("flag", "where", "what was seen", "advice")
    columns = [Column(name, number=False, heads=name == "flag") for name in names]
    rows = [[Field(flag.name), Field(flag.where), Field(flag.words), Field(flag.advice)] for flag in diagnosis.flags]
    return Table("What speaks against a number, and what to do about it", columns, rows) if rows else None


def _glance(run: _Run, dataset: str) -> Table | None:
    """A row per defense: clean accuracy, and per tier the worst case of one budget and the lowest of all."""
    tiers = run.attacked(dataset)
    if not tiers:
        return None
    columns = [Column("defense", number=False, heads=True), Column("clean")]
    worst = {tier: run.worst_case(dataset, tier) for tier in tiers}
    lowest = {tier: run.lowest(dataset, tier) for tier in tiers}
    several = {tier: worst[tier] is None or len(run.attacks(dataset, tier)) > 1 for tier in tiers}
    for tier in tiers:
        found = worst[tier]
        columns += [Column(tier, f"L∞ {found.budget}, {found.images} images")] if found else []
        columns += [Column(tier, "lowest row")] if several[tier] else []
    rows = []
    for defense in run.defenses(dataset):
        row = [Field(defense), _clean_field(run, dataset, defense)]
        for tier in tiers:
            found = worst[tier]
            if found and defense in found.right:
                bold = len(found.right) > 1 and found.leads(defense)
                row.append(_number(found.number(defense), found.interval(defense), bold))
            elif found:
                row.append(Field(NOTHING, "unfinished" if run.asked_for(dataset, tier, defense) else "not run"))
            if not several[tier]:
                continue
            if defense in lowest[tier]:
                row.append(_number(f"{lowest[tier][defense][0]:.1f}", lowest[tier][defense][1]))
            else:
                row.append(Field(NOTHING, "unfinished" if run.asked_for(dataset, tier, defense) else "not run"))
        rows.append(row)
    return Table(
        f"{dataset}: images still classified correctly, in percent. L∞: under all attacks of that budget at once, of "
        "tiers paper and strict those that both have; lowest row: the lowest accuracy under a single attack, and which "
        "that is",
        columns,
        rows,
    )


def _clean_field(run: _Run, dataset: str, defense: str) -> Field:
    """Clean accuracy of the ensemble on the most images there are."""
    most = run.unattacked(dataset, defense)
    if most.empty:
        return Field(NOTHING)
    return _accuracy(most["clean_accuracy"], f"{int(most['samples'].iloc[0])} images")


def _clean(run: _Run, dataset: str) -> Table:
    """Accuracy without an attack of every member and of the ensemble, with the published number."""
    parameters = [p for attack, p in run.attacks(dataset, "clean") if attack == "none"]
    columns = [Column("defense", number=False, heads=True)]
    columns += [Column(name.removeprefix("classifier=")) for name in parameters] or [Column("ensemble")]
    rows = []
    for defense in run.defenses(dataset):
        row = [Field(defense)]
        for name in parameters:
            positions = run.of(dataset, ("none", name), "clean", defense)
            row.append(_measured(run, positions, with_published=True))
        rows.append(row if parameters else [*row, _clean_field(run, dataset, defense)])
    return Table(f"{dataset}: accuracy in percent on unharmed test images", columns, rows)


def _tiers(run: _Run, dataset: str) -> Table | None:
    """A row per attack and defense, a column per tier: what the way of attacking makes of the same defense."""
    tiers = run.attacked(dataset)
    cells = [cell for cell in run.cells if cell.dataset == dataset and cell.attack != "none"]
    if not cells:
        return None
    published = any(cell.published is not None for cell in cells)
    quirks = {"paper", "strict"} <= set(tiers)
    columns = [Column("attack", number=False, heads=True), Column("defense", number=False, heads=True)]
    columns += [Column("published")] if published else []
    columns += [Column(tier) for tier in tiers]
    columns += [Column("paper − strict")] if quirks else []
    rows: list[list[Field]] = []
    breaks = set()
    names = list(dict.fromkeys(cell.attack for cell in cells))
    settings = {run.attack(cell): cell.attack for cell in cells}
    for setting in sorted(settings, key=lambda setting: names.index(settings[setting])):
        breaks.add(len(rows))
        leaders = {tier: run.best(dataset, setting, tier) for tier in tiers}
        for defense in run.defenses(dataset):
            fields = [_attack_field(*setting), Field(defense)]
            positions = {tier: run.of(dataset, setting, tier, defense) for tier in tiers}
            every = [p for found in positions.values() for p in found]
            if not every:
                continue
            if published:
                fields.append(Field(run.published(every) or NOTHING))
            fields += [replace(_measured(run, positions[tier]), bold=leaders[tier] == defense) for tier in tiers]
            if quirks:
                gap = run.quirk(dataset, setting, defense)
                fields.append(Field(NOTHING) if gap is None else _signed(gap))
            rows.append(fields)
    return Table(f"{dataset}: accuracy in percent under attack, by tier", columns, rows, frozenset(breaks))


def _attack_field(attack: str, parameters: str) -> Field:
    """Sorted by name, then by parameters."""
    note = parameters.replace(",", ", ")
    return Field(attack, note, f"{attack} {note}")


def _signed(value: float) -> Field:
    value = round(value, 1) + 0.0  # no minus zero
    return Field(f"{value:+.1f}".replace("-", "−"), order=f"{value:.1f}")


def _measured(run: _Run, positions: list[int], with_published: bool = False) -> Field:
    """The accuracy of one cell with its interval, or the mean of several seeds with their spread."""
    rows = run.table.iloc[positions]
    rows = rows[rows["accuracy"].notna()]
    if rows.empty:
        failed = any(str(words).startswith("failed") for words in run.table["flags"].iloc[positions])
        return Field(NOTHING, "failed" if failed else "not run" if positions else "")
    note = f"{rows['ci_low'].iloc[0]:.1f} to {rows['ci_high'].iloc[0]:.1f}" if len(rows) == 1 else f"{len(rows)} seeds"
    if with_published and run.published(positions):
        note += f"; published {run.published(positions)}"
    return _accuracy(rows["accuracy"], note)


def _accuracy(values: pd.Series[float], note: str) -> Field:
    if len(values) == 1:
        return _number(f"{values.iloc[0]:.1f}", note)
    mean, spread = f"{values.mean():.1f}", f"{values.std(ddof=1):.1f}"
    return Field(f"{mean} ± {spread}", note, mean)


def _number(text: str, note: str, bold: bool = False) -> Field:
    return Field(text, note, text, bold)


def _libraries(compared: pd.DataFrame) -> list[Table]:
    """A table per dataset and defense, a row per attack and library."""
    columns = [
        Column("attack, library", number=False, heads=True),
        Column("accuracy", "under attack"),
        Column("same", "outcome"),
        Column("verdict", number=False),
        Column("images"),
        Column("same", "class"),
        Column("pixel", "difference"),
        Column("L2", "of successes"),
        Column("L∞", "of successes"),
        *(Column(name.replace("_", " ")) for name in crosscheck.COUNTS),
        Column("forwards", "per image"),
        Column("backwards", "per image"),
        Column("seconds", "per image"),
        Column("cost", "× default"),
    ]
    tables = []
    keys = ["dataset", "defense", "tier", "seed"]
    for (dataset, defense, tier, seed), part in compared.groupby(keys, sort=False):
        rows = [[*_library_fields(row)] for row in part.to_dict("records")]
        settings = list(zip(part["attack"], part["parameters"], strict=True))
        breaks = {place for place, setting in enumerate(settings) if setting not in settings[:place]}
        caption = f"{defense} on {dataset}, tier {tier}{f', seed {seed}' if seed else ''}: one row per library"
        tables.append(Table(caption, columns, rows, frozenset(breaks)))
    return tables


def _library_fields(row: dict[Any, Any]) -> Iterator[Field]:
    number = crosscheck.number
    yield _attack_field(f"{row['attack']}, {row['library']}", row["parameters"])
    if row["samples"]:
        yield _number(f"{row['accuracy']:.1f}", f"{row['ci_low']:.1f} to {row['ci_high']:.1f}")
    else:
        yield Field(NOTHING)
    yield Field(number(row["same_outcome"], "{:.0f} %"))
    yield Field(row["verdict"])
    yield Field(str(row["samples"]))
    yield Field(number(row["same_class"], "{:.0f} %"))
    yield Field(number(row["pixel_difference"], "{:.2g}"))
    for norm in ("l2", "linf"):
        yield Field(number(row[norm], "{:.3f}"))
    for count in crosscheck.COUNTS:
        yield Field(number(row[count], "{:.0f}"))
    for passes in ("forwards", "backwards"):
        yield Field(number(row[passes], "{:.1f}"))
    yield Field(number(row["seconds"], "{:.4f}"))
    yield Field(number(row["cost"], "{:.1f}"))


def _ensembles(cells: Iterable[Cell]) -> Table:
    """What was trained, and how; a checkpoint from outside says nothing of its training."""
    columns = [
        Column("defense", number=False, heads=True),
        Column("dataset", number=False),
        Column("spec", number=False),
        Column("members"),
        Column("network", number=False),
        Column("training", number=False),
        Column("seed"),
        Column("weights, sha256", number=False),
    ]
    rows = dict.fromkeys(
        (
            cell.defense,
            cell.dataset,
            cell.spec,
            str(cell.members),
            cell.network,
            cell.training or "from outside",
            str(cell.seed),
            f"{cell.weights[:16]}…",
        )
        for cell in cells
    )
    return Table("Ensembles and how each was trained", columns, [[Field(text) for text in row] for row in rows])


def _attacks(cells: Iterable[Cell]) -> Table:
    """Every attack with every parameter, the library that ran it, and on how many images."""
    columns = [
        Column("attack", number=False, heads=True),
        Column("evaluation", number=False),
        Column("tiers", number=False),
        Column("library", number=False),
        Column("settings", number=False),
        Column("images", number=False),
        Column("dataset", number=False),
        Column("batch"),
        Column("device", number=False),
    ]
    found: dict[tuple[str, ...], dict[str, dict[str, None]]] = {}
    for cell in cells:
        if cell.attack == "none":
            continue
        hidden = ("source", "targeted", "surrogate")
        settings = ", ".join(f"{key} {value}" for key, value in sorted(cell.settings.items()) if key not in hidden)
        parameters = cell.parameters.replace(",targeted=true", "")
        key = (cell.attack, parameters, cell.evaluation, f"{cell.library} {cell.library_version}".strip(), settings)
        rest = found.setdefault((*key, cell.dataset, str(cell.batch_size), cell.device), {"tiers": {}, "images": {}})
        rest["tiers"][cell.tier] = None
        rest["images"][str(cell.samples)] = None
    rows = [
        [
            _attack_field(attack, parameters),
            Field(evaluation),
            Field(", ".join(rest["tiers"])),
            Field(library),
            Field(settings),
            Field(", ".join(rest["images"])),
            Field(dataset),
            Field(batch),
            Field(device),
        ]
        for (attack, parameters, evaluation, library, settings, dataset, batch, device), rest in found.items()
    ]
    return Table("Attacks: libraries with versions, every parameter, and the first so many test images", columns, rows)


def _plain(caption: str, frame: pd.DataFrame) -> Table | None:
    """A CSV as it is."""
    if frame.empty:
        return None
    numbers = {name: pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns}
    head = "defense" if "defense" in frame.columns else frame.columns[0]
    names = [head, *(name for name in frame.columns if name != head)]  # what stays in view when the rest scrolls
    columns = [Column(str(name).replace("_", " "), number=numbers[name], heads=name == head) for name in names]
    rows = [[Field(_text(value)) for value in row] for row in frame[names].itertuples(index=False)]
    return Table(caption, columns, rows)


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)) or value == "":
        return NOTHING
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# --- figures ---


def _kind(name: str) -> str:
    return KINDS.get(name.split("-")[0], "More figures")


def _picture(store: Store, figure: Figure) -> Picture:
    svg = (store.folder / "figures" / f"{figure.name}.svg").read_bytes()
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    width, height = figure.canvas.get_size_inches()
    return Picture(figure.name, figure.title, figure.words, source, wide=bool(width > 2.5 * height))
