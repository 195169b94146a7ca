"""``adp-bench compare`` finds a difference where there is one, none where there is none, and claims no more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmark.comparison import clean_note, compare, comparison_of, keep_record, verdict, write_comparison
from benchmark.statistics import holm, mcnemar, paired_difference
from benchmark.store import Store
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cells import Cell
from benchmark.cli import run

MakeCell = Callable[..., Cell]
MakeStore = Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]
PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


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
        (["--dataset", "digts"], "no preset compares on 'digts'; did you mean digits"),
        (["--preset", "dmeo"], "did you mean demo"),
        (["--dataset", "digits", "--attack", "pdg(eps=0.1)"], "did you mean pgd"),
        (["--dataset", "digits", "--tier", "weak"], "unknown tier 'weak'"),
        (["--dataset", "digits", "--samples", "0"], "samples is '0'"),
        (["--dataset", "digits", "--seed", "-1"], "seed is -1"),
        (["--dataset", "digits", "--against", "basline"], "did you mean baseline"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "baseline", "--against", "adp-2-0.5", *arguments]) == 2
    output = capfd.readouterr()
    assert output.out == "" and message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"
    assert not (here / "results").exists()


# --- the numbers ---


def _right(count: int, size: int = 50) -> dict[str, Any]:
    return {"correct": np.arange(size) < count}


def test_holm_corrects_over_the_attacks_and_leaves_clean_accuracy_alone(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    right = {"fgsm": (40, 30), "pgd": (30, 23), "mim": (20, 14), "cw": (10, 10)}
    finished = []
    for position, name in enumerate(("ours", "theirs")):
        finished.append((make_cell("clean", name, settings={"classifier": "ensemble"}), _right((50, 44)[position])))
        finished += [
            (make_cell("whitebox", name, attack), _right(counts[position])) for attack, counts in right.items()
        ]
    store = make_store(finished)
    table = compare(store, "ours", "theirs").set_index("attack")
    raw = [mcnemar(_right(one)["correct"], _right(other)["correct"]) for one, other in right.values()]
    assert table.loc[list(right), "p"].tolist() == raw
    assert table.loc[list(right), "p_holm"].tolist() == holm(raw)
    assert holm(raw)[2] > 0.05 > raw[2], "the correction matters here"
    assert table.loc["none", "p_holm"] == table.loc["none", "p"] == 0.03125
    assert table["difference"].tolist() == [12, 20, 14, 12, 0]
    reverse = compare(store, "theirs", "ours").set_index("attack")
    assert reverse["difference"].tolist() == [-value for value in table["difference"]]
    assert reverse["ci_low"].tolist() == pytest.approx([-value for value in table["ci_high"]])
    sentence = verdict(table.reset_index(), "ours", "theirs")
    assert sentence.startswith(
        "ours is significantly ahead of theirs in 2 of 4 attack settings (by 14.0 to 20.0 points)"
    )
    assert clean_note(table.reset_index()).startswith("Clean accuracy 100.0 % against 88.0 % on 50 images: it differs")


def test_only_answers_to_the_same_question_are_compared(make_cell: MakeCell, make_store: MakeStore) -> None:
    ours = make_cell("whitebox", "ours", "pgd")
    others = [
        make_cell("whitebox", "theirs", "pgd", **change)
        for change in ({"settings": {"eps": 0.2}}, {"tier": "paper"}, {"seed": 1}, {"library": "art"})
    ]
    store = make_store([(cell, _right(20)) for cell in (ours, *others)])
    table = compare(store, "ours", "theirs")
    assert table.empty
    assert "nothing can be said" in verdict(table, "ours", "theirs") and clean_note(table) == ""
    keep_record(store, "ours", "theirs", [])
    assert (found := comparison_of(store)) and "nothing can be said" in found.sentence


def _table(rows: list[tuple[float, float]]) -> pd.DataFrame:
    usual = {"attack": "pgd", "seed": 0, "candidate_flags": "", "reference_flags": ""}
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


def test_a_lead_that_a_check_speaks_against_is_not_told_without_it(make_cell: MakeCell, make_store: MakeStore) -> None:
    stuck = {**_right(50), "unmoved": True, "zero_gradient": True}
    store = make_store(
        [
            *((make_cell("whitebox", "ours", attack), stuck) for attack in ("fgsm", "pgd")),
            *((make_cell("whitebox", "theirs", attack), _right(20)) for attack in ("fgsm", "pgd")),
        ]
    )
    keep_record(store, "ours", "theirs", [])
    write_comparison(store)
    found = comparison_of(store)
    assert found is not None
    sentence = found.sentence
    assert "ahead of theirs in 2 of 2" in sentence
    assert sentence.endswith("Read with care: in 2 of 2, ours's number is flagged (unmoved, zero-gradient).")
    table = pd.read_csv(store.folder / "comparison.csv", keep_default_na=False)
    assert table["candidate_flags"].tolist() == ["unmoved, zero-gradient"] * 2
    assert table["reference_flags"].tolist() == ["", ""]
    assert "| ours: unmoved, zero-gradient |" in (store.folder / "comparison.md").read_text(encoding="utf-8")


def test_seeds_are_told_apart(make_cell: MakeCell, make_store: MakeStore) -> None:
    cells = [make_cell("whitebox", name, "pgd", seed=seed) for name in ("ours", "theirs") for seed in (0, 1)]
    store = make_store([(cell, _right(20)) for cell in cells])
    table = compare(store, "ours", "theirs")
    assert table["seed"].tolist() == [0, 1]
    assert "in the 2 pairs of attack setting and seed that were run" in verdict(table, "ours", "theirs")


# --- the paired interval ---


@given(PAIRS)
def test_the_paired_interval_is_agresti_and_mins(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(values) for values in zip(*pairs, strict=True))
    difference, low, high = paired_difference(first, second)
    assert difference == pytest.approx(first.mean() - second.mean())
    n = len(pairs) + 2
    p12, p21 = (((first & ~second).sum() + 0.5) / n, ((~first & second).sum() + 0.5) / n)
    half = 1.959964 * np.sqrt((p12 + p21 - (p12 - p21) ** 2) / n)
    assert (low, high) == pytest.approx((max(p12 - p21 - half, -1), min(p12 - p21 + half, 1)), abs=1e-6)
    assert -1 <= low < high <= 1
    other = paired_difference(second, first)
    assert other == pytest.approx((-difference, -high, -low))


@pytest.mark.parametrize(("both", "only_first", "only_second"), [(0.6, 0.1, 0.1), (0.2, 0.3, 0.05), (0.9, 0.03, 0.01)])
def test_the_paired_interval_covers_the_truth(both: float, only_first: float, only_second: float) -> None:
    draws = np.random.default_rng(0)
    shares = [both, only_first, only_second, 1 - both - only_first - only_second]
    truth, hits = only_first - only_second, 0
    for counts in draws.multinomial(100, shares, size=800):
        outcomes = np.repeat([[True, True], [True, False], [False, True], [False, False]], counts, axis=0)
        _, low, high = paired_difference(outcomes[:, 0], outcomes[:, 1])
        hits += low <= truth <= high
    assert hits / 800 >= 0.935


def test_no_pair_says_nothing() -> None:
    assert paired_difference([], []) == (0.0, -1.0, 1.0)
