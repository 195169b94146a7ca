"""Attacks known from records alone keep what is known of their name, and records lack no column."""

from __future__ import annotations

import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.evaluations.task import Written
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import stages
from benchmark.harness.records import RECORDS, Span
from defenses.errors import BadInput


def _older(spec: str, without: str, **more: object) -> Written:
    named = parse_attack(spec)
    settings = {key: value for key, value in named.attack.settings().items() if key != without}
    return Written(named.name, named.attack.parameters, named.library, "0.9", {**settings, **more}, "strict")


@pytest.mark.parametrize("name", ["label", "correct"])
def test_records_without_a_column_that_has_no_default_are_refused(name: str) -> None:
    values = {"label": [1, 2], "clean_prediction": [1, 2], "correct": [False, False]}
    del values[name]
    with pytest.raises((KeyError, ValueError, BadInput)):
        RECORDS.frame(Span(0, 2), values)


def test_a_suite_is_within_its_bound_or_refused() -> None:
    try:
        found = stages("quick", Bound("l2", 0.5), 2, 10)
    except BadInput:
        return
    assert {stage.named.bound for stage in found} == {Bound("l2", 0.5)}


def test_a_targeted_transfer_known_from_its_record_is_targeted() -> None:
    assert Transfer.read(_older("pgd(eps=0.1,targeted=true)", "loss", source="net1")).targeted


def test_a_recorded_attack_of_a_known_name_still_shares_its_images() -> None:
    assert WhiteBox.read(_older("cw(c=1)", "abort_early")).shared_images


def test_a_recorded_jsma_has_no_bound() -> None:
    assert WhiteBox.read(_older("jsma(gamma=0.1)", "", old=3)).bound is None


def test_a_recorded_attack_of_a_known_name_keeps_what_is_known_of_it() -> None:
    assert WhiteBox.read(_older("cw(c=1)", "abort_early")).named.attack.minimises
    assert WhiteBox.read(_older("fgsm(eps=0.1)", "targeted")).named.attack.single_step
    assert WhiteBox.read(_older("square(eps=0.1)", "", old=3)).named.attack.query_only
