"""Tables say what was measured: bold only where it is earned, spread over seeds, warnings in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmark.diagnostics import CHECKS
from benchmark.store import Store

from benchmark.cells import Cell
from benchmark.reports import write_report
from benchmark.reports.tables import COLUMNS, summarise

CELL = Cell(
    dataset="digits", data_checksum="d", defense="one", spec="one", members=3, network="mini-resnet",
    training="fast recipe", weights="one", attack="pgd", parameters="eps=0.1", library="torchattacks",
    library_version="3.5.1", settings={"eps": 0.1}, tier="strict", samples=100, seed=0, batch_size=50, device="cpu",
)  # fmt: skip


def _records(right: int, count: int = 100, shift: int = 0, **flags: int) -> pd.DataFrame:
    """So many right answers, beginning with image ``shift``; so many images with each flag."""
    correct = np.isin(np.arange(count), (np.arange(right) + shift) % count)
    frame = pd.DataFrame(
        {"index": range(count), "label": 1, "clean_prediction": 1, "attacked": True, "correct": correct}
    )
    for name in ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient"):
        frame[name] = np.arange(count) < flags.get(name, 0)
    return frame.assign(forwards=10.0, backwards=10.0, seconds=0.01, batch_size=50)


def _defense(name: str, **changes: object) -> Cell:
    return replace(CELL, defense=name, spec=name, weights=name, **changes)  # type: ignore[arg-type]


def _write(folder: Path, pairs: Sequence[tuple[Cell, pd.DataFrame | None]]) -> Path:
    store = Store(folder / "run")
    store.open("demo")
    manifest = {"preset": "demo", "title": "A title & 100 % of it", "commands": [], "cells": []}
    store.write_manifest({**manifest, "cells": [cell.asked() for cell, _ in pairs]})
    for cell, records in pairs:
        if records is not None:
            store.write(cell, records)
    write_report(store)
    return store.folder


def _row(folder: Path, start: str = "| pgd") -> list[str]:
    (line,) = [line for line in (folder / "table.md").read_text().splitlines() if line.startswith(start)]
    return [part.strip() for part in line.strip("|").split("|")]


# --- one row ---


def test_a_row_has_percentages_an_interval_and_the_published_number() -> None:
    row = summarise(replace(CELL, published=48.4), _records(50))
    assert tuple(row) == COLUMNS
    assert (row["accuracy"], row["clean_accuracy"], row["published"]) == (50.0, 100.0, 48.4)
    assert row["difference"] == pytest.approx(1.6)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((39.8321, 60.1679))
    assert (row["forwards"], row["seconds"], row["library"]) == (10.0, 1.0, "torchattacks 3.5.1")
    assert row["flags"] == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"unmoved": 100}, "unmoved: the attack moved 0 of the 100 images it should have"),
        ({"zero_gradient": 40}, "zero-gradient: the gradient vanished on 40 of 100 images"),
        ({"not_finite": 1}, "not-finite: 1 of 100 images are not finite and count as not fooled"),
        ({"out_of_ball": 2}, "out-of-ball: 2 of 100 images left the eps-ball and were projected back"),
        ({"out_of_box": 3}, "out-of-box: 3 of 100 images left [0, 1] and were clipped"),
    ],
)
def test_what_a_reader_must_know_is_said_in_words(flags: dict[str, int], words: str) -> None:
    assert summarise(CELL, _records(90, **flags))["flags"] == words


def test_images_that_were_not_to_be_attacked_do_not_count_as_unmoved() -> None:
    records = _records(0).assign(attacked=False, clean_prediction=0)
    assert summarise(CELL, records)["flags"] == ""


# --- bold ---


def test_the_best_is_bold_where_the_paired_difference_is_significant(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one"), _records(50)), (_defense("two"), _records(60))])
    assert _row(folder)[2:] == ["50.0", "**60.0**"], "10 images against 0: p = 0.002"
    assert "\\textbf{60.0}" in (folder / "table.tex").read_text()


def test_a_lead_of_five_images_is_not_bold(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one"), _records(50)), (_defense("two"), _records(55))])
    assert _row(folder)[2:] == ["50.0", "55.0"], "5 images against 0: p = 0.06"
    assert "textbf" not in (folder / "table.tex").read_text()


def test_the_same_lead_on_other_images_is_not_bold(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one"), _records(50)), (_defense("two"), _records(60, shift=45))])
    assert _row(folder)[2:] == ["50.0", "60.0"], "the pairs decide: 55 images against 45"


def test_the_best_must_lead_every_other_significantly(tmp_path: Path) -> None:
    cells = [(_defense("one"), _records(20)), (_defense("two"), _records(58)), (_defense("three"), _records(60))]
    assert _row(_write(tmp_path, cells))[2:] == ["20.0", "58.0", "60.0"]


def test_nothing_is_bold_without_a_rival_or_on_different_images(tmp_path: Path) -> None:
    alone = _write(tmp_path / "a", [(_defense("one"), _records(90))])
    assert _row(alone)[2:] == ["90.0"]
    cells = [(_defense("one", samples=100), _records(90)), (_defense("two", samples=50), _records(5, 50))]
    assert _row(_write(tmp_path / "b", cells))[2:] == ["90.0", "10.0"]


def test_seeds_are_paired_with_their_own(tmp_path: Path) -> None:
    """Each defense lacks another seed: as many images, but no pairs."""
    cells: list[tuple[Cell, pd.DataFrame | None]] = [
        (_defense("one", seed=0), _records(10)), (_defense("one", seed=1), None),
        (_defense("two", seed=0), None), (_defense("two", seed=1), _records(90)),
    ]  # fmt: skip
    assert _row(_write(tmp_path, cells))[2:] == ["10.0", "90.0"]


def test_nothing_is_bold_beside_a_defense_without_a_number(tmp_path: Path) -> None:
    cells = [(_defense("one"), _records(20)), (_defense("two"), _records(60)), (_defense("three"), None)]
    assert _row(_write(tmp_path, cells))[2:] == ["20.0", "60.0", "–"], "nobody knows how the third would do"


def test_a_lead_over_a_number_that_was_not_measured_alike_is_not_bold_and_flagged(tmp_path: Path) -> None:
    other = (_defense("two", batch_size=25), _records(60).assign(batch_size=25))
    assert _row(_write(tmp_path, [(_defense("one"), _records(20)), other]))[2:] == ["20.0", "60.0†"]


def test_seeds_are_not_more_images(tmp_path: Path) -> None:
    """Five images against none, five times over: the same images, so no more evidence than once."""
    cells = [(_defense(n, seed=s), _records(right)) for s in range(5) for n, right in (("one", 50), ("two", 55))]
    folder = _write(tmp_path / "a", cells)
    assert _row(folder)[2:] == ["50.0 ± 0.0", "55.0 ± 0.0"]
    assert "±: mean and standard deviation over seeds" in (folder / "table.md").read_text()
    cells = [(_defense(n, seed=s), _records(right)) for s in range(2) for n, right in (("one", 50), ("two", 60))]
    assert _row(_write(tmp_path / "b", cells))[2:] == ["50.0 ± 0.0", "**60.0 ± 0.0**"], "ten images, for each seed"


def test_seeds_may_differ_in_batch_size_where_rivals_do_not(tmp_path: Path) -> None:
    cells = [
        (_defense(name, seed=seed, batch_size=size), _records(right).assign(batch_size=size))
        for seed, size in ((0, 50), (1, 25))
        for name, right in (("one", 20), ("two", 90))
    ]
    assert _row(_write(tmp_path, cells))[2:] == ["20.0 ± 0.0", "**90.0 ± 0.0**"]


# --- flags ---


def test_a_number_that_a_check_speaks_against_is_marked_in_both_tables(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one"), _records(20)), (_defense("two"), _records(60, unmoved=100))])
    assert _row(folder)[2:] == ["20.0", "**60.0**†"]
    assert "†: a check speaks against the number" in (folder / "table.md").read_text()
    latex = (folder / "table.tex").read_text()
    assert "\\textbf{60.0}$^{\\dagger}$" in latex and "$^{\\dagger}$: a check speaks" in latex
    assert "% Images on digits: pgd 100." in latex and "% Flag unmoved, digits · two · pgd(eps=0.1) · strict" in latex


def test_what_other_attacks_say_against_a_number_is_in_its_row_and_below_the_table(tmp_path: Path) -> None:
    single = _defense("one", attack="fgsm")
    folder = _write(tmp_path, [(single, _records(40)), (_defense("one"), _records(80))])
    words = "fgsm(eps=0.1) leaves 40.0 % of 100 images right, pgd(eps=0.1) 80.0 %"
    flags = pd.read_csv(folder / "table.csv", keep_default_na=False).set_index("attack")["flags"]
    assert flags.to_dict() == {"fgsm": "", "pgd": f"single-step-wins: {words}"}
    (note,) = [line for line in (folder / "table.md").read_text().splitlines() if line.startswith("- Flag")]
    assert words in note and CHECKS["single-step-wins"].advice in note
    assert "digits · one · pgd(eps=0.1) · strict" in note


def test_a_table_without_flags_says_how_much_was_checked(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one"), _records(50))])
    assert re.search(r"- Checks: no flags: \d checks on 1 cells", (folder / "table.md").read_text())


# --- layout ---


def test_seeds_become_mean_and_spread(tmp_path: Path) -> None:
    cells = [(_defense("one", seed=seed), _records(right)) for seed, right in enumerate((40, 50, 60))]
    folder = _write(tmp_path, cells)
    assert _row(folder)[2] == "50.0 ± 10.0"
    assert "50.0 $\\pm$ 10.0" in (folder / "table.tex").read_text()
    assert len(pd.read_csv(folder / "table.csv")) == 3


def test_the_published_number_stands_beside_ours(tmp_path: Path) -> None:
    folder = _write(tmp_path, [(_defense("one", published=23.4), _records(50)), (_defense("two"), _records(50))])
    assert _row(folder)[2:] == ["50.0 (23.4)", "50.0"]


def test_tiers_are_shown_and_their_difference_is_a_finding(tmp_path: Path) -> None:
    cells = [(_defense("one", tier="paper"), _records(60)), (_defense("one"), _records(52))]
    text = (_write(tmp_path, cells) / "table.md").read_text()
    assert "tier paper" in text and "tier strict" in text
    assert "quirks" in text and "| +8.0 |" in text


def test_tiers_on_different_images_are_not_subtracted_and_the_numbers_of_images_are_said(tmp_path: Path) -> None:
    other = replace(CELL, parameters="eps=0.2", settings={"eps": 0.2})
    pairs = [
        (replace(CELL, tier="paper"), _records(50)),
        (replace(CELL, samples=50), _records(20, count=50)),
        (replace(other, tier="paper"), _records(30)),
        (other, _records(20)),
    ]
    text = (_write(tmp_path, pairs) / "table.md").read_text()
    difference = text.split("what the paper's quirks are worth")[1]
    assert "| pgd | eps=0.2 | +10.0 |" in difference and "| pgd | eps=0.1 |" not in difference
    assert "Images on digits: pgd 50 to 100 (each row's number is in table.csv)." in text


def test_a_run_without_rows_says_where_to_look(tmp_path: Path) -> None:
    text = (_write(tmp_path, []) / "table.md").read_text()
    assert "figures/" in text and "Checks" not in text


def test_tiers_of_different_seeds_are_not_subtracted(tmp_path: Path) -> None:
    pairs = [(replace(CELL, tier="paper"), _records(50)), (replace(CELL, seed=1, weights="w"), _records(40))]
    assert "quirks" not in (_write(tmp_path, pairs) / "table.md").read_text()


def test_a_cell_that_failed_or_did_not_run_is_a_row_with_the_reason(tmp_path: Path) -> None:
    one, two = _defense("one"), _defense("two")
    store = Store(_write(tmp_path, [(one, None), (two, None)]))
    store.write_failure(one, "ValueError: because")
    write_report(store)
    table = pd.read_csv(store.folder / "table.csv")
    assert table["flags"].tolist() == ["failed: ValueError: because", "not run yet"]
    assert table["accuracy"].isna().all() and _row(store.folder)[2:] == ["–", "–"]


def test_latex_is_balanced_booktabs_with_as_many_columns_everywhere(tmp_path: Path) -> None:
    names = ("baseline", "my_defense#1 {50%}", "a&b^2~$x$\\y")
    cells = [(_defense(name, tier=tier), _records(50)) for name in names for tier in ("paper", "strict")]
    text = (_write(tmp_path, cells) / "table.tex").read_text()
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 1
    assert all(text.count(rule) >= 1 for rule in ("\\toprule", "\\midrule", "\\bottomrule")) and "\\hline" not in text
    bare = re.sub(r"\\[{}&%#_$]", "", text)
    assert bare.count("{") == bare.count("}")
    rows = [line for line in bare.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert {line.count("&") for line in rows} == {4}
    inside = "\n".join(line for line in bare.splitlines() if not line.startswith("%"))
    assert not re.search(r"[#^~]|(?<!\\)%", inside.replace("\\textasciicircum", "").replace("\\textasciitilde", ""))
    assert "A title \\& 100 \\% of it" in text


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    cells = [(_defense("one", published=1.0), _records(50)), (_defense("two"), _records(60, unmoved=100))]
    one, two = _write(tmp_path / "a", cells), _write(tmp_path / "b", cells)
    for name in ("table.csv", "table.md", "table.tex"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
