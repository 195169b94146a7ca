"""Names for readers: specs become the field's symbols, and labels that a user chose stay as they are."""

from __future__ import annotations

import pytest

from benchmark.attacks import ATTACKS
from benchmark.evaluations.detection import SCORES
from benchmark.findings import naming
from benchmark.reports import escaping
from defenses.catalogue import DEFENSES


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("adp-2-0.5", "ADP, α=2, β=0.5"),
        ("adp(alpha=1,beta=0.3,temperature=2)", "ADP, α=1, β=0.3, temperature=2"),
        ("label-smoothing-0.6", "label smoothing 0.6"),
        ("advt-pgd+adp-2-0.5", "AdvT (PGD) + ADP, α=2, β=0.5"),
        ("trs(lambda_a=3)", "TRS, λ_a=3"),
        ("Mine(weight=2)", "Mine, weight=2"),
        ("Ours", "Ours"),
        ("adp-2-0.5-resnet(depth=20)-k3", "adp-2-0.5-resnet(depth=20)-k3"),
        ("", ""),
        ("a + b", "a + b"),
        ("x(", "x("),
    ],
)
def test_a_defense_has_the_name_of_the_field_and_a_label_stays(label: str, name: str) -> None:
    assert naming.defense(label) == name


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (("fgsm", "eps=0.02"), "FGSM, ε=0.02"),
        (("pgd@art", "eps=8/255"), "PGD (art), ε=8/255"),
        (
            ("pgd", "eps=0.01,steps=50,step_size=0.2·eps,restarts=1"),
            "PGD, ε=0.01, 50 steps, step size 0.2·ε, 1 restart",
        ),
        (("pgd", "eps=0.5,norm=l2,loss=margin,targeted=true"), "PGD, ε=0.5, L2, margin loss, targeted"),
        (("cw", "c=0.1,abort_early=False"), "C&W, c=0.1, no abort early"),
        (("worst-case", "eps=0.1,suite=quick"), "worst case, ε=0.1, quick suite"),
        (("none", "classifier=net2"), "no attack, member 2"),
        (("torchattacks:DIFGSM", "anything at all, = x"), "torchattacks:DIFGSM, anything at all,  = x"),
    ],
)
def test_an_attack_has_its_parameters_as_symbols_and_words(spec: tuple[str, str], name: str) -> None:
    assert naming.attack(*spec) == name


def test_parameters_of_a_defense_stand_in_parentheses_inside_a_sentence() -> None:
    assert naming.inline("adp-2-0.5") == "ADP (α=2, β=0.5)"
    assert [naming.inline(label) for label in ("baseline", "Ours, the first", "weights.pt")] == [
        "baseline", "Ours, the first", "weights.pt",
    ]  # fmt: skip


def test_names_that_are_told_apart_by_specs_stay_apart() -> None:
    for kind, names in ((naming.defense, DEFENSES.names()), (naming.attack, ATTACKS.targets())):
        assert len({kind(name) for name in names}) == len(names)
    assert set(naming.SCORES) == set(SCORES)


def test_names_with_commas_are_listed_with_semicolons() -> None:
    assert naming.listed(["baseline", "GAL"]) == "baseline and GAL"
    assert naming.listed(["baseline", "ADP, α=2, β=0.5", "GAL"]) == "baseline; ADP, α=2, β=0.5; and GAL"
    assert naming.listed(["one"]) == "one" and naming.listed([]) == ""


def test_latex_has_symbols_for_every_letter_of_a_name() -> None:
    assert escaping.latex("ADP, α=2, β=0.5") == "ADP, $\\alpha$=2, $\\beta$=0.5"
    letters = "".join(naming.GREEK.values())
    assert escaping.latex(letters + "∞·–≤").isascii()
