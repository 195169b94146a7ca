"""What a run shows is text: no name, path or error steers the terminal or is taken for markup."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.datasets.progress import Display
from benchmark.ensembles.training import _Display
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.diagnostics import diagnose
from benchmark.run.display import RunDisplay
from defenses.training.progress import Progress

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], Any]
HOSTILE = "o[/b]\x1b[2J\x9b31m\r:bug:\u202e\udcff"
SHOWN = "o[/b]\\x1b[2J\\x9b31m\\r:bug:\\u202e\\udcff"


def _run(display: RunDisplay, make_cell: MakeCell, make_records: MakeRecords, name: str) -> None:
    """Everything that a display can be told."""
    one, two = (make_cell(WhiteBox(parse_attack(f"pgd(eps={eps})"), "strict"), name) for eps in (0.1, 0.2))
    row = {"accuracy": 1.0, "ci_low": 0.0, "ci_high": 2.0, "published": None, "flags": name}
    display.say(name)
    display.start([one, two], [one, two])
    for cell in (one, two):
        display.begin(cell)
        display.report(name)
        display.advance(cell, 10)
        display.bars.refresh()
    display.done(one, row)
    display.failed(two, name)
    display.writing(name)
    stuck = {"unmoved": True, "zero_gradient": True}
    display.finish(Store(Path(name)), diagnose([(one, make_records(one, stuck))]))


def _steers(output: str) -> list[str]:
    """Control sequences that rich did not write for its colours and its live lines."""
    own = r"\x1b\[(\d*(;\d+)*m|\?25[lh]|\d*[AK])|\r|\n"
    return re.findall(r"[\x00-\x1f\x7f-\x9f\u202e\ud800-\udfff]", re.sub(own, "", output))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_shows_hostile_names_as_text(
    terminal: bool, make_cell: MakeCell, make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    display = RunDisplay()
    display.console._force_terminal = terminal
    display.console.file = io.StringIO()
    _run(display, make_cell, make_records, HOSTILE)
    output = display.console.file.getvalue()
    assert _steers(output) == [] and "\x1b[2J" not in output and "\x1b[31m\r" not in output
    lines = [SHOWN, f"failed: {SHOWN}", f"warning: {SHOWN}", f"report: {SHOWN}/report.html", f"1/2] {SHOWN} · pgd"]
    assert [line for line in lines if line not in output] == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(codec=None), max_size=20))
def test_a_run_shows_any_name_without_control_characters(
    name: str, make_cell: MakeCell, make_records: MakeRecords
) -> None:
    display = RunDisplay()
    display.console = Console(file=io.StringIO(), emoji=False, highlight=False)
    _run(display, make_cell, make_records, name)
    assert isinstance(display.console.file, io.StringIO)
    output = display.console.file.getvalue()
    output.encode()
    assert set(re.findall(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", output)) <= {"\n"}
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", output)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_training_shows_hostile_names_as_text(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=500, highlight=False, emoji=False)
    with _Display(HOSTILE, console) as display:
        display.last_line -= 100
        display.batch(Progress(1, 2, 1, 2, {HOSTILE: 0.5}, 0.5, 10.0, 60.0))
        display.bars.refresh()
        display.last_line -= 100
        display.epoch({"epoch": 1, "seconds": 1.0, HOSTILE: 0.5})
    display.say(HOSTILE)
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert _steers(output) == [] and "\x1b[2J" not in output
    assert f"{SHOWN} epoch 1" in output and f"{SHOWN} 0.5" in output


@pytest.mark.parametrize("terminal", [True, False])
def test_a_download_shows_hostile_names_as_text(terminal: bool) -> None:
    display = Display(enabled=True)
    display._console.file = io.StringIO()
    display._live = display._console._force_terminal = terminal
    with display:
        display.note(HOSTILE)
        display.step(HOSTILE)
        display._progress.refresh()
    output = display._console.file.getvalue()
    assert _steers(output) == [] and SHOWN in output


def test_a_long_batch_gets_a_line_where_there_is_no_terminal(
    make_cell: MakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (make_cell(WhiteBox(parse_attack(f"pgd(eps={eps})"), "strict"), "mine") for eps in (0.1, 0.2))
    display = RunDisplay()
    display.console.file = io.StringIO()
    display.start([one, two], [one, two])
    for cell in (one, two):
        display.begin(cell)
    display.report("early")
    display.last_line -= 100
    display.report("half of it", one)
    display.report("at once")
    output = display.console.file.getvalue().splitlines()
    assert output[0] == "running 2 cells", "a first line before the first cell is done"
    assert [line for line in output if "half of it" in line] == [f"[1/2] {one.title} · half of it"]
    assert "early" not in "".join(output) and "at once" not in "".join(output)
