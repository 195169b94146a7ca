"""Grids have their sections once, are narrowed by what the user names, and order what is planned from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import Trained
from benchmark.evaluations import EVALUATIONS, TASKS
from benchmark.evaluations.blackbox import BlackBox, BlackBoxSection
from benchmark.evaluations.clean import Clean, CleanSection
from benchmark.evaluations.detection import Detection, DetectionSection
from benchmark.evaluations.diversity import Diversity, DiversitySection
from benchmark.evaluations.task import Amount, Section, Task
from benchmark.evaluations.transfer import Transfer, TransferSection
from benchmark.evaluations.whitebox import Row, WhiteBox, WhiteBoxSection
from benchmark.evaluations.worst_case import WorstCase, WorstCaseSection
from benchmark.plan import planning
from benchmark.plan.grid import Grid, Wish, narrow
from benchmark.plan.planning import order_cells, plan_cells
from benchmark.plan.presets import load_preset, preset_names
from benchmark.plan.run_request import Request
from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.members.ensemble import build_ensemble

MakeCell = Callable[..., Cell]


def _only(name: str, wish: Wish) -> Grid:
    """The one grid of a narrowed preset."""
    (grid,) = narrow(load_preset(name), wish).grids
    return grid


def _labels(section: Section | None) -> list[str]:
    return [named.label for named in section.attacks] if section else []


def _kinds(grid: Grid) -> list[type[Section]]:
    return [type(section) for section in grid.sections]


def _planned(grid: Grid, samples: int | str | None = 20, surrogate: bool = True) -> list[Cell]:
    """The cells of a baseline in a grid; nothing is trained."""
    preset = load_preset("demo")
    request = Request(preset, samples, (0,), torch.device("cpu"), Path("nowhere"), "")
    ensemble = build_ensemble("mini-resnet(width=1)", 1, (1, 8, 8), 10)
    about = Provenance("baseline", grid.dataset, grid.network, grid.members, (1, 8, 8), 10, weights_sha256="w")
    other = Trained("other", "baseline", ensemble, replace(about, weights_sha256="s"))
    trained = Trained("baseline", "baseline", ensemble, about)
    return plan_cells(grid, trained, request, 0, "checksum", other if surrogate else None)


# --- sections ---


def test_a_section_is_found_by_its_kind() -> None:
    (grid,) = load_preset("demo").grids
    assert _kinds(grid) == [section for _, section in EVALUATIONS], "the demo has all, in the order of a report"
    for _, kind in EVALUATIONS:
        found = grid.section(kind)
        assert type(found) is kind and found in grid.sections
    bare = replace(grid, sections=(grid.sections[0],))
    assert bare.section(CleanSection) is grid.sections[0] and bare.section(WhiteBoxSection) is None


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("cifar10-whitebox", [WhiteBoxSection, WorstCaseSection]),
        ("cifar10-transfer", [WorstCaseSection, BlackBoxSection, TransferSection]),
        ("cifar10-detection", [WorstCaseSection, DetectionSection]),
        ("errors", [CleanSection, WhiteBoxSection, WorstCaseSection]),
        ("diversity", [WorstCaseSection, DiversitySection]),
    ],
)
def test_presets_have_the_sections_they_name_and_the_tier_strong(name: str, kinds: list[type[Section]]) -> None:
    for grid in load_preset(name).grids:
        assert _kinds(grid) == kinds


def test_amounts_of_a_section_are_those_of_the_preset() -> None:
    (grid,) = load_preset("cifar10-transfer").grids
    transfer, strong = grid.section(TransferSection), grid.section(WorstCaseSection)
    assert transfer is not None and transfer.amount == Amount(500, 10000)
    assert _labels(transfer) == ["pgd(eps=0.05)", "mim(eps=0.05)"]
    assert strong is not None and (strong.amount, strong.suite) == (Amount(200, 0), "full"), "what is usual"
    demo = load_preset("demo").grids[0].section(WorstCaseSection)
    assert demo is not None and (demo.amount, demo.suite) == (Amount(50, 0), "quick")


def test_every_section_plans_tasks_of_its_evaluation() -> None:
    (grid,) = load_preset("demo").grids
    kinds = dict(EVALUATIONS)
    for section in grid.sections:
        cells = _planned(replace(grid, sections=(section,)))
        if isinstance(section, WorstCaseSection):
            assert cells == [], "tier strong needs an attack with a bound"
            continue
        assert cells and {kinds[type(cell.task)] for cell in cells} == {type(section)}
    assert {cell.task.evaluation for cell in _planned(grid)} == set(TASKS)


def test_without_a_surrogate_nothing_is_black_box() -> None:
    (grid,) = load_preset("demo").grids
    assert not [cell for cell in _planned(grid, surrogate=False) if isinstance(cell.task, BlackBox)]


def test_a_row_keeps_to_its_tiers_and_tier_strong_to_the_rows_of_all() -> None:
    (grid,) = load_preset("demo").grids
    cells = _planned(grid)
    tiers = {
        label: [cell.task.tier for cell in cells if isinstance(cell.task, WhiteBox) and cell.task.named.label == label]
        for label in ("pgd(eps=0.1)", "pgd(eps=0.05)")
    }
    assert tiers == {"pgd(eps=0.1)": ["paper", "strict"], "pgd(eps=0.05)": ["strict"]}
    assert grid.strong_bounds == [Bound("linf", 0.1)], "the other strengths are of tier strict alone"
    worst = [cell.task for cell in cells if isinstance(cell.task, WorstCase)]
    assert [task.bound for task in worst] == grid.strong_bounds
    assert {task.suite for task in worst} == {"quick"}
    assert replace(grid, tiers=("strict",)).strong_bounds == []


def test_an_attack_that_is_the_same_in_both_tiers_shares_its_images_in_tier_strict() -> None:
    cells = _planned(_only("demo", Wish(attacks=("ead", "pgd(eps=0.1)"))))
    shared = {
        (cell.task.name, cell.task.tier): cell.task.shared_images for cell in cells if isinstance(cell.task, WhiteBox)
    }
    assert shared == {
        ("ead", "paper"): False,
        ("ead", "strict"): True,
        ("pgd", "paper"): False,
        ("pgd", "strict"): False,
    }
    for cell in cells:
        assert cell.paper_twin is None or cell.paper_twin in cells


def test_the_ensemble_of_a_defense_is_asked_for_as_the_grid_says() -> None:
    (grid,) = load_preset("cifar10-k5").grids
    assert grid.ensemble("jsd", 3) == EnsembleRequest("jsd", "cifar10", "resnet20", 5, "fast", 3)


# --- narrowing ---


def test_a_name_takes_the_presets_rows_and_a_spec_is_taken_as_it_is() -> None:
    wish = Wish(tiers=("strict",), defenses=("jsd",), attacks=("pgd", "cw(c=3)"), batch_size=25)
    grid = _only("cifar10-whitebox", wish)
    section = grid.section(WhiteBoxSection)
    assert section is not None
    assert _labels(section) == ["pgd(eps=0.01)", "pgd(eps=0.02)", "cw(c=3)"]
    assert [row.amount.samples for row in section.rows] == [500, 500, 100]
    assert (grid.tiers, grid.defenses, grid.batch_size) == (("strict",), ("jsd",), 25)


@pytest.mark.parametrize("name", preset_names())
def test_without_wishes_a_preset_stays_as_it_is(name: str) -> None:
    preset = load_preset(name)
    assert narrow(preset, Wish()) == preset


def test_naming_attacks_asks_for_white_box_rows_where_there_are_any() -> None:
    grid = _only("demo", Wish(attacks=("pgd(eps=0.1)",)))
    assert _kinds(grid) == [WhiteBoxSection, WorstCaseSection]
    assert _labels(grid.section(WhiteBoxSection)) == ["pgd(eps=0.1)"]
    both = _only("demo", Wish(attacks=("none", "fgsm", "fgsm(eps=0.3)")))
    assert _kinds(both) == [CleanSection, WhiteBoxSection, WorstCaseSection]
    assert _labels(both.section(WhiteBoxSection)) == ["fgsm(eps=0.1)", "fgsm(eps=0.3)"]
    assert both.strong_bounds == [Bound("linf", 0.1), Bound("linf", 0.3)]
    clean = _only("demo", Wish(attacks=("none",)))
    assert _kinds(clean) == [CleanSection, WorstCaseSection]
    assert {type(cell.task) for cell in _planned(clean)} == {Clean}


def test_a_row_that_is_named_twice_is_there_once() -> None:
    grid = _only("demo", Wish(attacks=("fgsm", "fgsm", "bim@art(eps=0.1)", "bim@art(eps=0.1)")))
    assert _labels(grid.section(WhiteBoxSection)) == ["fgsm(eps=0.1)", "bim(eps=0.1)"]
    assert _only("demo", Wish(defenses=("jsd", "jsd"))).defenses == ("jsd",)


def test_a_full_spec_runs_in_every_tier_of_the_grid() -> None:
    section = _only("demo", Wish(attacks=("pgd(eps=0.05)",))).section(WhiteBoxSection)
    assert section is not None and section.rows == (Row(parse_attack("pgd(eps=0.05)"), Amount(200)),), "any tier"


def test_tiers_are_chosen_and_have_to_exist() -> None:
    grid = _only("demo", Wish(tiers=("strict",)))
    assert grid.tiers == ("strict",) and grid.strong_bounds == []
    assert not [cell for cell in _planned(grid) if cell.task.tier in ("paper", "strong")]
    strong = _only("demo", Wish(tiers=("strong",), attacks=("fgsm(eps=0.3)",)))
    assert [cell.task.title for cell in _planned(strong)] == ["worst-case(eps=0.3,suite=quick) · strong"]
    with pytest.raises(BadInput, match="unknown tier 'weak'"):
        narrow(load_preset("demo"), Wish(tiers=("weak",)))


@pytest.mark.parametrize("name", ["errors", "cifar10-transfer", "diversity"])
def test_tier_strong_needs_rows_with_a_bound(name: str) -> None:
    with pytest.raises(BadInput, match=f"tier strong needs .* bound .* preset '{name}' has none"):
        narrow(load_preset(name), Wish(tiers=("strong",)))


def test_a_preset_is_narrowed_to_some_of_its_datasets() -> None:
    preset = load_preset("errors")
    assert [grid.dataset for grid in preset.grids] == ["mnist", "cifar10", "cifar100"]
    assert _only("errors", Wish(datasets=("cifar10",))) == preset.grids[1]
    two = narrow(preset, Wish(datasets=("cifar100", "mnist")))
    assert [grid.dataset for grid in two.grids] == ["mnist", "cifar100"], "in the preset's order"
    with pytest.raises(BadInput, match="'errors' has no dataset 'digits'; it has mnist and cifar10 and cifar100"):
        narrow(preset, Wish(datasets=("digits",)))


def test_attacks_may_be_added_to_a_preset_that_has_clean_accuracies_alone() -> None:
    preset = narrow(load_preset("errors"), Wish(attacks=("none", "pgd(eps=0.1)"), datasets=("mnist",)))
    (grid,) = preset.grids
    assert _kinds(grid) == [CleanSection, WhiteBoxSection, WorstCaseSection]
    section = grid.section(WhiteBoxSection)
    assert section is not None and section.rows == (Row(parse_attack("pgd(eps=0.1)"), Amount()),), "on all images"
    alone = _only("errors", Wish(attacks=("pgd(eps=0.1)",), datasets=("mnist",)))
    assert _kinds(alone) == [WhiteBoxSection, WorstCaseSection]
    clean = _only("errors", Wish(attacks=("none",), datasets=("mnist",)))
    assert [cell.task for cell in _planned(clean)] == [Clean(0), Clean(1), Clean(2), Clean(None)]
    strong = _only("errors", Wish(attacks=("pgd(eps=0.1)",), tiers=("strong",), datasets=("mnist",)))
    assert strong.strong_bounds == [Bound("linf", 0.1)]
    with pytest.raises(BadInput, match="needs eps"):
        narrow(load_preset("errors"), Wish(attacks=("pgd",)))


def test_in_a_preset_without_rows_a_name_chooses_among_the_attacks_of_every_section() -> None:
    grid = _only("cifar10-transfer", Wish(attacks=("pgd",)))
    assert _kinds(grid) == [WorstCaseSection, BlackBoxSection, TransferSection]
    assert _labels(grid.section(BlackBoxSection)) == ["pgd(eps=0.01)"]
    assert _labels(grid.section(TransferSection)) == ["pgd(eps=0.05)"]
    assert [type(cell.task) for cell in _planned(grid)] == [BlackBox, *[Transfer] * 6]


def test_in_a_preset_without_rows_a_spec_is_taken_by_every_section_with_its_number_of_images() -> None:
    grid = _only("cifar10-transfer", Wish(attacks=("bim(eps=0.03)", "mim")))
    for kind, own in ((BlackBoxSection, "mim(eps=0.01)"), (TransferSection, "mim(eps=0.05)")):
        section = grid.section(kind)
        assert section is not None and _labels(section) == ["bim(eps=0.03)", own]
        assert section.amounts == ((section.title, Amount(500, 10000)),)
    with pytest.raises(BadInput, match="attack 'square' cannot be targeted, which a transfer matrix needs"):
        narrow(load_preset("cifar10-transfer"), Wish(attacks=("square(eps=0.1)",)))


def test_a_section_that_lacks_the_name_of_another_is_left_out() -> None:
    preset = load_preset("cifar10-transfer")
    (grid,) = preset.grids
    fewer = tuple(
        replace(section, named=section.named[:1]) if isinstance(section, TransferSection) else section
        for section in grid.sections
    )
    chosen = narrow(replace(preset, grids=(replace(grid, sections=fewer),)), Wish(attacks=("mim",)))
    assert _kinds(chosen.grids[0]) == [WorstCaseSection, BlackBoxSection]


def test_no_attack_can_be_chosen_of_a_preset_that_attacks_nothing() -> None:
    with pytest.raises(BadInput, match="preset 'diversity' has no attacks"):
        narrow(load_preset("diversity"), Wish(attacks=("pgd(eps=0.1)",)))


def test_a_surrogate_is_for_presets_with_black_box_attacks() -> None:
    for name in ("cifar10-transfer", "demo"):
        assert narrow(load_preset(name), Wish(surrogate="jsd")) == load_preset(name), "it is named in the request"
        left = _only(name, Wish(surrogate="none"))
        assert left.section(BlackBoxSection) is None and left.section(TransferSection) is not None
    assert narrow(load_preset("errors"), Wish(surrogate="none")) == load_preset("errors")
    for name, attacks in (("errors", ()), ("cifar10-whitebox", ()), ("demo", ("pgd",))):
        with pytest.raises(BadInput, match=f"--surrogate needs black-box attacks, but preset '{name}' has none"):
            narrow(load_preset(name), Wish(attacks=attacks, surrogate="jsd"))


@pytest.mark.parametrize(("trained", "wanted"), [("reference", []), ("fast", []), ("", ["reference"])])
def test_a_surrogate_of_recipe_fast_takes_the_place_of_one_that_is_not_trained(
    trained: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def located(request: EnsembleRequest) -> Path | None:
        return Path("here") if request.recipe == trained else None

    monkeypatch.setattr(planning, "locate", located)
    request = Request(load_preset("cifar10-transfer"), None, (0,), torch.device("cpu"), Path("nowhere"), "")
    assert [one.recipe for one in planning.missing(request) if one.seed == planning.SURROGATE_SEED] == wanted


def test_the_surrogates_of_all_seeds_have_the_same_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def located(request: EnsembleRequest) -> Path | None:
        return Path("here") if (request.recipe, request.seed) == ("fast", planning.SURROGATE_SEED) else None

    monkeypatch.setattr(planning, "locate", located)
    request = Request(load_preset("cifar10-transfer"), None, (0, 1), torch.device("cpu"), Path("nowhere"), "")
    surrogates = [one for one in planning.missing(request) if one.seed >= planning.SURROGATE_SEED]
    assert [(one.recipe, one.seed) for one in surrogates] == [("reference", 1000), ("reference", 1001)]


# --- order ---


def _shuffled(cells: list[Cell]) -> list[Cell]:
    """In no sensible order, and always the same."""
    return sorted(cells, key=lambda cell: cell.identity)


def test_cells_are_put_in_the_order_of_the_preset(make_cell: MakeCell) -> None:
    preset = load_preset("demo")
    bounds = [WorstCase(Bound("linf", eps), "quick", ()) for eps in (0.1, 0.2)]
    tasks: list[Task] = [
        Clean(0),
        WhiteBox(parse_attack("fgsm(eps=0.1)"), "paper"),
        WhiteBox(parse_attack("fgsm(eps=0.1)"), "strict"),
        WhiteBox(parse_attack("pgd(eps=0.1)"), "paper"),
        WhiteBox(parse_attack("pgd(eps=0.1)"), "strict"),
        WhiteBox(parse_attack("pgd(eps=0.05)"), "strict"),
        WhiteBox(parse_attack("pgd(eps=0.2)"), "strict"),
        WhiteBox(parse_attack("mim(eps=0.1)"), "strict"),
        WhiteBox(parse_attack("ead(c=5,steps=100)"), "strict", shared_images=True),
        *bounds,
        BlackBox(parse_attack("pgd(eps=0.2)"), "s"),
        BlackBox(parse_attack("mim(eps=0.2)"), "s"),
        Transfer(parse_attack("pgd(eps=0.1)"), 0),
        Transfer(parse_attack("mim(eps=0.1)"), 0),
        Detection(parse_attack("fgsm(eps=0.3)")),
        Detection(parse_attack("pgd(eps=0.3)")),
        Diversity(),
    ]
    wanted = [make_cell(task) for task in tasks]
    assert _shuffled(wanted) != wanted
    assert order_cells(_shuffled(wanted), preset) == wanted


def test_defenses_stand_side_by_side_in_the_presets_order_then_tiers_then_seeds(make_cell: MakeCell) -> None:
    fgsm = parse_attack("fgsm(eps=0.1)")
    wanted = [
        make_cell(WhiteBox(fgsm, tier), defense, seed=seed)
        for defense in ("baseline", "adp-2-0.5", "advt-pgd")
        for tier in ("paper", "strict")
        for seed in (0, 1)
    ]
    asked = sorted(wanted, key=lambda cell: (cell.conditions.seed, cell.identity))  # seeds come as they appeared
    assert order_cells(asked, load_preset("demo")) == wanted


def test_defenses_of_every_grid_stand_in_the_presets_order(tmp_path: Path, make_cell: MakeCell) -> None:
    grid = '[[grid]]\ndataset = "digits"\ndefenses = {}\ntiers = ["strict"]\nattacks = [{{ spec = "fgsm(eps=0.1)" }}]\n'
    grids = "".join(grid.format(defenses) for defenses in ('["adp-2-0.5", "baseline"]', '["gal"]'))
    (tmp_path / "two.toml").write_text(f'title = "Two grids"\n{grids}')
    fgsm = WhiteBox(parse_attack("fgsm(eps=0.1)"), "strict")
    wanted = [make_cell(fgsm, defense) for defense in ("adp-2-0.5", "baseline", "gal")]
    assert order_cells(wanted[::-1], load_preset(str(tmp_path / "two.toml"))) == wanted


def test_datasets_stand_in_the_presets_order(make_cell: MakeCell) -> None:
    wanted = [
        make_cell(Clean(None), defense, dataset=dataset)
        for dataset in ("mnist", "cifar10", "cifar100")
        for defense in ("baseline", "adp-2-0.5")
    ]
    assert order_cells(wanted[::-1], load_preset("errors")) == wanted


def test_what_a_preset_does_not_have_comes_after_what_it_has_as_it_appeared(make_cell: MakeCell) -> None:
    attacks = [parse_attack(text) for text in ("fgsm(eps=0.1)", "fgsm(eps=0.9)", "fgsm(eps=0.7)", "square(eps=0.1)")]
    wanted = [
        make_cell(WhiteBox(named, "strict"), defense) for named in attacks for defense in ("baseline", "theirs", "mine")
    ]
    asked = [wanted[place] for place in (10, 4, 5, 3, 11, 9, 7, 8, 6, 1, 2, 0)]
    assert order_cells(asked, load_preset("demo")) == wanted


def test_cells_of_one_place_stay_as_they_appeared(make_cell: MakeCell) -> None:
    """The sources of a transfer matrix, and of two cells with one place the later one."""
    named = parse_attack("pgd(eps=0.1)")
    cells = [make_cell(Transfer(named, source)) for source in (1, 0)]
    cells += [make_cell(WhiteBox(named, "strict"), samples=samples) for samples in (50, 20)]
    assert order_cells(cells, load_preset("demo")) == [*cells[2:], *cells[:2]]


@pytest.mark.parametrize("name", preset_names())
def test_the_rows_of_a_preset_come_back_in_its_order_however_they_were_asked_for(name: str) -> None:
    preset = load_preset(name)
    for grid in preset.grids:
        cells = _planned(grid)
        ordered = order_cells(_shuffled(cells), preset)
        assert [cell.task.evaluation for cell in ordered] == [cell.task.evaluation for cell in cells]
        for kind in (WhiteBox, WorstCase, BlackBox):
            assert [cell for cell in ordered if isinstance(cell.task, kind)] == [
                cell for cell in cells if isinstance(cell.task, kind)
            ]
