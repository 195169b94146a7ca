"""A run folder has one writer at a time: nobody's rows vanish, and whoever was killed holds nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from benchmark.cells.store import Store
from benchmark.cells.writer import HOLDER, only_writer
from benchmark.cli import run

HOLD = """
import sys, time
from pathlib import Path
from benchmark.cells.writer import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _command(checkpoint: Path, attack: str) -> list[str]:
    words = ["run", "demo", "--defense", str(checkpoint), "--attack", attack, "--tier", "strict", "--samples", "20"]
    return [*words, "--threads", "1", "--out", "run"]


def test_two_runs_at_once_on_one_folder_end_with_the_rows_of_both(checkpoint: Path, here: Path) -> None:
    attacks = ["fgsm(eps=0.1)", "bim(eps=0.1)", "mim(eps=0.1)"]
    commands = [_command(checkpoint, attack) for attack in (*attacks, attacks[0])]
    started = [
        subprocess.Popen([sys.executable, "-m", "benchmark.cli", *command], stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    assert sorted(pd.read_csv("run/table.csv")["attack"]) == ["bim", "fgsm", "mim"]
    assert not list(Path("run").rglob("*.tmp")) and not Path("run", HOLDER).exists()


def test_the_second_writer_is_told_who_holds_the_folder_and_a_kill_frees_it(here: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(here)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    said: list[str] = []

    def kill(words: str) -> None:
        said.append(words)
        holder.send_signal(signal.SIGKILL)

    began = time.monotonic()
    with only_writer(here, kill):
        assert time.monotonic() - began < 30
    assert len(said) == 1 and f"process {holder.pid}" in said[0]
    holder.wait()


def test_what_a_killed_writer_left_half_written_is_swept_away(checkpoint: Path, here: Path) -> None:
    command = _command(checkpoint, "fgsm(eps=0.1)")
    assert run(command) == 0
    names = (".table.csv.123.tmp", "cells/.x.parquet.123.tmp", "figures/.x.svg.123.tmp")
    for words in (command, ["report", "run"]):
        for name in names:
            (here / "run" / name).write_bytes(b"half")
        assert run(words) == 0
        assert not any((here / "run" / name).exists() for name in names)


@pytest.mark.parametrize("words", [["report", "nowhere"], ["report", "."]])
def test_a_folder_without_a_run_is_left_alone(words: list[str], here: Path) -> None:
    assert run(words) == 2
    assert list(here.iterdir()) == []


def test_a_holder_says_who_it_is_only_while_it_holds(here: Path) -> None:
    store = Store(here)
    with store.only_writer():
        assert "process" in (here / HOLDER).read_text(encoding="utf-8")
    assert not (here / HOLDER).exists()
