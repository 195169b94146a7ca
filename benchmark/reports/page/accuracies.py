"""Tables of accuracies on the page: by tier, clean accuracy of the members, and every attack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.layout import Layout
from benchmark.findings.rows import percent_interval
from benchmark.findings.survival import Survival, by_norm, lowest, of_one_norm, shared_bound, survival
from benchmark.reports.page.sentences import attacked, bound_words, interval_words, norm_words
from benchmark.reports.page.widgets import (
    NOTHING,
    Field,
    Heading,
    Table,
    accuracy_field,
    attack_field,
    number_field,
    signed,
)

MOST_COLUMNS = 5
"""Most defenses side by side; more defenses are placed one below the other."""


def glance(layout: Layout, dataset: str) -> Table | None:
    """A row per defense, a column per tier: clean accuracy, and the worst case over the attacks of one bound."""
    tiers = attacked(layout, dataset)
    if not tiers:
        return None
    worst = {tier: worst_of(layout, dataset, tier) for tier in tiers}
    notes = {tier: _glance_note(worst[tier]) for tier in tiers}
    shared = notes[tiers[0]] if len(set(notes.values())) == 1 else ""
    columns = [Heading("defense", number=False, heads=True), Heading("clean")]
    columns += [Heading(tier, "" if shared else notes[tier]) for tier in tiers]
    rows = []
    for defense in layout.defenses(dataset):
        row = [Field(naming.defense(defense)), _clean_field(layout, dataset, defense)]
        rows.append(row + [_tier_field(layout, dataset, tier, defense, worst[tier]) for tier in tiers])
    return Table(
        f"{naming.dataset(dataset)}: test images that stay correctly classified under every attack of the tier within "
        f"its bound, in percent{'; ' * bool(shared)}{shared}",
        columns,
        rows,
    )


def _glance_note(found: Survival | None) -> str:
    return f"{bound_words(found)}, {found.images} images" if found else "lowest accuracy of a single attack"


def worst_of(layout: Layout, dataset: str, tier: str) -> Survival | None:
    """The worst case of a tier within the bound of most tiers; within its own bound if it lacks that one."""
    bound = shared_bound(layout, dataset)
    found = survival(layout, dataset, tier, bound) if bound else None
    return found or survival(layout, dataset, tier)


def _tier_field(layout: Layout, dataset: str, tier: str, defense: str, worst: Survival | None) -> Field:
    if worst is None and (least := lowest(layout, dataset, tier, of_one_norm(layout, dataset, tier)[1]).get(defense)):
        return replace(number_field(f"{least[0]:.1f}", naming.attack(*least[1])), tint=least[0])
    if worst is None or defense not in worst.right:
        return Field(NOTHING, "unfinished" if _asked_for(layout, dataset, tier, defense) else "not run")
    bold = len(worst.right) > 1 and worst.leads(defense)
    interval = interval_words(worst, defense)
    under = "the suite of tier strong" if worst.suite else naming.listed(map(naming.attack, worst.attacks))
    more = (
        f"95 % interval {interval}" if interval else f"{worst.seeds} seeds",
        f"{worst.images} test images, {bound_words(worst)}",
        f"attacks: {under}",
        *_lowest_of_each_norm(layout, dataset, tier, defense),
        *_warnings(layout.table[_rows(layout, dataset, tier, defense)]),
    )
    accuracy = worst.percent(defense)
    shown = f"{accuracy:.1f} ± {worst.spread(defense):.1f}" if worst.seeds > 1 else f"{accuracy:.1f}"
    note = interval or f"{worst.seeds} seeds"
    return Field(shown, note, f"{accuracy:.1f}", bold, tuple(filter(None, more)), accuracy)


def _lowest_of_each_norm(layout: Layout, dataset: str, tier: str, defense: str) -> Iterator[str]:
    """The lowest accuracy under a single attack, a line for each norm."""
    for norm, attacks in by_norm(layout, dataset, tier).items():
        least = lowest(layout, dataset, tier, attacks).get(defense)
        if least:
            what = norm_words("attack", norm)
            yield f"lowest accuracy under a single {what}: {least[0]:.1f} %, {naming.attack(*least[1])}"


def _rows(layout: Layout, dataset: str, tier: str, defense: str) -> pd.Series[bool]:
    table = layout.table
    return (table["dataset"] == dataset) & (table["tier"] == tier) & (table["defense"] == defense)


def _warnings(rows: pd.DataFrame) -> Iterator[str]:
    """One line for all the flags of the rows."""
    flagged = rows[(rows["samples"] > 0) & (rows["flags"] != "")]
    names = dict.fromkeys(part.partition(":")[0] for flags in flagged["flags"] for part in flags.split("; "))
    if len(flagged):
        yield f"warnings on {len(flagged)} of {len(rows)} attacks: {', '.join(names)}"


def _clean_field(layout: Layout, dataset: str, defense: str) -> Field:
    """Clean accuracy of the ensemble on the largest number of images."""
    most = layout.unattacked(dataset, defense)
    if most.empty:
        return Field(NOTHING)
    accuracy, images = float(most["clean_accuracy"].mean()), int(most["samples"].iloc[0])
    low, high = percent_interval(round(accuracy * images / 100), images)
    note = f"{low:.1f}–{high:.1f}" if len(most) == 1 else f"{len(most)} seeds"
    more = (f"95 % interval {note}" if len(most) == 1 else note, f"{images} test images, no attack")
    return replace(accuracy_field(most["clean_accuracy"], note), more=more, tint=accuracy)


def clean(layout: Layout, dataset: str) -> Table | None:
    """Clean accuracy of the ensemble and of every member, with the published number."""
    parameters = [parameters for _, parameters in layout.attacks(dataset, Clean.evaluation)]
    if not parameters:
        return None
    columns = [Heading("defense", number=False, heads=True)]
    columns += [Heading(naming.settings(name)) for name in parameters]
    rows = []
    for defense in layout.defenses(dataset):
        row = [Field(naming.defense(defense))]
        for name in parameters:
            positions = layout.of(dataset, (Clean().name, name), Clean.evaluation, defense)
            row.append(_measured(layout, positions, with_published=True))
        rows.append(row)
    return Table(
        f"{naming.dataset(dataset)}: clean accuracy in percent, of the ensemble and of its members", columns, rows
    )


def by_tier(layout: Layout, dataset: str) -> list[Table]:
    """A table for every combination of tiers: a row per attack and defense, a column per tier."""
    tiers = attacked(layout, dataset)
    cells = [cell for cell in layout.cells if cell.images.dataset == dataset and cell.task.attacks]
    names = list(dict.fromkeys(cell.task.name for cell in cells))
    settings = {layout.attack(cell): cell.task.name for cell in cells}
    parts: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for attack in sorted(settings, key=lambda attack: names.index(settings[attack])):
        has = {cell.task.group for cell in cells if layout.attack(cell) == attack}
        white = tuple(tier for tier in tiers if tier in has and tier != "black-box")
        for part in filter(None, (white, ("black-box",) if "black-box" in has else ())):
            parts.setdefault(part, []).append(attack)
    if len(layout.defenses(dataset)) > MOST_COLUMNS:
        return [_attack_table(layout, dataset, part, attacks) for part, attacks in parts.items()]
    alone = {part[0]: attacks for part, attacks in parts.items() if len(part) == 1}
    tables = [_attack_table(layout, dataset, part, attacks) for part, attacks in parts.items() if len(part) > 1]
    return [*tables, *([_one_tier_table(layout, dataset, alone)] if alone else [])]


def _attack_table(layout: Layout, dataset: str, tiers: tuple[str, ...], attacks: list[tuple[str, str]]) -> Table:
    rows: list[list[Field]] = []
    breaks = set()
    quirks = {"paper", "strict"} <= set(tiers)
    of = {
        (attack, defense): {tier: layout.of(dataset, attack, tier, defense) for tier in tiers}
        for attack in attacks
        for defense in layout.defenses(dataset)
    }
    published = {pair: layout.published([p for found in of[pair].values() for p in found]) for pair in of}
    shows = any(published.values())
    for attack in attacks:
        breaks.add(len(rows))
        leaders = {tier: layout.best(dataset, attack, tier) for tier in tiers}
        for defense in layout.defenses(dataset):
            positions = of[attack, defense]
            if not any(positions.values()):
                continue
            fields = [attack_field(*attack), Field(naming.defense(defense))]
            fields += [Field(published[attack, defense] or NOTHING)] if shows else []
            fields += [replace(_measured(layout, positions[tier]), bold=leaders[tier] == defense) for tier in tiers]
            if quirks:
                gap = layout.quirk(dataset, attack, defense)
                fields.append(Field(NOTHING) if gap is None else signed(gap))
            rows.append(fields)
    columns = [Heading("attack", number=False, heads=True), Heading("defense", number=False, heads=True)]
    columns += [Heading("published")] if shows else []
    columns += [Heading(tier) for tier in tiers] + (
        [Heading("paper − strict", "points", derived=True)] if quirks else []
    )
    caption = f"{naming.dataset(dataset)}: accuracy in percent, {' and '.join(map(_tier_words, tiers))}"
    return Table(caption, columns, rows, frozenset(breaks))


def _one_tier_table(layout: Layout, dataset: str, attacks: dict[str, list[tuple[str, str]]]) -> Table:
    """Attacks that ran in one tier: a row per attack, a column per defense, the tiers one below the other."""
    defenses = layout.defenses(dataset)
    several = len(attacks) > 1
    columns = [Heading("attack", number=False, heads=True)]
    columns += [Heading("tier", number=False)] if several else []
    columns += [Heading(naming.defense(defense)) for defense in defenses]
    rows: list[list[Field]] = []
    breaks = set()
    for tier, those in attacks.items():
        breaks.add(len(rows))
        for attack in those:
            best = layout.best(dataset, attack, tier)
            found = [
                _measured(layout, layout.of(dataset, attack, tier, name), with_published=True) for name in defenses
            ]
            leads = [replace(field, bold=name == best) for name, field in zip(defenses, found, strict=True)]
            rows.append([attack_field(*attack), *([Field(tier)] if several else []), *leads])
    words = "attacks of one tier" if several else _tier_words(next(iter(attacks)))
    return Table(f"{naming.dataset(dataset)}: accuracy in percent, {words}", columns, rows, frozenset(breaks))


def _tier_words(group: str) -> str:
    return group if group == "black-box" else f"tier {group}"


def _measured(layout: Layout, positions: list[int], with_published: bool = False) -> Field:
    """The accuracy of one cell with its interval, or the mean of several seeds with their spread."""
    asked = layout.table.iloc[positions]
    rows = asked[asked["accuracy"].notna()]
    if rows.empty:
        failed = any(str(words).startswith("failed") for words in asked["flags"])
        return Field(NOTHING, "failed" if failed else "not run" if positions else "")
    note = f"{rows['ci_low'].iloc[0]:.1f}–{rows['ci_high'].iloc[0]:.1f}" if len(rows) == 1 else f"{len(rows)} seeds"
    more = tuple(_cost(rows, note))
    if with_published and layout.published(positions):
        note += f"; published {layout.published(positions)}"
    field = accuracy_field(rows["accuracy"], note)
    return replace(field, more=more, tint=float(rows["accuracy"].mean()), flagged=layout.flagged(positions))


def _cost(rows: pd.DataFrame, interval: str) -> Iterator[str]:
    """The details of a number: its interval, images, cost and warnings."""
    yield f"95 % interval {interval}" if len(rows) == 1 else interval
    yield f"{rows['samples'].iloc[0]} test images"
    if (rows["library"] != "none").any():
        yield f"library {rows['library'].iloc[0]}"
        passes = f"{rows['forwards'].mean():.1f} forward and {rows['backwards'].mean():.1f} backward passes per image"
        yield f"{passes}, {rows['seconds'].sum():.0f} s"
    yield from (f"warning {words}" for flags in rows["flags"] if flags for words in flags.split("; "))


def _asked_for(layout: Layout, dataset: str, tier: str, defense: str) -> bool:
    wanted = (dataset, tier, defense)
    return any((cell.images.dataset, cell.task.group, cell.ensemble.defense) == wanted for cell in layout.cells)
