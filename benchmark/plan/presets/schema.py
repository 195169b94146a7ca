"""The schema of presets: reads and checks every preset, of this package or of a user."""

from __future__ import annotations

from benchmark.attacks import NamedAttack
from benchmark.datasets.catalogue import Entry
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.evaluations import EVALUATIONS
from benchmark.evaluations.clean import CleanSection
from benchmark.evaluations.preset_table import PresetTable
from benchmark.evaluations.task import Section
from benchmark.evaluations.whitebox import Row, WhiteBoxSection, rows_of
from benchmark.evaluations.worst_case import WorstCaseSection
from benchmark.harness.tiers import TIERS, check_tier
from benchmark.plan.grid import USUAL_RECIPE, Grid
from benchmark.plan.labels import read_labels
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.errors import BadInput

USUAL_TIERS = ("paper", "strict")
USUAL_MEMBERS, USUAL_BATCH = 3, 100
KEYS = ("dataset", "defenses", "tiers", "members", "network", "recipe", "batch_size")
"""Keys of a grid other than its evaluations."""
SECTIONS = tuple(section for _, section in EVALUATIONS if section is not CleanSection)
"""Evaluations with a key of their own: clean accuracy is the row ``none`` of ``attacks``."""


def read_grids(preset: PresetTable) -> tuple[Grid, ...]:
    """Every grid of a preset."""
    preset.only("title", "grid")
    grids = tuple(_grid(table) for table in preset.tables("grid"))
    if not grids:
        raise BadInput(f"{preset.place}: grid is empty; write [[grid]] above its keys")
    return grids


def _grid(table: PresetTable) -> Grid:
    table.only(*KEYS, *(section.key for section in SECTIONS))
    wanted = EnsembleRequest(
        "baseline",
        table.text("dataset"),
        table.text("network", ""),
        table.number("members", USUAL_MEMBERS, least=1),
        table.text("recipe", USUAL_RECIPE),
    )
    with table.naming("dataset"):
        about = wanted.about
    with table.naming("network"):
        _ = wanted.canonical_network
    with table.naming("recipe"):
        _ = wanted.chosen_recipe
    with table.naming("defenses"):
        defenses, labels = read_labels(table.texts("defenses"))
        for spec in defenses:  # the check against the data comes later, when the defenses of the run are known
            if not is_checkpoint(spec):
                parse_defense(spec)
    with table.naming("tiers"):
        tiers = tuple(check_tier(tier) for tier in table.texts("tiers", USUAL_TIERS))
    grid = Grid(
        dataset=wanted.dataset,
        defenses=defenses,
        labels=labels,
        tiers=tuple(dict.fromkeys(tiers)),
        members=wanted.members,
        network=wanted.network or about.network,
        recipe=wanted.recipe,
        batch_size=table.number("batch_size", USUAL_BATCH, least=1),
        sections=tuple(_sections(table, about)),
    )
    _check_plan(table, grid)
    return grid


def _sections(table: PresetTable, about: Entry) -> list[Section]:
    """The sections in the order of a report; the list ``attacks`` has two: clean accuracy (``none``) and white-box."""
    found: list[Section] = []
    for _, section in EVALUATIONS:
        if section is CleanSection:
            rows = rows_of(table) if WhiteBoxSection.key in table else []
            found += [CleanSection.read(row) for row in rows if row.text("spec") == CleanSection.key][:1]
        elif section is WhiteBoxSection:
            found += [WhiteBoxSection.read(table)] if section.key in table and table.content[section.key] else []
        elif section.key in table:
            found.append(section.read(table.table(section.key)))
        elif section is WorstCaseSection:  # tier strong, which any preset with rows may run
            found.append(WorstCaseSection())
    for one in found:
        with table.naming(one.key):
            for named in one.attacks:
                named.check_classes(about.classes)
    return found


def _check_plan(table: PresetTable, grid: Grid) -> None:
    """Refuse a grid that measures nothing, or the same attack twice."""
    if not grid.tiers:
        raise BadInput(f"{table.place}, tiers: it is empty; choose from {', '.join(TIERS)}, or omit the key")
    section = grid.section(WhiteBoxSection)
    rows = section.rows if section else ()
    seen: dict[tuple[NamedAttack, str], Row] = {}
    for row in rows:
        run_in = [tier for tier in row.tiers or grid.tiers if tier in grid.tiers]
        if not run_in:
            raise BadInput(
                f"{table.place}, attacks: {row.named.label} runs only in tier {' and '.join(row.tiers)}, "
                f"but the grid has only {' and '.join(grid.tiers)}; change the tiers of one of them"
            )
        for tier in run_in:
            if (row.named, tier) in seen:
                raise BadInput(f"{table.place}, attacks: {row.named.label} appears twice in tier {tier}; keep one")
            seen[row.named, tier] = row
    measured = [one for one in grid.sections if not isinstance(one, (WhiteBoxSection, WorstCaseSection))]
    crafted = any(tier != "strong" for _, tier in seen)
    if not (measured or crafted or grid.strong_bounds):
        others = ", ".join(f"[grid.{one.key}]" for one in SECTIONS if one not in (WhiteBoxSection, WorstCaseSection))
        raise BadInput(
            f"{table.place}: the grid measures nothing; list attacks, with a bound for tier strong, or write {others}"
        )
