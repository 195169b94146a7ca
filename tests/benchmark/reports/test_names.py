"""Whatever a checkpoint, a manifest or a user calls things: the report is written, and its files are what they seem."""

from __future__ import annotations

import re
import tempfile
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmark.attacks import NamedAttack, RecordedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.layout import Layout
from benchmark.findings.results import read_results
from benchmark.findings.rows import COLUMNS
from benchmark.reports import write_report
from benchmark.reports.figures.curves import curve_figures
from benchmark.run.comparing import keep_record
from defenses.errors import BadInput

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
Report = Callable[..., Path]

HOSTILE = (
    "fast\n\\input{/etc/passwd}",
    "a|b",
    "<img src=x onerror=alert(1)>",
    "=cmd|'/c calc'!A1",
    "# `x`\r- y",
    "$\\frac{$",
    "a$b$c",
    "\x1b[31mred\x00",
    "../../etc/passwd",
    "_hidden",
    "🙂 \u202egnp.exe",
    "no character: \uffff",
    "x" * 300,
    "é" * 300,
    "[2pt] & 100 % ^^M ~ # {",
    "",
    "   ",
)


@pytest.fixture
def named_report(make_records: MakeRecords) -> Report:
    """Write the report of cells, of which the last has failed."""

    def make(folder: Path, cells: list[Cell], title: str = "Names", compared: tuple[str, str] | None = None) -> Path:
        store = Store(folder)
        store.open("demo")
        store.write_manifest(cells, {"preset": "demo", "title": title, "commands": [title], "surrogates": {}})
        for number, cell in enumerate(cells[:-1]):
            right = np.arange(cell.images.samples) % 5 > number % 5
            store.write(cell, make_records(cell, {"correct": right}))
        store.write_failure(cells[-1], f"ValueError: {title}")
        if compared:
            keep_record(store, compared[0], compared[1:], [f"{compared[0]}: trained in 3 s"])
        write_report(store)
        return folder

    return make


def _cells(make_cell: MakeCell, name: str, training: str, parameters: str) -> list[Cell]:
    """A curve of two defenses, an attack of unknown parameters in two libraries, and a cell that failed."""
    tasks = [WhiteBox(parse_attack(f"pgd(eps={eps})"), "strict") for eps in (0.1, 0.2, 0.3)]
    recorded = RecordedAttack(parameters, (("eps", 0.1), ("note", parameters)), Bound("linf", 0.1))
    libraries = [WhiteBox(NamedAttack("lost", library, recorded, "1"), "strict") for library in ("one", "two")]
    others = {"training": training, "samples": 10}
    defenses = list(dict.fromkeys([name, "usual"]))
    cells = [make_cell(task, defense, **others) for task in (*tasks, *libraries) for defense in defenses]
    return [*cells, make_cell(WhiteBox(parse_attack("fgsm(eps=0.1)"), "strict"), name, **others)]


def _check(folder: Path, cells: list[Cell]) -> None:
    table = pd.read_csv(folder / "table.csv", keep_default_na=False)
    assert table.shape == (len(cells), len(COLUMNS)) and list(table.columns) == list(COLUMNS)
    assert set(table["samples"]) == {0, 10}
    for path in (*folder.glob("*.csv"), *folder.glob("figures/*.csv")):
        texts = pd.read_csv(path, keep_default_na=False, dtype=str).to_numpy().ravel().tolist()
        assert not [text for text in texts if re.match(r"[=@\t\r]|[+-](?![\d.])", text)], path.name
    for path in folder.glob("*.md"):
        _check_markdown(path.read_text(encoding="utf-8"))
    _check_latex((folder / "table.tex").read_text(encoding="utf-8"), len(set(table["defense"])))
    for path in folder.glob("figures/*.svg"):
        ElementTree.parse(path)
    for path in (folder / "report.html", folder / "table.md", folder / "table.tex", folder / "table.csv"):
        hidden = [sign for sign in path.read_text(encoding="utf-8") if unicodedata.category(sign) in ("Cc", "Cs")]
        assert set(hidden) <= {"\n", "\t"}, path.name
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<img src=x" not in page and page.count("<script>") == 1


def _check_markdown(text: str) -> None:
    """Every row of a table has as many columns as its head; nothing but the program's own lines begins a block."""
    columns = 0
    for line in text.splitlines():
        assert re.match(r"\| |#{1,2} |- |\S|$", line), line
        if line.startswith("|"):
            columns = columns or _bars(line)
            assert _bars(line) == columns, line
        else:
            columns = 0
    assert not re.search(r"<(?!br)", text.replace("&lt;", ""))


def _bars(line: str) -> int:
    return re.sub(r"\\.", "", line).count("|")


def _check_latex(text: str, defenses: int) -> None:
    lines = [line for line in text.split("\n") if not line.startswith("%")]
    known = (
        r"\\(begin|end|centering|small|setlength|tabcolsep|caption|label|smallskip|multicolumn|raggedright|textit|textbf"
        r"|toprule|midrule|bottomrule|pm|dagger|infty|cdot|varepsilon|alpha|beta|gamma|kappa|lambda|delta|tau|times|leq"
        r"|dots|text\w+)\b"
    )
    bare = [re.sub(known, "", re.sub(r"\\[{}&%#_$\\]", "", line)) for line in lines]
    assert not [line for line in bare if re.search(r"[\\~%#]", line)]
    assert not [line for line in bare if "^" in line.replace("$^{}$", "")]
    assert "".join(bare).count("{") == "".join(bare).count("}")
    rows = [line for line in lines if line.endswith("\\\\") and "\\multicolumn" not in line]
    assert rows and {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {defenses + 1}
    assert not [line for line in rows if line.startswith(("[", "*"))], "the row before would take it for its own"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_report_of_hostile_names_is_written_and_every_file_holds_text(
    text: str, make_cell: MakeCell, named_report: Report, tmp_path: Path
) -> None:
    cells = _cells(make_cell, text, f"{text} recipe, 3 epochs", text)
    folder = named_report(tmp_path / "run", cells, text, (text, "usual"))
    _check(folder, cells)
    assert (folder / "comparison.md").is_file() and (folder / "crosscheck.md").is_file()
    assert {path.parent for path in folder.rglob("*") if path.is_file()} <= {
        folder, folder / "cells", folder / "figures",
    }  # fmt: skip


def test_figures_of_names_that_make_one_file_name_are_all_kept(
    make_cell: MakeCell, named_report: Report, tmp_path: Path
) -> None:
    parts = [_cells(make_cell, name, "", "eps=0.1")[:-1] for name in ("a|b", "a/b", "A/B")]
    cells = list(dict.fromkeys(cell for part in parts for cell in part))
    folder = named_report(tmp_path / "run", cells)
    assert len([*folder.glob("figures/crosscheck-*.svg")]) == 4
    page = (folder / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'src="(data:[^"]+)" alt="One attack', page)
    assert len(sources) == 4 and len(set(sources)) >= 2


def test_a_long_name_makes_no_figure_that_is_too_large_and_no_legend_leaves_one_out(
    make_cell: MakeCell, named_report: Report, tmp_path: Path
) -> None:
    cells = _cells(make_cell, "_" + 10**5 * "w", "", "eps=0.1")
    folder = named_report(tmp_path / "run", cells)
    (curve,) = curve_figures(Layout(read_results(Store(folder))))
    (legend,) = curve.canvas.legends
    assert len(legend.get_texts()) == 2 and curve.canvas.get_size_inches().max() < 20


def test_a_run_with_names_that_are_no_text_is_refused_in_one_line(make_cell: MakeCell, tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    store.open("demo")
    cell = make_cell(WhiteBox(parse_attack("pgd(eps=0.1)"), "strict"), "half \ud800")
    store.write_manifest([cell], {"preset": "demo", "title": "Names", "commands": []})
    with pytest.raises(BadInput, match=r"half .*ud800.*not Unicode text"):
        write_report(store)


TEXTS = st.text(max_size=30) | st.sampled_from(HOSTILE)
"""Of every character but halves of surrogate pairs."""


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a report takes too long to look for the shortest text
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=TEXTS, training=TEXTS, parameters=TEXTS, title=TEXTS)
def test_a_report_of_any_names_is_written(
    name: str, training: str, parameters: str, title: str, make_cell: MakeCell, named_report: Report
) -> None:
    with tempfile.TemporaryDirectory() as there:
        cells = _cells(make_cell, name, training, parameters)
        _check(named_report(Path(there) / "run", cells, title, (name, "usual")), cells)
