"""A bound is a norm and a radius: it reads back from its text, and one that means nothing is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import NORMS, SYMBOLS, Bound, Norm, read_bound
from defenses.errors import BadInput


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("linf:8/255", Bound("linf", 8 / 255)),
        ("linf:0.1", Bound("linf", 0.1)),
        ("l2:0.5", Bound("l2", 0.5)),
        ("l1:12", Bound("l1", 12.0)),
        ("l0:30", Bound("l0", 30.0)),
    ],
)
def test_a_bound_is_read_from_its_one_text(text: str, bound: Bound) -> None:
    assert read_bound(text) == bound and str(bound) == text
    assert hash(read_bound(text)) == hash(bound)


@given(st.sampled_from(NORMS), st.floats(0, exclude_min=True, allow_infinity=False))
def test_every_bound_reads_back_from_its_text(norm: Norm, radius: float) -> None:
    assert read_bound(str(Bound(norm, radius))) == Bound(norm, radius)


@pytest.mark.parametrize(("text", "same"), [("linf:0.100", "linf:0.1"), ("l2:1/2", "l2:0.5"), ("l0:30.0", "l0:30")])
def test_another_way_to_write_it_is_the_same_bound(text: str, same: str) -> None:
    assert str(read_bound(text)) == same


@pytest.mark.parametrize("text", ["", "linf", "0.1", "linf:", "linf:far", "linf:nan", "linf=0.1", "linf:1/0"])
def test_what_is_no_bound_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"cannot read the bound .*such as linf:8/255 or l2:0\.5"):
        read_bound(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linv:0.1", "unknown norm 'linv'; did you mean linf"),
        ("L2:0.5", "unknown norm 'L2'; did you mean l2"),
        ("l3:1", "unknown norm 'l3'; known: l0, l1, l2, linf"),
    ],
)
def test_an_unknown_norm_is_refused_with_those_there_are(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_bound(text)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.0, -0.1, math.inf, math.nan])
def test_a_radius_that_is_not_a_finite_number_above_0_is_refused(norm: Norm, radius: float) -> None:
    with pytest.raises(BadInput, match=f"the radius of a bound is {radius:g}; it must be a finite number above 0"):
        Bound(norm, radius)


@pytest.mark.parametrize("norm", NORMS)
def test_a_ball_lies_within_those_of_its_norm_that_are_no_smaller(norm: Norm) -> None:
    small, large = Bound(norm, 0.1), Bound(norm, 0.2)
    assert small.within(small) and small.within(large) and not large.within(small)
    for other in NORMS:
        if other != norm:
            assert not small.within(Bound(other, 0.2)) and not Bound(other, 0.1).within(large), "norms are not compared"


def test_readers_see_the_norm_by_its_symbol() -> None:
    assert [Bound(norm, 1).symbol for norm in NORMS] == ["L∞", "L2", "L1", "L0"]
    assert set(SYMBOLS) == set(NORMS)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        *((f"{name}(eps=8/255)", "linf:8/255") for name in ("fgsm", "bim", "pgd", "mim", "evasive", "mora")),
        *((f"{name}(eps=0.1)", "linf:0.1") for name in ("apgd", "apgd-ce", "apgd-t", "fab-t", "square", "autoattack")),
        ("cascade(eps=0.1)", "linf:0.1"),
        *((f"{name}(c=1)", None) for name in ("cw", "ead")),
        ("jsma(gamma=0.1,eps=0.2)", None),
    ],
)
def test_an_attack_has_the_bound_of_its_eps_or_none(spec: str, bound: str | None) -> None:
    named = parse_attack(spec)
    assert named.bound == (None if bound is None else read_bound(bound)) == named.attack.bound
