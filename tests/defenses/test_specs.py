"""A spec has one text form: what is written comes back, and what cannot be read is refused in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defenses import specs
from defenses.errors import BadInput
from defenses.registry import Registry


@dataclass(frozen=True)
class Attack:
    eps: float
    steps: int = 10
    start: bool = True
    norm: Literal["linf", "l2"] = "linf"
    label: str = "true"
    step: float | None = None
    size: int | float = 1
    seen: int = field(default=0, init=False)


@pytest.fixture
def attacks() -> Registry[Any]:
    registry: Registry[Any] = Registry("attack")
    registry.register("pgd", Attack)
    registry.alias("pgd-small", "pgd(eps=8/255,steps=50)")
    return registry


def build(text: str) -> Attack:
    return specs.build(Attack, specs.parse(text, "attack"), "attack")


numbers = st.floats(allow_nan=False)
words = st.text(st.characters(exclude_characters="(),", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text == text.strip()
)
instances = st.builds(
    Attack,
    eps=numbers | st.integers(-600, 600).map(lambda level: level / 255),
    steps=st.integers(),
    start=st.booleans(),
    norm=st.sampled_from(["linf", "l2"]),
    label=words,
    step=st.none() | numbers,
    size=st.integers() | numbers,
)


@given(instances)
def test_every_value_survives_its_canonical_text(attack: Attack) -> None:
    assert build(specs.canonical("pgd", attack)) == attack


@given(instances)
def test_the_canonical_text_of_a_canonical_text_is_itself(attack: Attack) -> None:
    text = specs.canonical("pgd", attack)
    assert specs.canonical("pgd", build(text)) == text


@given(st.text() | st.text("pgd(eps=1,+)/ \n", max_size=20))
def test_any_text_is_either_read_or_refused_in_one_line(text: str) -> None:
    registry: Registry[Any] = Registry("attack")
    registry.register("pgd", Attack)
    refusal, canonical = "one line", None
    try:
        canonical, _ = specs.resolve(registry, text)
    except BadInput as refused:
        refusal = str(refused)
    assert len(refusal.splitlines()) == 1
    assert canonical is None or specs.resolve(registry, canonical)[0] == canonical


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("pgd(eps=0.5)", "pgd(eps=0.5)"),
        (" pgd ( steps = 7 , eps = .5 ) ", "pgd(eps=0.5,steps=7)"),
        ("pgd(eps=2.0)", "pgd(eps=2)"),
        ("pgd(eps=8/255)", "pgd(eps=8/255)"),
        ("pgd(eps=0.03137254901960784)", "pgd(eps=8/255)"),
        ("pgd(eps=1/7)", "pgd(eps=0.14285714285714285)"),
        ("pgd(eps=1e-3)", "pgd(eps=0.001)"),
        ("pgd(eps=1,steps=10,start=TRUE,norm=linf)", "pgd(eps=1)"),
        ("pgd(eps=1,start=False,norm=l2,label=a=b)", "pgd(eps=1,start=false,norm=l2,label=a=b)"),
        ("pgd(eps=1,step=0.1)", "pgd(eps=1,step=0.1)"),
        ("pgd(eps=1,step=none)", "pgd(eps=1)"),
        ("pgd-small", "pgd(eps=8/255,steps=50)"),
        ("pgd-small(steps=10)", "pgd(eps=8/255)"),
    ],
)
def test_different_spellings_have_one_canonical_form(attacks: Registry[Any], written: str, canonical: str) -> None:
    assert specs.resolve(attacks, written)[0] == canonical


def test_a_spec_without_parameters_is_its_bare_name() -> None:
    @dataclass(frozen=True)
    class Plain:
        weight: float = 1.0

    assert specs.canonical("plain", specs.build(Plain, specs.parse("plain()", "defense"), "defense")) == "plain"


def test_a_field_named_around_a_keyword_is_written_without_its_underscore() -> None:
    @dataclass(frozen=True)
    class Divergence:
        lambda_: float

    divergence = specs.build(Divergence, specs.parse("jsd(lambda=0.5)", "defense"), "defense")
    assert divergence == Divergence(0.5)
    assert specs.canonical("jsd", divergence) == "jsd(lambda=0.5)"


def test_a_field_kept_out_of_the_spec_can_neither_be_written_nor_is_it_shown() -> None:
    @dataclass(frozen=True)
    class Composed:
        eps: float = 0.1
        inner: str = field(default="plain", metadata={"spec": False})

    assert specs.canonical("advt", Composed(inner="adp(alpha=2)")) == "advt"
    with pytest.raises(BadInput, match="defense 'advt' has no parameter 'inner'"):
        specs.build(Composed, specs.parse("advt(inner=x)", "defense"), "defense")


def test_arguments_behind_an_alias_win_over_its_own(attacks: Registry[Any]) -> None:
    _, attack = specs.resolve(attacks, "pgd-small(eps=0.5)")
    assert attack == Attack(eps=0.5, steps=50)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read the attack ''; write name or name(key=value,key=value)"),
        ("pgd(eps=1", "cannot read the attack 'pgd(eps=1'; write name"),
        ("pgd)eps=1(", "cannot read the attack"),
        ("pgd(eps=(1))", "cannot read the attack"),
        ("pgd(eps)", "cannot read 'eps' in the attack 'pgd(eps)'; write key=value"),
        ("pgd(eps=)", "cannot read 'eps=' in the attack"),
        ("pgd(=1)", "cannot read '=1' in the attack"),
        ("pgd(eps=1,eps=2)", "'eps' is given twice in the attack"),
        ("pdg(eps=1)", "unknown attack 'pdg'; did you mean pgd"),
        ("pgd(epz=1)", "attack 'pgd' has no parameter 'epz'; did you mean eps"),
        ("pgd(seen=1,eps=1)", "attack 'pgd' has no parameter 'seen'"),
        ("pgd", "attack 'pgd' needs eps; write pgd(eps=…)"),
        ("pgd(eps=much)", "eps of attack 'pgd' is 'much'; write a number such as 0.5 or 8/255"),
        ("pgd(eps=nan)", "eps of attack 'pgd' is 'nan'; write a number"),
        ("pgd(eps=1/0)", "eps of attack 'pgd' is '1/0'; write a number"),
        (f"pgd(eps=1{'0' * 400}/1)", "write a number"),
        ("pgd(eps=1,steps=2.5)", "steps of attack 'pgd' is '2.5'; write a whole number"),
        (f"pgd(eps=1,steps={'9' * 5000})", "write a whole number"),
        ("pgd(eps=1,start=maybe)", "start of attack 'pgd' is 'maybe'; write true or false"),
        ("pgd(eps=1,norm=lnf)", "norm of attack 'pgd' is 'lnf'; did you mean linf"),
    ],
)
def test_bad_text_is_refused_with_its_place_and_remedy(attacks: Registry[Any], text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        specs.resolve(attacks, text)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_target_that_is_no_dataclass_is_refused(attacks: Registry[Any]) -> None:
    attacks.register("printer", print)
    with pytest.raises(BadInput, match=r"attack 'printer' is <built-in .*; it must be a dataclass"):
        specs.resolve(attacks, "printer")


@pytest.mark.parametrize("value", ["", " padded", "a,b", "f(x)"])
def test_a_value_that_could_not_be_read_back_has_no_text(value: str) -> None:
    with pytest.raises(BadInput, match="not allowed in a spec"):
        specs.canonical("pgd", Attack(eps=1, label=value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "none"),
        (3, "3"),
        (3.0, "3"),
        (-0.5, "-0.5"),
        (8 / 255, "8/255"),
        (-8 / 255, "-8/255"),
        (0.2, "0.2"),  # also 51/255, but short enough as it is
        (math.nextafter(8 / 255, 1), "0.03137254901960785"),
        (1e16, "1e+16"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (math.inf, "inf"),
    ],
)
def test_a_value_is_written_as_a_person_would(value: specs.Value, text: str) -> None:
    assert specs.value_text(value) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("adp", ["adp"]),
        ("advt-pgd+adp-2-0.5", ["advt-pgd", "adp-2-0.5"]),
        ("advt(eps=1e+2)+adp(alpha=+2)+x", ["advt(eps=1e+2)", "adp(alpha=+2)", "x"]),
        ("+adp", ["", "adp"]),
        ("", [""]),
    ],
)
def test_a_composition_is_split_outside_parentheses_only(text: str, parts: list[str]) -> None:
    assert specs.split(text) == parts


@given(st.lists(st.sampled_from(["adp", "adp(alpha=1e+3)", "advt-pgd", "x(a=+1,b=2)"]), min_size=1))
def test_splitting_undoes_joining(parts: list[str]) -> None:
    assert specs.split("+".join(parts)) == parts
