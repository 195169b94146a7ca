"""``adp-bench compare`` finds a difference where there is one, none where there is none, and claims no more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.cells.cell import Cell
from benchmark.cli import run
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.comparison import clean_note, compare, comparison_of, verdict
from benchmark.findings.results import Results
from benchmark.findings.statistics import holm, mcnemar
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]

pytestmark = pytest.mark.usefixtures("here")


# --- the command ---

ATTACKS = ["--attack", "pgd(eps=0.1)", "--attack", "mim(eps=0.1)", "--tier", "strict", "--samples", "200"]


def test_two_copies_of_an_ensemble_do_not_differ(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(checkpoint, here / "copy")
    assert run(["compare", str(checkpoint), "--against", str(copy), "--dataset", "digits", *ATTACKS, "--out", "a"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("No significant difference between small and copy in the 2 attack settings")
    assert "not evidence that they are equal" in output and output.endswith("a/comparison.md\n")
    table = pd.read_csv(here / "a" / "comparison.csv")
    assert (table["difference"] == 0).all() and (table["p_holm"] == 1).all()
    assert ((table["ci_low"] < 0) & (table["ci_high"] > 0)).all(), "an interval, not a point"
    assert set(table["attack"]) == {"none", "pgd", "mim"} and (table["samples"] == 200).all()


def test_adversarial_training_differs_from_a_baseline_and_the_report_says_so_again(
    checkpoint: Path, robust_checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(checkpoint), "--against", str(robust_checkpoint), "--preset", "demo", *ATTACKS]
    assert run([*arguments, "--out", "a"]) == 0
    output = capfd.readouterr().out
    assert re.match(
        r"small is significantly behind robust in 2 of 2 attack settings \(by [\d.]+( to [\d.]+)? points", output
    )
    assert "not for stronger attacks" in output
    names = ("comparison.csv", "comparison.md")
    before = {name: (here / "a" / name).read_bytes() for name in names}
    text = before["comparison.md"].decode()
    assert output.splitlines()[0] in text and "Clean accuracy" in text
    for label in ("small", "robust"):
        assert re.search(rf"- {label}: .*trained in .*[\d.]+ ms per image here", text)
    page = (here / "a" / "report.html").read_text(encoding="utf-8")
    assert output.splitlines()[0].replace("'", "&#39;") in page and "ahead of every other defense, each" not in page
    for name in names:
        (here / "a" / name).unlink()
    assert run(["report", "a"]) == 0
    assert {name: (here / "a" / name).read_bytes() for name in names} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "baseline"], "baseline cannot be compared with itself"),
        (["--dataset", "digits", "--preset", "demo"], "one of them"),
        (["--dataset", "digts"], "unknown dataset 'digts'; did you mean digits?"),
        (["--dataset", "fashion-mnist"], "no preset compares on 'fashion-mnist'; known: cifar10, cifar100, digits, m"),
        (["--preset", "dmeo"], "did you mean demo"),
        (["--dataset", "digits", "--attack", "pdg(eps=0.1)"], "did you mean pgd"),
        (["--dataset", "digits", "--tier", "weak"], "unknown tier 'weak'"),
        (["--dataset", "digits", "--samples", "0"], "samples is '0'"),
        (["--dataset", "digits", "--seed", "-1"], "seed is -1"),
        (["--dataset", "digits", "--against", "basline"], "did you mean baseline"),
        (["--against", "adp-2-0", "--against", "jsd(lambda=1)"], "one reference"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    against = [] if arguments.count("--against") == 1 else ["--against", "adp-2-0.5"]
    assert run(["compare", "baseline", *against, *arguments]) == 2
    output = capfd.readouterr()
    assert output.out == "" and message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"
    assert not (here / "results").exists()


# --- the numbers ---


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _right(count: int, size: int = 50) -> dict[str, Any]:
    return {"correct": np.arange(size) < count}


def test_holm_corrects_over_the_attacks_and_leaves_clean_accuracy_alone(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    right = {"fgsm(eps=0.1)": (40, 30), "pgd(eps=0.1)": (30, 23), "mim(eps=0.1)": (20, 14), "cw(c=1)": (10, 10)}
    finished = []
    for position, name in enumerate(("ours", "theirs")):
        finished.append((make_cell(Clean(), name), _right((50, 44)[position])))
        finished += [(make_cell(_task(text), name), _right(counts[position])) for text, counts in right.items()]
    results = make_results(finished)
    table = compare(results, "ours", "theirs").set_index("attack")
    attacks = ["fgsm", "pgd", "mim", "cw"]
    raw = [mcnemar(_right(one)["correct"], _right(other)["correct"]) for one, other in right.values()]
    assert table.loc[attacks, "p"].tolist() == raw
    assert table.loc[attacks, "p_holm"].tolist() == holm(raw)
    assert holm(raw)[2] > 0.05 > raw[2], "the correction matters here"
    assert table.loc["none", "p_holm"] == table.loc["none", "p"] == 0.03125
    assert table["difference"].tolist() == [12, 20, 14, 12, 0]
    reverse = compare(results, "theirs", "ours").set_index("attack")
    assert reverse["difference"].tolist() == [-value for value in table["difference"]]
    assert reverse["ci_low"].tolist() == pytest.approx([-value for value in table["ci_high"]])
    sentence = verdict(table.reset_index(), "ours", "theirs")
    assert sentence.startswith(
        "ours is significantly ahead of theirs in 2 of 4 attack settings (by 14.0 to 20.0 points)"
    )
    assert clean_note(table.reset_index()).startswith("Clean accuracy 100.0 % against 88.0 % on 50 images: it differs")


def test_only_answers_to_the_same_question_are_compared(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = _task("pgd(eps=0.1)")
    others = [_task("pgd(eps=0.2)"), _task("pgd(eps=0.1)", "paper"), _task("pgd@art(eps=0.1)")]
    cells = [make_cell(pgd, "ours"), *(make_cell(task, "theirs") for task in others), make_cell(pgd, "theirs", seed=1)]
    results = make_results([(cell, _right(20)) for cell in cells])
    table = compare(results, "ours", "theirs")
    assert table.empty
    assert "nothing can be said" in verdict(table, "ours", "theirs") and clean_note(table) == ""
    assert comparison_of(results) is None, "nobody asked"
    asked = replace(results, compared={"candidate": "ours", "reference": "theirs", "costs": []})
    assert (found := comparison_of(asked)) and "nothing can be said" in found.sentence


def test_an_attack_in_another_norm_is_another_question(
    make_cell: MakeCell, make_results: MakeResults, l2_attack: Callable[..., NamedAttack]
) -> None:
    linf = replace(parse_attack("pgd@native(eps=0.5)"), version="1")
    l2 = l2_attack(0.5, name="pgd")
    cells = [make_cell(WhiteBox(named, "strict"), name) for named, name in ((linf, "ours"), (l2, "theirs"))]
    assert compare(make_results([(cell, _right(20)) for cell in cells]), "ours", "theirs").empty


def _table(rows: list[tuple[float, float]]) -> pd.DataFrame:
    usual = {"attack": "pgd", "tier": "strict", "seed": 0, "candidate_flags": "", "reference_flags": ""}
    return pd.DataFrame([{**usual, "difference": difference, "p_holm": p} for difference, p in rows])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(5, 0.2)], "No significant difference between a and b in the 1 attack setting that was run (McNemar"),
        ([(5, 0.01)], "a is significantly ahead of b in 1 of 1 attack setting (by 5.0 points), McNemar"),
        ([(5, 0.01), (2, 0.04), (9, 0.5)], "a is significantly ahead of b in 2 of 3 attack settings (by 2.0 to 5.0 p"),
        ([(-5, 0.01), (2, 0.2)], "a is significantly behind b in 1 of 2 attack settings (by 5.0 points), McNemar"),
        (
            [(-5, 0.01), (2, 0.02)],
            "a is significantly ahead of b in 1 of 2 attack settings (by 2.0 points) and significantly behind b in 1 ",
        ),
    ],
)
def test_the_verdict_says_what_the_tests_say(rows: list[tuple[float, float]], sentence: str) -> None:
    words = verdict(_table(rows), "a", "b")
    assert words.startswith(sentence)
    assert words.endswith(".") and "\n" not in words


def test_a_lead_that_a_check_speaks_against_is_not_told_without_it(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    stuck = {**_right(50), "unmoved": True, "zero_gradient": True}
    tasks = [_task("fgsm(eps=0.1)"), _task("pgd(eps=0.1)")]
    results = make_results(
        [
            *((make_cell(task, "ours"), stuck) for task in tasks),
            *((make_cell(task, "theirs"), _right(20)) for task in tasks),
        ]
    )
    found = comparison_of(replace(results, compared={"candidate": "ours", "reference": "theirs", "costs": []}))
    assert found is not None
    assert "ahead of theirs in 2 of 2" in found.sentence
    assert found.sentence.endswith("Read with care: in 2 of 2, ours's number is flagged (unmoved, zero-gradient).")
    assert found.table["candidate_flags"].tolist() == ["unmoved, zero-gradient"] * 2
    assert found.table["reference_flags"].tolist() == ["", ""]


def test_seeds_are_told_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = _task("pgd(eps=0.1)")
    cells = [make_cell(pgd, name, seed=seed) for name in ("ours", "theirs") for seed in (0, 1)]
    table = compare(make_results([(cell, _right(20)) for cell in cells]), "ours", "theirs")
    assert table["seed"].tolist() == [0, 1]
    assert "in the 2 pairs of attack setting and seed that were run" in verdict(table, "ours", "theirs")
