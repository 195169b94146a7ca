"""``adp-bench compare`` finds a difference where there is one, none where there is none, and claims no more."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.cells.cell import Cell
from benchmark.cli import run
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.comparison import clean_note, compare, comparison_of, over_seeds, verdict
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
    assert "stronger attacks" in output
    names = ("comparison.csv", "comparison.md")
    before = {name: (here / "a" / name).read_bytes() for name in names}
    text = before["comparison.md"].decode()
    assert output.splitlines()[0] in text and "Clean accuracy" in text
    for label in ("small", "robust"):
        assert re.search(rf"- {label}: .*trained in .*[\d.]+ ms per image here", text)
    page = (here / "a" / "report.html").read_text(encoding="utf-8")
    assert output.splitlines()[0].replace("'", "&#39;") in page and "ahead of every other defense, each" not in page
    differences = page[page.index('<h2 id="differences"') : page.index('<h2 id="tiers"')]
    found = pd.read_csv(here / "a" / "comparison.csv")
    for value in found.loc[found["attack"] != "none", "difference"]:
        assert f"<b>{value:+.1f}</b>".replace("-", "−") in differences, "significant, so it is bold"
    assert differences.count("<tr>") == 1 + 2 + 1, "a heading, two attacks, clean accuracy of the ensemble alone"
    for name in names:
        (here / "a" / name).unlink()
    assert run(["report", "a"]) == 0
    assert {name: (here / "a" / name).read_bytes() for name in names} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "baseline"], "baseline cannot be compared with itself"),
        (["--dataset", "digits", "--preset", "demo"], "not both"),
        (["--dataset", "digts"], "unknown dataset 'digts'; did you mean digits?"),
        (["--dataset", "fashion-mnist"], "no preset compares on 'fashion-mnist'; known: cifar10, cifar100, digits, m"),
        (["--preset", "dmeo"], "did you mean demo"),
        (["--dataset", "digits", "--attack", "pdg(eps=0.1)"], "did you mean pgd"),
        (["--dataset", "digits", "--tier", "weak"], "unknown tier 'weak'"),
        (["--dataset", "digits", "--samples", "0"], "samples is '0'"),
        (["--dataset", "digits", "--seed", "-1"], "seed is -1"),
        (["--dataset", "digits", "--against", "basline"], "did you mean baseline"),
        (["--against", "adp-2-0", "--against", "adp(alpha=2,beta=0)"], "itself"),
        (["--against", "A=adp-2-0", "--against", "A=jsd(lambda=1)"], "'A'"),
        (["--dataset", "digits", "--seeds", "0,x"], "seeds is '0,x'"),
        (["--dataset", "digits", "--network", "resnt20"], "did you mean resnet20"),
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
    by_seed = table.reset_index()
    sentence = verdict(by_seed, over_seeds(by_seed), "ours", "theirs")
    assert sentence.startswith(
        "ours is significantly ahead of theirs in 2 of 4 attack settings (by 14.0 to 20.0 points)"
    )
    assert clean_note(by_seed, over_seeds(by_seed)).startswith(
        "Clean accuracy 100.0 % against 88.0 % on 50 images: it differs"
    )


def test_only_answers_to_the_same_question_are_compared(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = _task("pgd(eps=0.1)")
    others = [_task("pgd(eps=0.2)"), _task("pgd(eps=0.1)", "paper"), _task("pgd@art(eps=0.1)")]
    cells = [make_cell(pgd, "ours"), *(make_cell(task, "theirs") for task in others), make_cell(pgd, "theirs", seed=1)]
    results = make_results([(cell, _right(20)) for cell in cells])
    table = compare(results, "ours", "theirs")
    assert table.empty
    seeds = over_seeds(table)
    assert "nothing can be said" in verdict(table, seeds, "ours", "theirs") and clean_note(table, seeds) == ""
    assert comparison_of(results) is None, "nobody asked"
    asked = replace(results, compared={"candidate": "ours", "references": ["theirs"], "costs": []})
    assert (found := comparison_of(asked)) and "nothing can be said" in found.sentences[0]


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
    words = verdict(_table(rows), over_seeds(compare(Results((), {}), "a", "b")), "a", "b")
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
    found = comparison_of(replace(results, compared={"candidate": "ours", "references": ["theirs"], "costs": []}))
    assert found is not None
    (sentence,) = found.sentences
    assert "ahead of theirs in 2 of 2" in sentence
    assert sentence.endswith("Warnings concern ours's number in 2 of 2 (unmoved, zero-gradient).")
    assert found.table["candidate_flags"].tolist() == ["unmoved, zero-gradient"] * 2
    assert found.table["reference_flags"].tolist() == ["", ""]


def test_seeds_are_told_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = _task("pgd(eps=0.1)")
    cells = [make_cell(pgd, name, seed=seed) for name in ("ours", "theirs") for seed in (0, 1)]
    table = compare(make_results([(cell, _right(20)) for cell in cells]), "ours", "theirs")
    assert table["seed"].tolist() == [0, 1]
    assert over_seeds(table).empty, "neither was trained anew"
    assert "in the 2 pairs of attack setting and seed that were run" in verdict(
        table, over_seeds(table), "ours", "theirs"
    )


# --- several references ---


def _weighted(right: dict[str, dict[str, list[int]]], make_cell: MakeCell) -> list[tuple[Cell, dict[str, Any]]]:
    """Cells by defense and attack, a number of right images for each seed; each seed has weights of its own."""
    return [
        (make_cell(_task(attack), defense, seed=seed, weights=f"{seed} of {defense}"), _right(count))
        for defense, attacks in right.items()
        for attack, counts in attacks.items()
        for seed, count in enumerate(counts)
    ]


def test_holm_corrects_over_the_attacks_of_every_reference(make_cell: MakeCell, make_results: MakeResults) -> None:
    right = {
        "ours": {"fgsm(eps=0.1)": [40], "pgd(eps=0.1)": [30]},
        "one": {"fgsm(eps=0.1)": [30], "pgd(eps=0.1)": [24]},
        "two": {"fgsm(eps=0.1)": [40], "pgd(eps=0.1)": [22]},
    }
    results = make_results(_weighted(right, make_cell))
    found = comparison_of(replace(results, compared={"candidate": "ours", "references": ["one", "two"], "costs": []}))
    assert found is not None and found.seeds.empty
    pairs = [(40, 30), (30, 24), (40, 40), (30, 22)]
    raw = [mcnemar(_right(one)["correct"], _right(other)["correct"]) for one, other in pairs]
    assert found.table["p"].tolist() == raw and found.table["p_holm"].tolist() == holm(raw)
    alone = compare(results, "ours", "one")
    assert alone["p_holm"].iloc[1] < 0.05 < found.table["p_holm"].iloc[1], "one reference alone asks for less"
    assert [len(found.against(name)[0]) for name in found.references] == [2, 2]
    first, second = found.sentences
    assert first.startswith("ours is significantly ahead of one in 1 of 2 attack settings (by 20.0 points)")
    assert second.startswith("ours is significantly ahead of two in 1 of 2 attack settings (by 16.0 points)")


def test_two_references_are_two_tables_and_two_sentences(
    checkpoint: Path, robust_checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(checkpoint, here / "copy")
    against = ["--against", f"Theirs={robust_checkpoint}", "--against", str(copy)]
    command = ["compare", f"Ours={checkpoint}", *against, "--dataset", "digits", *ATTACKS, "--out", "a"]
    assert run(command) == 0
    output = capfd.readouterr().out.splitlines()
    assert output[0].startswith("Ours is significantly behind Theirs in 2 of 2 attack settings")
    assert output[1].startswith("No significant difference between Ours and copy in the 2 attack settings")
    text = (here / "a" / "comparison.md").read_text()
    assert text.startswith("# Ours against Theirs and copy\n") and text.count("| attack | parameters |") == 2
    assert "## Ours against Theirs" in text and "## Ours against copy" in text
    table = pd.read_csv(here / "a" / "comparison.csv")
    assert list(table["against"].unique()) == ["Theirs", "copy"]
    attacked = table[table["tier"] != "clean"]
    assert attacked["p_holm"].tolist() == pytest.approx(holm(attacked["p"].tolist())) and len(attacked) == 4
    before = (here / "a" / "comparison.md").read_bytes()
    assert run(["report", "a"]) == 0 and (here / "a" / "comparison.md").read_bytes() == before
    page = (here / "a" / "report.html").read_text()
    assert all(sentence.replace("'", "&#39;") in page for sentence in output[:2])


def test_a_record_of_the_first_version_names_one_reference(
    checkpoint: Path, robust_checkpoint: Path, here: Path
) -> None:
    arguments = ["--against", str(robust_checkpoint), "--dataset", "digits", *ATTACKS[:2], *ATTACKS[4:], "--out", "a"]
    assert run(["compare", str(checkpoint), *arguments]) == 0
    before = (here / "a" / "comparison.md").read_bytes()
    record = json.loads((here / "a" / "comparison.json").read_text())
    (reference,) = record.pop("references")
    (here / "a" / "comparison.json").write_text(json.dumps({**record, "reference": reference}))
    assert run(["report", "a"]) == 0 and (here / "a" / "comparison.md").read_bytes() == before


# --- several seeds ---


def test_over_training_seeds_the_test_is_over_the_differences_of_the_seeds(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    right = {
        "ours": {"fgsm(eps=0.1)": [41, 40, 42], "pgd(eps=0.1)": [30, 20, 25]},
        "theirs": {"fgsm(eps=0.1)": [20, 20, 21], "pgd(eps=0.1)": [20, 25, 15]},
    }
    results = make_results(_weighted(right, make_cell))
    table = compare(results, "ours", "theirs")
    seeds = over_seeds(table).set_index("attack")
    for attack, name in (("fgsm(eps=0.1)", "fgsm"), ("pgd(eps=0.1)", "pgd")):
        one, other = (2 * np.array(right[side][attack]) for side in ("ours", "theirs"))  # 50 images: percent
        expected = stats.ttest_rel(one, other)
        low, high = expected.confidence_interval(0.95)
        row = seeds.loc[name]
        assert row["p"] == pytest.approx(expected.pvalue)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((low, high), abs=1e-4)
        assert (row["candidate"], row["candidate_sd"]) == pytest.approx((one.mean(), one.std(ddof=1)), abs=1e-4)
        assert (row["difference"], row["difference_sd"]) == pytest.approx(
            ((one - other).mean(), (one - other).std(ddof=1)), abs=1e-4
        )
    assert seeds["p_holm"].tolist() == pytest.approx(holm(seeds["p"].tolist()))
    assert seeds["seeds_ahead"].tolist() == [3, 2] and seeds["seeds_behind"].tolist() == [0, 0]
    words = verdict(table, seeds.reset_index(), "ours", "theirs")
    assert words.startswith("ours is significantly ahead of theirs in 1 of 2 attack settings (by 41.3 points)")
    assert "t-test over 3 training seeds" in words and "2.5 times its standard deviation" in words
    assert "ours ahead in 1 of 2" in words


def test_differences_that_do_not_vary_over_seeds_are_not_significant(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    right = {"ours": {"pgd(eps=0.1)": [40, 40]}, "theirs": {"pgd(eps=0.1)": [20, 20]}}
    table = compare(make_results(_weighted(right, make_cell)), "ours", "theirs")
    seeds = over_seeds(table)
    assert seeds["p"].tolist() == [1.0] and seeds["ci_low"].isna().all()
    words = verdict(table, seeds, "ours", "theirs")
    assert words.startswith("No significant difference") and "ours ahead in 1 of 1" in words


def test_a_model_that_is_one_for_every_seed_is_named(make_cell: MakeCell, make_results: MakeResults) -> None:
    finished = _weighted({"ours": {"pgd(eps=0.1)": [40, 35, 30]}}, make_cell)
    finished += [(make_cell(_task("pgd(eps=0.1)"), "theirs", seed=seed), _right(20)) for seed in range(3)]
    table = compare(make_results(finished), "ours", "theirs")
    (row,) = over_seeds(table).to_dict("records")
    assert (row["candidate_trainings"], row["reference_trainings"]) == (3, 1)
    assert row["p"] == pytest.approx(stats.ttest_1samp([40, 30, 20], 0).pvalue)
    assert "theirs is one trained model for every seed" in verdict(table, over_seeds(table), "ours", "theirs")


def test_trained_for_several_seeds_defenses_are_compared_over_trainings(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ["--network", "mini-resnet(width=1)", "--members", "1", "--seeds", "0,1"]
    assert run(["train", "baseline", "--dataset", "digits", *small]) == 0
    trained = sorted(path.stat().st_mtime_ns for path in here.glob("results/ensembles/digits/*/*.safetensors"))
    assert len(trained) == 2
    command = ["compare", "Ours=label-smoothing-0.6", "--against", "baseline", "--dataset", "digits", *small]
    assert run([*command, *ATTACKS[:2], *ATTACKS[4:6], "--samples", "60", "--out", "a"]) == 0
    assert "over 2 training seeds" in capfd.readouterr().out
    after = sorted(path.stat().st_mtime_ns for path in here.glob("results/ensembles/digits/baseline*/*.safetensors"))
    assert after == trained, "found, not trained again"
    table = pd.read_csv(here / "a" / "comparison.csv")
    assert table["candidate_weights"].nunique() == table["reference_weights"].nunique() == 2
    seeds = pd.read_csv(here / "a" / "comparison_seeds.csv").set_index("attack")
    pgd = table[table["attack"] == "pgd"]
    assert seeds.loc["pgd", "difference"] == pytest.approx(pgd["difference"].mean(), abs=1e-3)
    spread = pd.read_csv(here / "a" / "seeds.csv").set_index(["defense", "attack"])
    assert spread.loc[("Ours", "pgd"), "standard_deviation"] == pytest.approx(pgd["candidate"].std(ddof=1), abs=1e-3)
    assert (spread["trainings"] == 2).all()
    text = (here / "a" / "comparison.md").read_text()
    assert f"{pgd['candidate'].mean():.1f} ± {pgd['candidate'].std(ddof=1):.1f}" in text
    assert "and 2 training seeds" in text
