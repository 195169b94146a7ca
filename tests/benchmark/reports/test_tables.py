"""Tables say what was measured: bold only where it is earned, spread over seeds, warnings in words."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.checks import CHECKS
from benchmark.findings.crosscheck import summary
from benchmark.harness.tiers import Tier
from benchmark.reports import write_report
from benchmark.run.comparing import keep_record

MakeCell = Callable[..., Cell]
MakeStore = Callable[..., Store]
Report = Callable[..., Path]


def _task(text: str = "pgd(eps=0.1)", tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _right(right: int, count: int = 100, **columns: Any) -> dict[str, Any]:
    """The first so many images are right."""
    return {"correct": np.arange(count) < right, **columns}


@pytest.fixture
def defense(make_cell: MakeCell) -> Callable[..., Cell]:
    """PGD in tier strict on 100 images, by the defense."""

    def make(name: str = "one", task: WhiteBox | None = None, **others: Any) -> Cell:
        return make_cell(task or _task(), name, **{"samples": 100, "batch_size": 50, **others})

    return make


def _row(folder: Path, start: str = "| PGD") -> list[str]:
    (line,) = [line for line in (folder / "table.md").read_text().splitlines() if line.startswith(start)]
    return [part.strip() for part in line.strip("|").split("|")]


# --- bold: findings/test_layout.py has the rule ---


def test_the_best_is_bold_where_the_paired_difference_is_significant(
    defense: Callable[..., Cell], report: Report
) -> None:
    folder = report([(defense("one"), _right(50)), (defense("two"), _right(60))])
    assert _row(folder)[2:] == ["50.0", "**60.0**"], "10 images against 0: p = 0.002"
    assert "\\textbf{60.0}" in (folder / "table.tex").read_text()


def test_a_lead_of_five_images_is_not_bold(defense: Callable[..., Cell], report: Report) -> None:
    folder = report([(defense("one"), _right(50)), (defense("two"), _right(55))])
    assert _row(folder)[2:] == ["50.0", "55.0"], "5 images against 0: p = 0.06"
    assert "textbf" not in (folder / "table.tex").read_text()


def test_nothing_is_bold_beside_a_defense_without_a_number(defense: Callable[..., Cell], report: Report) -> None:
    folder = report([(defense("one"), _right(20)), (defense("two"), _right(60))], [defense("three")])
    assert _row(folder)[2:] == ["20.0", "60.0", "–"], "nobody knows how the third would do"


def test_a_lead_over_a_number_that_was_not_measured_alike_is_not_bold_and_flagged(
    defense: Callable[..., Cell], report: Report
) -> None:
    folder = report([(defense("one"), _right(20)), (defense("two", batch_size=25), _right(60))])
    assert _row(folder)[2:] == ["20.0", "60.0†"]


def test_seeds_are_not_more_images(defense: Callable[..., Cell], report: Report) -> None:
    """Five images against none, five times over: the same images, so no more evidence than once."""
    cells = [(defense(n, seed=s), _right(right)) for s in range(5) for n, right in (("one", 50), ("two", 55))]
    folder = report(cells)
    assert _row(folder)[2:] == ["50.0 ± 0.0", "55.0 ± 0.0"]
    assert "±: standard deviation over seeds" in (folder / "table.md").read_text()
    cells = [(defense(n, seed=s), _right(right)) for s in range(2) for n, right in (("one", 50), ("two", 60))]
    assert _row(report(cells))[2:] == ["50.0 ± 0.0", "**60.0 ± 0.0**"], "ten images, for each seed"


# --- flags ---


def test_a_number_that_a_check_speaks_against_is_marked_in_both_tables(
    defense: Callable[..., Cell], report: Report
) -> None:
    folder = report([(defense("one"), _right(20)), (defense("two"), _right(60, unmoved=True))])
    assert _row(folder)[2:] == ["20.0", "**60.0**†"]
    assert "†: a check warns about this number" in (folder / "table.md").read_text()
    latex = (folder / "table.tex").read_text()
    assert "\\textbf{60.0}$^{\\dagger}$" in latex and "$^{\\dagger}$: a check warns" in latex
    assert "% Test images of digits: PGD 100." in latex
    assert "% Warning unmoved, digits $\\cdot$ two $\\cdot$ PGD, $\\varepsilon$=0.1 $\\cdot$ strict" in latex


def test_what_other_attacks_say_against_a_number_is_in_its_row_and_below_the_table(
    defense: Callable[..., Cell], report: Report
) -> None:
    folder = report([(defense(task=_task("fgsm(eps=0.1)")), _right(40)), (defense(), _right(80))])
    words = "accuracy 40.0 % under FGSM, ε=0.1, but 80.0 % under PGD, ε=0.1, on the same 100 images"
    flags = pd.read_csv(folder / "table.csv", keep_default_na=False).set_index("attack")["flags"]
    assert flags.to_dict() == {"fgsm": "", "pgd": f"single-step-wins: {words}"}
    (note,) = [line for line in (folder / "table.md").read_text().splitlines() if line.startswith("- Warning")]
    assert words in note and CHECKS["single-step-wins"].advice in note
    assert "digits · one · PGD, ε=0.1 · strict" in note


def test_a_table_without_flags_says_how_much_was_checked(defense: Callable[..., Cell], report: Report) -> None:
    folder = report([(defense(), _right(50))])
    assert re.search(r"- Checks: no warnings from \d checks on 1 cell", (folder / "table.md").read_text())


# --- layout ---


def test_seeds_become_mean_and_spread(defense: Callable[..., Cell], report: Report) -> None:
    folder = report([(defense(seed=seed), _right(right)) for seed, right in enumerate((40, 50, 60))])
    assert _row(folder)[2] == "50.0 ± 10.0"
    assert "50.0 $\\pm$ 10.0" in (folder / "table.tex").read_text()
    assert len(pd.read_csv(folder / "table.csv")) == 3


def test_the_published_number_stands_beside_ours(defense: Callable[..., Cell], report: Report) -> None:
    paper = _task(tier="paper")
    folder = report([(defense("one", paper, published=23.4), _right(50)), (defense("two", paper), _right(50))])
    assert _row(folder)[2:] == ["50.0 (23.4)", "50.0"]


def test_the_published_number_stands_beside_tier_paper_alone(defense: Callable[..., Cell], report: Report) -> None:
    """It was measured as the authors attacked, so it says nothing about the other tiers."""
    tasks = (_task(tier="paper"), _task())
    folder = report([(defense("one", task, published=23.4), _right(50)) for task in tasks])
    assert "50.0 (23.4)" not in (folder / "table.md").read_text().partition("tier strict")[2]
    assert (folder / "table.tex").read_text().count("(23.4)") == 1
    table = pd.read_csv(folder / "table.csv").set_index("tier")
    assert table.loc["paper", ["published", "difference"]].tolist() == [23.4, 26.6]
    assert table.loc["strict", ["published", "difference"]].isna().all()


def test_tiers_are_shown_and_their_difference_is_a_finding(defense: Callable[..., Cell], report: Report) -> None:
    folder = report([(defense(task=_task(tier="paper")), _right(60)), (defense(), _right(52))])
    text = (folder / "table.md").read_text()
    assert "tier paper" in text and "tier strict" in text
    assert "tier paper minus tier strict" in text and "| +8.0 |" in text


def test_tiers_on_different_images_are_not_subtracted_and_the_numbers_of_images_are_said(
    defense: Callable[..., Cell], report: Report
) -> None:
    pairs = [
        (defense(task=_task(tier="paper")), _right(50)),
        (defense(samples=50), _right(20, 50)),
        (defense(task=_task("pgd(eps=0.2)", "paper")), _right(30)),
        (defense(task=_task("pgd(eps=0.2)")), _right(20)),
    ]
    text = (report(pairs) / "table.md").read_text()
    difference = text.split("tier paper minus tier strict")[1]
    assert "| PGD | ε=0.2 | +10.0 |" in difference and "| PGD | ε=0.1 |" not in difference
    assert "Test images of digits: PGD 50 to 100 (each row's number is in table.csv)." in text


def test_a_run_without_rows_says_where_to_look(report: Report) -> None:
    text = (report([]) / "table.md").read_text()
    assert "figures/" in text and "Checks" not in text


def test_tiers_of_different_seeds_are_not_subtracted(defense: Callable[..., Cell], report: Report) -> None:
    pairs = [(defense(task=_task(tier="paper")), _right(50)), (defense(seed=1, weights="w"), _right(40))]
    assert "tier paper minus" not in (report(pairs) / "table.md").read_text()


def test_a_cell_that_failed_or_did_not_run_is_a_row_with_the_reason(
    defense: Callable[..., Cell], report: Report
) -> None:
    one, two = defense("one"), defense("two")
    store = Store(report([], [one, two]))
    store.write_failure(one, "ValueError: because")
    write_report(store)
    table = pd.read_csv(store.folder / "table.csv")
    assert table["flags"].tolist() == ["failed: ValueError: because", "not run yet"]
    assert table["accuracy"].isna().all() and _row(store.folder)[2:] == ["–", "–"]


def test_a_surrogate_is_named_in_words_below_the_table(make_cell: MakeCell, report: Report) -> None:
    known, unknown = (make_cell(BlackBox(_task(text).named, text * 8)) for text in ("pgd(eps=0.1)", "pgd(eps=0.2)"))
    folder = report([(known, {}), (unknown, {})], surrogates={known.task.surrogate: "baseline of seed 7"})
    text = (folder / "table.md").read_text()
    assert "- Black-box images were made on baseline of seed 7." in text
    assert f"- Black-box images were made on {unknown.task.surrogate}." in text


def test_latex_is_balanced_booktabs_with_as_many_columns_everywhere(
    defense: Callable[..., Cell], report: Report
) -> None:
    names = ("baseline", "my_defense#1 {50%}", "a&b^2~$x$\\y")
    cells = [(defense(name, _task(tier=tier)), _right(50)) for name in names for tier in ("paper", "strict")]
    text = (report(cells, title="A title & 100 % of it") / "table.tex").read_text()
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") >= 1
    assert all(text.count(rule) >= 1 for rule in ("\\toprule", "\\midrule", "\\bottomrule")) and "\\hline" not in text
    bare = re.sub(r"\\[{}&%#_$]", "", text)
    assert bare.count("{") == bare.count("}")
    rows = [line for line in bare.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert {line.count("&") for line in rows} == {4}
    inside = "\n".join(line for line in bare.splitlines() if not line.startswith("%"))
    inside = inside.replace("$^{\\dagger}$", "")
    assert not re.search(r"[#^~]|(?<!\\)%", inside.replace("\\textasciicircum", "").replace("\\textasciitilde", ""))
    assert "A title \\& 100 \\% of it" in text


def test_the_caption_says_images_seeds_and_what_the_signs_mean(defense: Callable[..., Cell], report: Report) -> None:
    cells = [(defense(n, seed=s), _right(right)) for s in range(2) for n, right in (("one", 50), ("two", 60))]
    text = (report(cells, preset="mine", title="Two seeds on digits") / "table.tex").read_text()
    caption = next(line for line in text.splitlines() if line.startswith("\\caption"))
    assert "Two seeds on digits: accuracy (\\%), 100 test images, seeds 0 and 1." in caption
    assert "$\\pm$: standard deviation over seeds." in caption and "Bold: " in caption and "published" not in caption
    assert "\\label{tab:mine-digits}" in text


@pytest.mark.slow
def test_latex_compiles_as_it_is_with_booktabs(
    defense: Callable[..., Cell], make_cell: MakeCell, report: Report, tmp_path: Path
) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-base, texlive-latex-recommended)")
    names = ("baseline", "adp-2-0.5", "label-smoothing-0.6", "my_defense#1 {50%}", "a&b^2~$x$\\y", "[2pt] *")
    tasks = [_task(tier="paper"), _task(), _task("pgd@native(eps=0.1,steps=50,step_size=0.02,restarts=5)")]
    tasks += [_task("cw(c=1)"), _task("jsma(gamma=0.3,eps=0.2)")]
    cells = [
        (defense(name, task, published=12.3, seed=seed), _right(40 + 10 * seed, unmoved=name == "baseline"))
        for name in names
        for task in tasks
        for seed in (0, 1)
    ]
    folder = report(cells, title="A title & 100 % of it_")
    lines = ["\\documentclass{article}", "\\usepackage{booktabs}", "\\begin{document}", "\\input{table}"]
    lines += ["Table \\ref{tab:demo-digits}.", "\\end{document}"]
    (folder / "paper.tex").write_text("\n".join(lines))
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):  # the second time, the label is known
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout and (folder / "paper.pdf").stat().st_size > 10_000


def test_the_same_cells_give_the_same_bytes(defense: Callable[..., Cell], report: Report) -> None:
    cells = [(defense("one", published=1.0), _right(50)), (defense("two"), _right(60, unmoved=True))]
    names = ("table.csv", "table.md", "table.tex")
    folder = report(cells)
    first = {name: (folder / name).read_bytes() for name in names}
    shutil.rmtree(folder)
    assert {name: (report(cells) / name).read_bytes() for name in names} == first


# --- beside the tables ---


def test_a_comparison_is_written_with_what_speaks_against_its_numbers(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    stuck = {"unmoved": True, "zero_gradient": True}
    tasks = [_task("fgsm(eps=0.1)"), _task("pgd(eps=0.1)")]
    finished = [(make_cell(task, "ours"), stuck) for task in tasks]
    store = make_store([*finished, *((make_cell(task, "theirs"), _right(20, 50)) for task in tasks)])
    write_report(store)
    assert not (store.folder / "comparison.md").exists(), "nobody asked"
    keep_record(store, "ours", ["theirs"], ["ours: trained in 3 s"])
    write_report(store)
    table = pd.read_csv(store.folder / "comparison.csv", keep_default_na=False)
    assert table["candidate_flags"].tolist() == ["unmoved, zero-gradient"] * 2
    assert table["reference_flags"].tolist() == ["", ""]
    text = (store.folder / "comparison.md").read_text(encoding="utf-8")
    assert text.startswith("# ours against theirs\n") and "- ours: trained in 3 s\n" in text
    assert "Warnings concern ours's number in 2 of 2 (unmoved, zero-gradient)." in text
    assert "| ours: unmoved, zero-gradient |" in text


def test_libraries_are_compared_in_files_of_their_own_where_there_are_several(
    make_cell: MakeCell, report: Report
) -> None:
    cells = [(make_cell(_task(text)), _right(20, 50)) for text in ("pgd(eps=0.1)", "pgd@art(eps=0.1)")]
    folder = report(cells)
    files = folder / "crosscheck.csv", folder / "crosscheck.md"
    table = pd.read_csv(files[0])
    text = files[1].read_text(encoding="utf-8")
    assert summary(table) in text
    assert all(f"| {verdict} |" in text for verdict in table["verdict"])
    assert report(cells[:1]) == folder
    assert not any(path.exists() for path in files), "one library is no cross-check"
