"""Tables of accuracies on the page: a glance, clean accuracy, and every attack by tier."""

from __future__ import annotations

from dataclasses import replace

from benchmark.evaluations.clean import Clean
from benchmark.findings.layout import Layout
from benchmark.findings.survival import lowest, survival
from benchmark.reports.page.sentences import attacked, bound_words, interval_words
from benchmark.reports.page.widgets import (
    NOTHING,
    Field,
    Heading,
    Table,
    accuracy_field,
    attack_field,
    attack_title,
    number_field,
    signed,
)


def glance(layout: Layout, dataset: str) -> Table | None:
    """A row per defense: clean accuracy, and per tier the worst case of one budget and the lowest of all."""
    tiers = attacked(layout, dataset)
    if not tiers:
        return None
    columns = [Heading("defense", number=False, heads=True), Heading("clean")]
    worst = {tier: survival(layout, dataset, tier) for tier in tiers}
    least = {tier: lowest(layout, dataset, tier) for tier in tiers}
    several = {tier: worst[tier] is None or len(layout.attacks(dataset, tier)) > 1 for tier in tiers}
    for tier in tiers:
        found = worst[tier]
        columns += [Heading(tier, f"{found.bound.symbol} {bound_words(found)}, {found.images} images")] if found else []
        columns += [Heading(tier, "lowest row")] if several[tier] else []
    rows = []
    for defense in layout.defenses(dataset):
        row = [Field(defense), _clean_field(layout, dataset, defense)]
        for tier in tiers:
            found = worst[tier]
            if found and defense in found.right:
                bold = len(found.right) > 1 and found.leads(defense)
                row.append(number_field(f"{found.percent(defense):.1f}", interval_words(found, defense), bold))
            elif found:
                row.append(Field(NOTHING, "unfinished" if _asked_for(layout, dataset, tier, defense) else "not run"))
            if not several[tier]:
                continue
            if defense in least[tier]:
                row.append(number_field(f"{least[tier][defense][0]:.1f}", attack_title(*least[tier][defense][1])))
            else:
                row.append(Field(NOTHING, "unfinished" if _asked_for(layout, dataset, tier, defense) else "not run"))
        rows.append(row)
    return Table(
        f"{dataset}: images still classified correctly, in percent. With a bound: under all attacks within it at "
        "once, of tiers paper and strict those that both have; lowest row: the lowest accuracy under a single attack, "
        "and which that is",
        columns,
        rows,
    )


def _clean_field(layout: Layout, dataset: str, defense: str) -> Field:
    """Clean accuracy of the ensemble on the most images there are."""
    most = layout.unattacked(dataset, defense)
    if most.empty:
        return Field(NOTHING)
    return accuracy_field(most["clean_accuracy"], f"{int(most['samples'].iloc[0])} images")


def clean(layout: Layout, dataset: str) -> Table:
    """Accuracy without an attack of every member and of the ensemble, with the published number."""
    parameters = [parameters for _, parameters in layout.attacks(dataset, Clean.evaluation)]
    columns = [Heading("defense", number=False, heads=True)]
    columns += [Heading(name.removeprefix("classifier=")) for name in parameters] or [Heading("ensemble")]
    rows = []
    for defense in layout.defenses(dataset):
        row = [Field(defense)]
        for name in parameters:
            positions = layout.of(dataset, (Clean().name, name), Clean.evaluation, defense)
            row.append(_measured(layout, positions, with_published=True))
        rows.append(row if parameters else [*row, _clean_field(layout, dataset, defense)])
    return Table(f"{dataset}: accuracy in percent on unharmed test images", columns, rows)


def by_tier(layout: Layout, dataset: str) -> Table | None:
    """A row per attack and defense, a column per tier: what the way of attacking makes of the same defense."""
    tiers = attacked(layout, dataset)
    cells = [cell for cell in layout.cells if cell.images.dataset == dataset and cell.task.attacks]
    if not cells:
        return None
    published = any(cell.published is not None for cell in cells)
    quirks = {"paper", "strict"} <= set(tiers)
    columns = [Heading("attack", number=False, heads=True), Heading("defense", number=False, heads=True)]
    columns += [Heading("published")] if published else []
    columns += [Heading(tier) for tier in tiers]
    columns += [Heading("paper − strict")] if quirks else []
    rows: list[list[Field]] = []
    breaks = set()
    names = list(dict.fromkeys(cell.task.name for cell in cells))
    settings = {layout.attack(cell): cell.task.name for cell in cells}
    for setting in sorted(settings, key=lambda setting: names.index(settings[setting])):
        breaks.add(len(rows))
        leaders = {tier: layout.best(dataset, setting, tier) for tier in tiers}
        for defense in layout.defenses(dataset):
            fields = [attack_field(*setting), Field(defense)]
            positions = {tier: layout.of(dataset, setting, tier, defense) for tier in tiers}
            every = [p for found in positions.values() for p in found]
            if not every:
                continue
            if published:
                fields.append(Field(layout.published(every) or NOTHING))
            fields += [replace(_measured(layout, positions[tier]), bold=leaders[tier] == defense) for tier in tiers]
            if quirks:
                gap = layout.quirk(dataset, setting, defense)
                fields.append(Field(NOTHING) if gap is None else signed(gap))
            rows.append(fields)
    return Table(f"{dataset}: accuracy in percent under attack, by tier", columns, rows, frozenset(breaks))


def _measured(layout: Layout, positions: list[int], with_published: bool = False) -> Field:
    """The accuracy of one cell with its interval, or the mean of several seeds with their spread."""
    rows = layout.table.iloc[positions]
    rows = rows[rows["accuracy"].notna()]
    if rows.empty:
        failed = any(str(words).startswith("failed") for words in layout.table["flags"].iloc[positions])
        return Field(NOTHING, "failed" if failed else "not run" if positions else "")
    note = f"{rows['ci_low'].iloc[0]:.1f} to {rows['ci_high'].iloc[0]:.1f}" if len(rows) == 1 else f"{len(rows)} seeds"
    if with_published and layout.published(positions):
        note += f"; published {layout.published(positions)}"
    return accuracy_field(rows["accuracy"], note)


def _asked_for(layout: Layout, dataset: str, tier: str, defense: str) -> bool:
    wanted = (dataset, tier, defense)
    return any((cell.images.dataset, cell.task.group, cell.ensemble.defense) == wanted for cell in layout.cells)
