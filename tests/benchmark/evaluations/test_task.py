"""Tasks are written down and read back, also when their attack is not what it was; what they share is told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmark.attacks import RecordedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import PGD
from benchmark.cells.cell import Cell
from benchmark.evaluations import EVALUATIONS, TASKS
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Task, Written, member_name, member_number, read_attack, written_attack
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages

PGD_01 = parse_attack("pgd(eps=0.1)")
LINF = Bound("linf", 0.1)


def _whitebox(spec: str, tier: Any = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(spec), tier)


# --- written and read ---

ONE_OF_EACH: tuple[Task, ...] = (
    Clean(),
    Clean(2),
    _whitebox("pgd(eps=8/255)", "paper"),
    _whitebox("pgd@art(eps=0.1,steps=7,targeted=true)"),
    WhiteBox(parse_attack("cw(c=10)"), "strict", shared_images=True),
    WhiteBox(parse_attack("cw(c=10)"), "strict"),
    WorstCase(LINF, "full", stages("full", LINF, 3, 10)),
    WorstCase(LINF, "quick", stages("quick", LINF, 1, 10)),
    WorstCase(Bound("l2", 0.5), "full", ()),
    BlackBox(PGD_01, "its weights"),
    Transfer(parse_attack("mim(eps=0.1,targeted=true)"), 1),
    Detection(parse_attack("evasive(eps=0.1)")),
    Detection(None, 200),
    Diversity(),
)


@pytest.mark.parametrize("task", ONE_OF_EACH, ids=lambda task: task.title)
def test_a_task_reads_back_from_what_is_written(task: Task) -> None:
    written = Written(*json.loads(json.dumps(task.written())))
    again = TASKS[task.evaluation].read(written)
    assert again == task and hash(again) == hash(task)
    assert again.written() == task.written()


def test_every_evaluation_has_a_task_of_its_own_name() -> None:
    assert {type(task) for task in ONE_OF_EACH} == set(TASKS.values())
    assert len(TASKS) == len(EVALUATIONS) == 7
    assert list(TASKS) == ["clean", "whitebox", "strong", "blackbox", "transfer", "detection", "diversity"]


def test_members_are_counted_from_1_in_files() -> None:
    assert [member_name(number) for number in range(3)] == ["net1", "net2", "net3"]
    assert [member_number(member_name(number)) for number in range(12)] == list(range(12))


# --- attacks that are not what they were ---


def _written(attack: str, parameters: str, settings: dict[str, Any], bound: str = "") -> Written:
    return Written(attack, parameters, "someones", "3.1", settings, "strict", bound)


def test_an_attack_that_is_as_it_was_is_the_attack_itself() -> None:
    named = read_attack(written_attack(PGD_01, {"source": "net1"}, "strict"), "source")
    assert named == PGD_01 and isinstance(named.attack, PGD)
    older = read_attack(written_attack(replace(PGD_01, version="0.9"), {}, "strict"))
    assert older.attack == PGD_01.attack and older.version == "0.9", "its version is the one that ran"


@pytest.mark.parametrize("bound", ["", "l2:0.5", "l1:12", "l0:30", "linf:8/255"])
def test_an_attack_nobody_knows_any_more_is_told_from_its_record(bound: str) -> None:
    written = _written("gone", "strength=2,colour=red", {"strength": 2, "colour": "red", "steps": 5}, bound)
    named = read_attack(written)
    assert isinstance(named.attack, RecordedAttack)
    assert (named.name, named.library, named.version) == ("gone", "someones", "3.1")
    assert named.label == "gone(strength=2,colour=red)" and named.text == "gone@someones(strength=2,colour=red)"
    assert named.attack.parameters == "strength=2,colour=red"
    assert named.attack.settings() == written.settings
    assert ("" if named.bound is None else str(named.bound)) == bound
    assert written_attack(named, {}, "strict") == written, "what is written again is what was read"
    assert read_attack(written_attack(named, {}, "strict")) == named
    assert len({named, read_attack(written)}) == 1


_NOW = PGD_01.attack.settings()


@pytest.mark.parametrize(
    ("parameters", "settings"),
    [
        ("eps=0.1", {key: value for key, value in _NOW.items() if key != "loss"}),
        ("eps=0.1,warmth=3", {**_NOW, "warmth": 3}),
        ("eps=0.1,steps=10", _NOW),
        ("eps=0.1,steps=0", {**_NOW, "steps": 0}),
    ],
    ids=["it had fewer parameters", "it had one more", "another default then", "a value that is refused today"],
)
def test_a_known_attack_with_other_parameters_is_told_from_its_record(
    parameters: str, settings: dict[str, Any]
) -> None:
    written = Written("pgd", parameters, "torchattacks", "3.4", settings, "strict", "linf:0.1")
    named = read_attack(written)
    assert isinstance(named.attack, RecordedAttack)
    assert named.label == f"pgd({parameters})" and named.attack.settings() == settings and named.bound == LINF
    assert written_attack(named, {}, "strict") == written


def test_the_first_version_wrote_no_bounds_and_had_those_of_eps_alone() -> None:
    settings = {"eps": 0.1, "warmth": 3}
    old, new = (_written("gone", "eps=0.1", settings, bound) for bound in ("", "linf:0.1"))
    assert read_attack(old).bound == LINF
    assert read_attack(old) == read_attack(new)
    assert read_attack(_written("gone", "c=1", {"c": 1.0})).bound is None


def test_a_cell_of_an_attack_from_the_record_is_the_cell_it_was(make_cell: Callable[..., Cell]) -> None:
    settings = {"eps": 0.1, "warmth": 3}
    one, same, other = (
        make_cell(WhiteBox.read(_written("gone", "eps=0.1", {**settings, **more}, bound)))
        for more, bound in (({}, ""), ({}, "linf:0.1"), ({"warmth": 4}, ""))
    )
    assert one == same and one.identity == same.identity and one.place == same.place
    assert one.identity != other.identity and one.place != other.place
    assert one.task.title == "gone@someones(eps=0.1) · strict"


@pytest.mark.parametrize(
    ("written", "shared"),
    [
        (_whitebox("cw(c=1)").written()._replace(shared_images=None), True),
        (_whitebox("cw(c=1)", "paper").written()._replace(shared_images=None), False),
        (_whitebox("pgd(eps=0.1)").written()._replace(shared_images=None), False),
        (_whitebox("cw(c=1)").written()._replace(shared_images=False), False),
    ],
)
def test_the_first_version_shared_images_between_tiers_where_the_attack_is_the_same(
    written: Written, shared: bool
) -> None:
    task = WhiteBox.read(written)
    assert task.shared_images == shared
    assert task.paper_twin == (WhiteBox(task.named, "paper") if shared else None)


# --- what tasks share ---


def test_a_variant_ignores_the_parameters_that_are_named() -> None:
    one, other = _whitebox("pgd(eps=0.1,steps=20)"), _whitebox("pgd(eps=0.2,steps=20)")
    assert one.variant() != other.variant() and one.variant("steps") != other.variant("steps")
    assert one.variant("eps") == other.variant("eps") == one.variant("eps", "nothing of that name")
    longer = _whitebox("pgd(eps=0.2,steps=50)")
    assert one.variant("eps") != longer.variant("eps")
    assert one.variant("eps", "steps") == longer.variant("eps", "steps")
    assert hash(one.variant("eps")) == hash(other.variant("eps"))


@pytest.mark.parametrize(
    "other",
    [
        _whitebox("bim(eps=0.1)"),
        _whitebox("pgd(eps=0.1)", "paper"),
        _whitebox("pgd(eps=0.1,targeted=true)"),
        BlackBox(PGD_01, "its weights"),
        Transfer(PGD_01, 0),
        Detection(PGD_01),
    ],
    ids=lambda task: task.title,
)
def test_a_variant_tells_apart_what_is_not_named(other: Task) -> None:
    assert _whitebox("pgd(eps=0.1)").variant("eps") != other.variant("eps")


def test_a_variant_tells_norms_apart_also_where_the_radius_is_ignored() -> None:
    small, large = WorstCase(LINF, "full", ()), WorstCase(Bound("linf", 0.2), "full", ())
    assert small.variant() == large.variant() and small.asked != large.asked
    assert small.variant() != WorstCase(Bound("l2", 0.1), "full", ()).variant()
    assert small.variant() != WorstCase(LINF, "quick", ()).variant()


def test_what_is_asked_beside_the_attack_tells_variants_apart() -> None:
    for one, other in (
        (Transfer(PGD_01, 0), Transfer(PGD_01, 1)),
        (Clean(), Clean(0)),
        (Detection(None, 20), Detection(None, 30)),
    ):
        assert one.variant("eps") != other.variant("eps") and one.asked != other.asked


def test_what_was_asked_does_not_depend_on_what_answers_it() -> None:
    other_version = replace(PGD_01, version="0.9")
    assert WhiteBox(PGD_01, "strict").asked == WhiteBox(other_version, "strict").asked
    assert BlackBox(PGD_01, "one").asked == BlackBox(PGD_01, "two").asked
    suite = stages("full", LINF, 2, 10)
    assert WorstCase(LINF, "full", suite).asked == WorstCase(LINF, "full", suite[:-1]).asked
    assert WhiteBox(PGD_01, "strict").asked != WhiteBox(parse_attack("pgd@art(eps=0.1)"), "strict").asked


@pytest.mark.parametrize(
    ("task", "group", "name", "parameters", "library"),
    [
        (Clean(), "clean", "none", "classifier=ensemble", "none"),
        (Clean(1), "clean", "none", "classifier=net2", "none"),
        (_whitebox("pgd@art(eps=0.1)"), "strict", "pgd", "eps=0.1", "art"),
        (WorstCase(LINF, "full", ()), "strong", "worst-case", "eps=0.1", "several"),
        (WorstCase(Bound("l2", 0.5), "quick", ()), "strong", "worst-case", "eps=0.5,norm=l2,suite=quick", "several"),
        (BlackBox(PGD_01, "its weights"), "black-box", "pgd", "eps=0.1", "torchattacks"),
        (Detection(None, 20), "detection", "none", "compared=20", "none"),
        (Diversity(), "diversity", "none", "", "none"),
    ],
)
def test_a_table_names_a_task_by_group_attack_parameters_and_library(
    task: Task, group: str, name: str, parameters: str, library: str
) -> None:
    assert (task.group, task.name, task.parameters, task.library) == (group, name, parameters, library)
