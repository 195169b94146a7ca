"""The committed baseline of speed ratios: docs/speed.md shows it, and a ratio that falls by a third is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.benchmarks.baseline import BEGIN, END, PAGE, Ratio, fallen, markdown, read, write


def test_the_page_shows_the_committed_ratios() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert read() and shown == markdown(read())


def test_a_ratio_that_falls_by_a_third_is_named_and_a_smaller_fall_is_not() -> None:
    before = [Ratio("suite", case, "speed", 1.5, "machine") for case in ("a", "b", "c")]
    now = [replace(before[0], value=1.01), replace(before[1], value=0.99), replace(before[2], value=float("nan"))]
    new = Ratio("suite", "not measured before", "speed", 0.1, "machine")
    assert [line.partition(":")[0] for line in fallen([*now, new], before)] == ["suite, b", "suite, c"]


def test_a_new_baseline_replaces_what_was_measured_and_keeps_the_rest(tmp_path: Path) -> None:
    file, page = tmp_path / "baseline.csv", tmp_path / "speed.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf-8")
    one, other = (Ratio("suite", case, "speed, of all", 1.25, "machine, with 2 cores") for case in "ab")
    write([one, other], file, page)
    assert read(file) == [one, other]
    write([replace(one, value=3.0)], file, page)
    assert [ratio.value for ratio in read(file)] == [3.0, 1.25]
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}{markdown(read(file))}{END}after\n"
