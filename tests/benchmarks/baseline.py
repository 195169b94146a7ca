"""The committed baseline of ratios: a ratio that falls a third below it fails the run; docs/speed.md shows them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "results" / "benchmarks" / "baseline.csv"
PAGE = ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- ratios: written by tox -e benchmarks -- --new-baseline -->\n", "<!-- end of ratios -->\n"
LEAST = 2 / 3
"""Share of its baseline that a ratio must keep."""


@dataclass(frozen=True)
class Ratio:
    """How many times better one thing is than another, both measured in one run; more is better."""

    suite: str
    case: str
    what: str
    value: float
    machine: str

    @property
    def name(self) -> tuple[str, str, str]:
        return self.suite, self.case, self.what


def read(file: Path = FILE) -> list[Ratio]:
    """The baseline, or nothing where there is none yet."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [Ratio(**{**row, "value": float(row["value"])}) for row in csv.DictReader(lines)]


def write(measured: Iterable[Ratio], file: Path = FILE, page: Path = PAGE) -> None:
    """Put new ratios in the place of older ones, in the file and on the page; what was not measured stays."""
    kept = {ratio.name: ratio for ratio in read(file)}
    ratios = sorted((kept | {ratio.name: ratio for ratio in measured}).values(), key=lambda ratio: ratio.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow([field.name for field in fields(Ratio)])
        table.writerows([*astuple(ratio)[:3], f"{ratio.value:.3g}", *astuple(ratio)[4:]] for ratio in ratios)
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}{markdown(read(file))}{END}{after}", encoding="utf-8")


def fallen(measured: Iterable[Ratio], baseline: Iterable[Ratio]) -> list[str]:
    """The ratios that have fallen by a third or more, in words."""
    before = {ratio.name: ratio for ratio in baseline}
    return [
        f"{ratio.suite}, {ratio.case}: {ratio.what} {ratio.value:.3g}, baseline {before[ratio.name].value:.3g}"
        for ratio in measured
        if ratio.name in before and not ratio.value > LEAST * before[ratio.name].value
    ]


def markdown(ratios: Iterable[Ratio]) -> str:
    """The table of docs/speed.md."""
    lines = ["| suite | case | ratio | times |", "| --- | --- | --- | ---: |"]
    lines += [f"| {ratio.suite} | {ratio.case} | {ratio.what} | {ratio.value:.3g} |" for ratio in ratios]
    return "\n".join(lines) + "\n"
