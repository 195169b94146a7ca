"""A cell's identity changes with everything that changes its result, and with nothing else; files keep all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from benchmark.attacks import NamedAttack, RecordedAttack, parse_attack, recorded_class
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import EAD, PGD
from benchmark.cells.cell import Cell
from benchmark.cells.codec import UNSAID, from_json, to_json
from benchmark.evaluations import TASKS
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Task
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages
from defenses.errors import BadInput

MakeCell = Callable[..., Cell]
PGD_01 = parse_attack("pgd(eps=0.1)")
STRICT = WhiteBox(PGD_01, "strict")
SHARED = WhiteBox(parse_attack("ead(c=5)"), "strict", shared_images=True)
LINF = Bound("linf", 0.1)
WORST = WorstCase(LINF, "quick", stages("quick", LINF, 2, 10))
L2 = Bound("l2", 0.5)
GONE = NamedAttack("gone", "elsewhere", RecordedAttack("eps=0.5", (("eps", 0.5), ("norm", "l2")), L2), "7")
EXAMPLES: dict[str, Task] = {
    "a member": Clean(1),
    "the ensemble": Clean(None),
    "tier paper": WhiteBox(parse_attack("pgd@art(eps=0.1,steps=3)"), "paper"),
    "tier strict": STRICT,
    "images of tier paper": SHARED,
    "an attack that is not registered": WhiteBox(GONE, "strict"),
    "the worst case": WORST,
    "the worst case in L2": WorstCase(L2, "full", (*WORST.stages[:2],)),
    "a surrogate": BlackBox(parse_attack("mim(eps=0.2)"), "5" * 64),
    "transfer": Transfer(PGD_01, 0),
    "targeted transfer": Transfer(parse_attack("bim(eps=0.1,targeted=true)"), 1),
    "detection of an attack": Detection(parse_attack("fgsm(eps=0.3)")),
    "detection, clean images": Detection(None, 25),
    "diversity": Diversity(),
}


@pytest.fixture(params=EXAMPLES)
def task(request: pytest.FixtureRequest) -> Task:
    return EXAMPLES[request.param]


@pytest.fixture
def cell(make_cell: MakeCell) -> Cell:
    return make_cell(STRICT)


def _with(thing: Any, path: str, value: Any) -> Any:
    """The same but for one part, such as ``images.samples``."""
    name, _, rest = path.partition(".")
    return replace(thing, **{name: _with(getattr(thing, name), rest, value) if rest else value})


def _parts(thing: Any, place: str = "") -> set[str]:
    """Every part of a cell, down to the attack and to plain values."""
    found: set[str] = set()
    for field in fields(thing):
        value = getattr(thing, field.name)
        deeper = is_dataclass(value) and field.name != "attack"
        found |= _parts(value, f"{place}{field.name}.") if deeper else {place + field.name}
    return found


# --- what an identity is made of ---

CHANGES: dict[str, Any] = {
    "images.dataset": "mnist",
    "images.checksum": "d1",
    "ensemble.weights": "w1",
    "task.named.name": "bim",
    "task.named.library": "art",
    "task.named.version": "4",
    "task.named.attack": PGD(eps=0.1, steps=11),
    "task.named.asked": Bound("l2", 0.5),
    "task.named.eot": 20,
    "task.rules": "paper",
    "task.shared_images": True,
    "conditions.seed": 1,
    "conditions.batch_size": 100,
    "conditions.device": "cuda",
    "conditions.acceleration": "none",
    "images.order": "shuffled",
}
NAMES: dict[str, Any] = {
    "ensemble.defense": "mine",
    "ensemble.spec": "adp(alpha=0,beta=0)",
    "ensemble.members": 4,
    "ensemble.network": "other",
    "ensemble.training": "in other words",
    "ensemble.convergence": "has not converged",
    "published": 12.5,
}
IN_TASKS: dict[tuple[str, str], Any] = {
    ("a member", "member"): None,
    ("a surrogate", "named"): PGD_01,
    ("a surrogate", "surrogate"): "6" * 64,
    ("transfer", "named"): parse_attack("pgd(eps=0.2)"),
    ("transfer", "source"): 1,
    ("detection of an attack", "named"): PGD_01,
    ("detection, clean images", "compared"): 20,
    ("the worst case", "limit"): Bound("linf", 0.2),
    ("the worst case", "suite"): "full",
    ("the worst case", "stages"): WORST.stages[1:],
}
"""Parts of the tasks of other evaluations, with another value for each."""


def test_every_part_is_either_part_of_the_result_or_a_name(cell: Cell) -> None:
    assert _parts(cell) == {*CHANGES, *NAMES, "images.samples"}
    types = {task.evaluation: {field.name for field in fields(task)} for task in TASKS.values()}
    covered: dict[str, set[str]] = {"whitebox": {"named", "rules", "shared_images"}, "diversity": set()}
    for example, part in IN_TASKS:
        covered.setdefault(EXAMPLES[example].evaluation, set()).add(part)
    assert covered == types


@pytest.mark.parametrize("part", CHANGES)
def test_what_changes_the_result_changes_identity_and_series(part: str, cell: Cell) -> None:
    other = _with(cell, part, CHANGES[part])
    assert other.identity != cell.identity and other.series != cell.series


@pytest.mark.parametrize(("example", "part"), IN_TASKS)
def test_every_part_of_a_task_changes_identity_and_series(example: str, part: str, make_cell: MakeCell) -> None:
    cell = make_cell(EXAMPLES[example])
    other = _with(cell, f"task.{part}", IN_TASKS[example, part])
    assert other.identity != cell.identity and other.series != cell.series


def test_the_version_of_a_library_behind_a_stage_changes_the_identity(make_cell: MakeCell) -> None:
    first, *rest = WORST.stages
    newer = replace(WORST, stages=(replace(first, named=replace(first.named, version="999")), *rest))
    assert make_cell(newer).identity != make_cell(WORST).identity


def test_the_evaluation_changes_identity_and_series(cell: Cell) -> None:
    other = replace(cell, task=Detection(PGD_01))  # the same attack, and the same tier in its file
    assert {key for key, value in to_json(other).items() if to_json(cell)[key] != value} == {"evaluation"}
    assert other.identity != cell.identity and other.series != cell.series


def test_every_evaluation_has_an_identity_of_its_own(make_cell: MakeCell) -> None:
    cells = [make_cell(task) for task in EXAMPLES.values()]
    assert len({cell.identity for cell in cells}) == len({cell.series for cell in cells}) == len(EXAMPLES)
    assert {cell.task.evaluation for cell in cells} == set(TASKS)


@pytest.mark.parametrize("part", NAMES)
def test_names_and_references_do_not(part: str, cell: Cell) -> None:
    other = _with(cell, part, NAMES[part])
    assert other.identity == cell.identity and other.series == cell.series


def test_the_words_for_parameters_are_a_name_and_the_order_of_settings_does_not_matter(cell: Cell) -> None:
    settings = tuple(PGD_01.attack.settings().items())
    for words, values in (("eps=0.1", settings), ("steps=10,eps=0.1", settings), ("eps=0.1", settings[::-1])):
        other = _with(cell, "task.named.attack", RecordedAttack(words, values, LINF))
        assert other.identity == cell.identity and other.series == cell.series


def test_more_samples_are_another_cell_of_the_same_series(cell: Cell) -> None:
    other = _with(cell, "images.samples", 200)
    assert other.identity != cell.identity and other.series == cell.series


def test_a_protocol_change_makes_every_cell_new(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell.identity
    monkeypatch.setattr("benchmark.cells.codec.PROTOCOL", 999)
    assert replace(cell).identity != before


# --- cells as keys, and where they stand ---


def test_equal_cells_are_one_key(task: Task, make_cell: MakeCell) -> None:
    cell, again = make_cell(task), make_cell(task, published=12.5)
    assert cell == again and len({cell, again}) == 1, "a reference is no part of what is asked"


@pytest.mark.parametrize("part", [*CHANGES, *NAMES, "images.samples"])
def test_cells_that_differ_in_anything_but_a_reference_are_two_keys(part: str, cell: Cell) -> None:
    values = {**CHANGES, **NAMES, "images.samples": 200}
    other = _with(cell, part, values[part])
    assert len({cell, other}) == (1 if part == "published" else 2), "one ensemble may go by two names"


def test_a_column_has_one_ensemble_whatever_its_size(make_cell: MakeCell) -> None:
    cell = make_cell(STRICT)
    assert make_cell(STRICT, members=5, weights="other").place == cell.place != make_cell(STRICT, "other").place


@pytest.mark.parametrize(
    "others",
    [{"samples": 20}, {"batch_size": 5}, {"device": "cuda"}, {"acceleration": "none"}, {"checksum": "1" * 64}],
    ids=lambda others: next(iter(others)),
)
def test_cells_that_answer_the_same_question_share_their_place(others: dict[str, Any], make_cell: MakeCell) -> None:
    cell = make_cell(STRICT)
    assert make_cell(STRICT, **others).place == cell.place and make_cell(STRICT, **others).identity != cell.identity


def test_defenses_share_a_line_and_not_a_place(task: Task, make_cell: MakeCell) -> None:
    ours, theirs = make_cell(task, "ours"), make_cell(task, "theirs")
    assert ours.line == theirs.line and ours.place != theirs.place
    assert ours.line != make_cell(task, seed=1).line and ours.line != make_cell(task, dataset="mnist").line


def test_every_example_has_a_line_of_its_own(make_cell: MakeCell) -> None:
    assert len({make_cell(task).line for task in EXAMPLES.values()}) == len(EXAMPLES)
    assert make_cell(WhiteBox(PGD_01, "paper")).line != make_cell(STRICT).line, "a line for each tier"
    assert make_cell(WhiteBox(parse_attack("pgd@art(eps=0.1)"), "strict")).line != make_cell(STRICT).line


def test_versions_and_surrogates_answer_the_same_question(make_cell: MakeCell) -> None:
    newer = replace(STRICT, named=replace(PGD_01, version="999"))
    assert make_cell(newer).place == make_cell(STRICT).place
    black = EXAMPLES["a surrogate"]
    assert isinstance(black, BlackBox)
    assert make_cell(replace(black, surrogate="6" * 64)).place == make_cell(black).place
    assert make_cell(replace(WORST, stages=WORST.stages[1:])).place == make_cell(WORST).place


def test_a_column_is_a_dataset_a_defense_and_a_seed(make_cell: MakeCell) -> None:
    cell = make_cell(STRICT)
    assert cell.column == ("digits", "ours", 0) == make_cell(WORST, weights="other", samples=7).column
    others = [make_cell(STRICT, dataset="mnist"), make_cell(STRICT, "theirs"), make_cell(STRICT, seed=1)]
    assert len({cell.column, *(other.column for other in others)}) == 4


def test_a_strict_cell_with_the_images_of_tier_paper_knows_the_cell_that_has_them(make_cell: MakeCell) -> None:
    assert make_cell(SHARED).paper_twin == make_cell(WhiteBox(SHARED.named, "paper"))
    for task in (STRICT, WhiteBox(SHARED.named, "paper"), WORST, Clean(None)):
        assert make_cell(task).paper_twin is None


# --- files ---


def _again(cell: Cell) -> Cell:
    return from_json(json.loads(json.dumps(to_json(cell))))


def test_a_cell_survives_a_file(task: Task, make_cell: MakeCell) -> None:
    cell = make_cell(task, published=12.5, acceleration="none", seed=3)
    again = _again(cell)
    assert again == cell and again.published == 12.5
    assert (again.identity, again.series, again.place) == (cell.identity, cell.series, cell.place)
    assert again.title == cell.title and again.task.bound == cell.task.bound


def test_a_file_of_the_first_version_is_read_with_the_same_identity(task: Task, make_cell: MakeCell) -> None:
    cell = make_cell(task)
    content = {key: value for key, value in to_json(cell).items() if key not in ("bound", "shared_images")}
    again = from_json(content)
    assert again.identity == cell.identity and again.series == cell.series
    if task != EXAMPLES["an attack that is not registered"]:  # every bound was one of L∞ then
        assert again == cell


BASE = {
    "dataset": "digits",
    "data_checksum": "d0",
    "defense": "ours",
    "spec": "adp(alpha=2,beta=0.5)",
    "members": 2,
    "network": "mini-resnet",
    "training": "fast recipe, 12 epochs, seed 0",
    "weights": "w0",
    "seed": 0,
    "batch_size": 20,
    "device": "cpu",
    "acceleration": "folded",
    "samples": 50,
    "published": None,
}
NO_ATTACK = {"attack": "none", "library": "none", "library_version": "", "tier": "clean"}
NATIVE_PGD = "pgd@native(eps=0.1,steps=50,step_size=0.02) from net2 [1]"
FIRST_VERSION: dict[str, tuple[str, str, dict[str, Any], Task]] = {
    "clean": (
        "5d461727da70d540",
        "ebaff61eeeae1a69",
        {**NO_ATTACK, "parameters": "classifier=net1", "settings": {"classifier": "net1"}},
        Clean(0),
    ),
    "whitebox": (
        "01a55579acec0d82",
        "d78407d62fc43cc6",
        {
            "attack": "pgd",
            "parameters": "eps=0.1",
            "library": "torchattacks",
            "library_version": "3.5.1",
            "settings": {
                "eps": 0.1, "steps": 10, "step_size": None, "targeted": False, "restarts": 1, "loss": "ce",
            },
            "tier": "strict",
        },
        WhiteBox(replace(PGD_01, version="3.5.1"), "strict"),
    ),
    "whitebox, images of tier paper": (
        "df22c309508b9f30",
        "a35acba2c8406266",
        {
            "attack": "ead",
            "parameters": "c=5",
            "library": "foolbox",
            "library_version": "3.3.4",
            "settings": {"c": 5.0, "beta": 0.01, "kappa": 0.1, "steps": 1000, "lr": 0.01, "targeted": False},
            "tier": "strict",
        },
        WhiteBox(replace(SHARED.named, version="3.3.4"), "strict", shared_images=True),
    ),
    "whitebox, no such attack today": (
        "0b836bf8996044ff",
        "a42d2ce3ec72bd2a",
        {
            "attack": "gone",
            "parameters": "eps=0.1",
            "library": "native",
            "library_version": "1",
            "settings": {"eps": 0.1, "power": 3},
            "tier": "strict",
        },
        WhiteBox(
            NamedAttack("gone", "native", RecordedAttack("eps=0.1", (("eps", 0.1), ("power", 3)), LINF), "1"), "strict"
        ),
    ),
    "whitebox, other parameters today": (
        "07e4fbc02e1824a4",
        "2440c9b474089035",
        {
            "attack": "pgd",
            "parameters": "eps=0.1",
            "library": "torchattacks",
            "library_version": "3.5.1",
            "settings": {"eps": 0.1, "steps": 10},
            "tier": "paper",
        },
        WhiteBox(
            NamedAttack(
                "pgd", "torchattacks", recorded_class("pgd")("eps=0.1", (("eps", 0.1), ("steps", 10)), LINF), "3.5.1"
            ),
            "paper",
        ),
    ),
    "strong": (
        "c630a58de293e8da",
        "f0170628e9a08e63",
        {
            "attack": "worst-case",
            "parameters": "eps=0.1,suite=quick",
            "library": "several",
            "library_version": "",
            "settings": {
                "eps": 0.1,
                "suite": "quick",
                "stages": [
                    "fgsm@torchattacks(eps=0.1) [3.5.1]",
                    NATIVE_PGD,
                    "square@pyautoattack(eps=0.1,queries=300) [0.2.0]",
                ],
            },
            "tier": "strong",
        },
        replace(WORST, stages=()),
    ),
    "blackbox": (
        "bb1bc1455254447b",
        "1208663f3f5f532d",
        {
            "attack": "mim",
            "parameters": "eps=0.2",
            "library": "torchattacks",
            "library_version": "3.5.1",
            "settings": {
                "eps": 0.2, "steps": 10, "step_size": None, "decay": 1.0, "targeted": False, "surrogate": "5" * 64,
            },
            "tier": "black-box",
        },
        BlackBox(replace(parse_attack("mim(eps=0.2)"), version="3.5.1"), "5" * 64),
    ),
    "transfer": (
        "6cdc0d05afde3574",
        "1c6fe511a0e91883",
        {
            "attack": "bim",
            "parameters": "eps=0.1,targeted=true",
            "library": "torchattacks",
            "library_version": "3.5.1",
            "settings": {"eps": 0.1, "steps": 10, "targeted": True, "source": "net2"},
            "tier": "strict",
        },
        Transfer(replace(parse_attack("bim(eps=0.1,targeted=true)"), version="3.5.1"), 1),
    ),
    "detection": (
        "7d8468045c9feb96",
        "e8465f18a5cf0d04",
        {
            "attack": "fgsm",
            "parameters": "eps=0.3",
            "library": "torchattacks",
            "library_version": "3.5.1",
            "settings": {"eps": 0.3, "targeted": False},
            "tier": "strict",
        },
        Detection(replace(parse_attack("fgsm(eps=0.3)"), version="3.5.1")),
    ),
    "detection, clean images": (
        "2cc3fdb15c53169a",
        "36784697e3bcb47b",
        {**NO_ATTACK, "parameters": "compared=25", "settings": {"compared": 25}},
        Detection(None, 25),
    ),
    "diversity": (
        "8c454b1bf7bcb49a",
        "7c3942fce5d5ebb3",
        {**NO_ATTACK, "parameters": "", "settings": {}, "batch_size": 50},
        Diversity(),
    ),
}  # fmt: skip
"""Entries of a manifest as the first version wrote them: how their identity and series began, the entry, the task."""


@pytest.mark.parametrize("name", FIRST_VERSION)
def test_what_the_first_version_measured_keeps_the_identity_it_had_then(name: str) -> None:
    identity, series, entry, task = FIRST_VERSION[name]
    cell = from_json({**BASE, **entry, "evaluation": name.partition(",")[0]})
    assert cell.identity.startswith(identity) and cell.series.startswith(series)
    if isinstance(task, WorstCase):
        assert isinstance(cell.task, WorstCase)
        assert [stage.written() for stage in cell.task.stages] == entry["settings"]["stages"]
        assert [stage.member for stage in cell.task.stages] == [None, 1, None]
        cell = _with(cell, "task.stages", ())
    assert cell.task == task
    assert {name.partition(",")[0] for name in FIRST_VERSION} == set(TASKS)


@pytest.mark.parametrize("shared", [True, False])
def test_whether_images_are_those_of_tier_paper_stays_as_it_was_written(
    shared: bool, make_cell: MakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(replace(SHARED, shared_images=shared))
    content, identity = to_json(cell), cell.identity
    for today in (True, False):
        monkeypatch.setattr(EAD, "same_in_tiers", today)
        again = from_json(content)
        assert isinstance(again.task, WhiteBox) and again.task.shared_images is shared
        assert again == cell and again.identity == identity and (again.paper_twin is not None) is shared


def test_an_unknown_evaluation_is_named(cell: Cell) -> None:
    with pytest.raises(BadInput, match="cells of evaluation 'whitebix'; did you mean whitebox"):
        from_json({**to_json(cell), "evaluation": "whitebix"})


@pytest.mark.parametrize("key", UNSAID)
def test_what_the_first_files_did_not_say_has_its_meaning(cell: Cell, key: str) -> None:
    content = {**to_json(cell), **UNSAID}
    rest = {other: value for other, value in content.items() if other != key}
    assert from_json(rest) == from_json(content)


def test_a_missing_key_is_named(cell: Cell) -> None:
    content = to_json(cell)
    for key in content.keys() - {"bound", "shared_images", *UNSAID}:
        rest = {other: value for other, value in content.items() if other != key}
        with pytest.raises(BadInput, match=f"another version of adp-bench .*'{key}'.*choose another --out"):
            from_json(rest)


@pytest.mark.parametrize(
    ("example", "key"),
    [
        ("a member", "classifier"), ("a surrogate", "surrogate"), ("transfer", "source"), ("the worst case", "eps"),
        ("the worst case", "suite"), ("the worst case", "stages"),
    ],
)  # fmt: skip
def test_a_missing_setting_of_an_evaluation_is_named(example: str, key: str, make_cell: MakeCell) -> None:
    content = to_json(make_cell(EXAMPLES[example]))
    content["settings"] = {other: value for other, value in content["settings"].items() if other != key}
    with pytest.raises(BadInput, match=f"another version of adp-bench .*'{key}'"):
        from_json(content)


@pytest.mark.parametrize("content", [None, [], "a cell", {}])
def test_what_is_no_cell_is_bad_input(content: Any) -> None:
    with pytest.raises(BadInput, match="another version of adp-bench"):
        from_json(content)
