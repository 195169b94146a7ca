"""Workers change how long a run takes, and nothing else: the same tables, and no process that outlives its parent."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.records import Span
from benchmark.harness.tiers import as_strict
from benchmark.machine.hardware import room_for_workers
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Batch, Failure, Outcome, open_executor
from benchmark.run.executors.local import Local
from benchmark.run.executors.workers import RETRIES, Workers, _Crew, _Job
from benchmark.run.ledger import Ledger
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput

CPU = torch.device("cpu")
WORKERS = "benchmark.run.executors.workers"
TABLES = ("table.md", "table.tex")

pytestmark = pytest.mark.usefixtures("here")


def _command(checkpoint: Path, out: str, *more: str) -> list[str]:
    words = ["run", "demo", "--defense", str(checkpoint), "--surrogate", "none", "--samples", "30"]
    return [*words, "--batch-size", "10", "--threads", "1", "--out", out, *more]


def _untimed(folder: Path) -> str:
    return pd.read_csv(folder / "table.csv", keep_default_na=False).drop(columns="seconds").to_csv()


TIERS = ["--tier", "paper", "--tier", "strict"]
ATTACKS = ["--attack", "none", "--attack", "pgd(eps=0.1)", "--attack", "cw(c=5,steps=10)", *TIERS]


def test_two_workers_leave_the_tables_of_one_byte_for_byte(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for workers in ("1", "2"):
        assert run(_command(checkpoint, workers, *ATTACKS, "--workers", workers)) == 0
    assert "2 workers" in capfd.readouterr().err
    assert _untimed(here / "1") == _untimed(here / "2")
    for name in TABLES:
        assert (here / "1" / name).read_bytes() == (here / "2" / name).read_bytes()


OWN = """
def push(model, images, labels, eps):
    return (images + eps).clamp(0, 1)
"""


def test_an_attack_of_the_users_own_file_runs_beside_workers(checkpoint: Path, here: Path) -> None:
    (here / "mine.py").write_text(OWN)
    more = ["--attack", "mine.py:push(eps=0.1,bound=linf:0.1)", "--tier", "strict"]
    for workers in ("1", "2"):
        assert run(_command(checkpoint, workers, *more, "--workers", workers)) == 0
    assert _untimed(here / "1") == _untimed(here / "2")


@pytest.mark.slow
def test_ensembles_trained_side_by_side_have_the_weights_of_ones_trained_in_turn(here: Path) -> None:
    command = ["run", "demo", "--defense", "baseline", "--defense", "adp-2-0.5", "--attack", "fgsm(eps=0.1)"]
    command += ["--samples", "20", "--tier", "strict", "--surrogate", "none", "--out", "run"]
    for workers in ("1", "2"):
        folder = here / workers
        folder.mkdir()
        words = [sys.executable, "-m", "benchmark", *command, "--workers", workers]
        subprocess.run(words, cwd=folder, check=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"})
    trained = [sorted((here / n / "results" / "ensembles").rglob("ensemble.safetensors")) for n in "12"]
    names = [[path.relative_to(here / n) for path in paths] for n, paths in zip("12", trained, strict=True)]
    assert names[0] == names[1] and len(names[0]) == 2
    for one, other in zip(*trained, strict=True):
        weights = [load_checkpoint(path).state_dict() for path in (one, other)]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert _untimed(here / "1" / "run") == _untimed(here / "2" / "run")


def test_the_longest_training_begins_first_and_its_worker_stays_for_the_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {"baseline": 10.0, "adp-2-0.5": 30.0, "advt-pgd": 20.0}
    asked = [EnsembleRequest(defense, "digits") for defense in seconds]
    begun: list[str] = []

    def give(training: Any, worker: Any) -> Future[Any]:
        begun.append(training.wanted.defense)
        return _number(worker)

    monkeypatch.setattr(f"{WORKERS}.training_seconds", lambda wanted, device: seconds[wanted.defense])
    monkeypatch.setattr(f"{WORKERS}._Training.give", give)
    with open_executor("local", workers=2) as executor:
        assert isinstance(executor, Workers)
        executor.train(asked, CPU, RunDisplay())
        assert executor.crew is not None and len(executor.crew.workers) == 2
        processes = [process for worker in executor.crew.workers for process in worker.pool._processes]
    assert begun == ["adp-2-0.5", "advt-pgd", "baseline"]
    assert executor.crew is None and not any(map(_alive, processes))


# --- what is killed ---


@dataclass(eq=False)
class _Work:
    """Ends its worker so many times, then gives a number."""

    deaths: int

    def give(self, worker: Any) -> Future[Any]:
        self.deaths -= 1
        return worker.pool.submit(signal.raise_signal, signal.SIGKILL) if self.deaths >= 0 else _number(worker)


def _number(worker: Any) -> Future[Any]:
    return worker.pool.submit(math.sqrt, 4)


def _results(jobs: list[_Job]) -> dict[str, Any]:
    crew = _Crew.of([CPU], RunDisplay())
    try:
        return {job.title: result for job, result in crew.results(iter(jobs))}
    finally:
        crew.stop()


def test_what_a_killed_worker_had_is_done_again() -> None:
    jobs = [_Job("good", _Work(0)), _Job("unlucky", _Work(1)), _Job("late", _Work(0))]  # type: ignore[arg-type]
    found = _results(jobs)
    assert found == {"good": 2.0, "unlucky": 2.0, "late": 2.0}


@pytest.mark.slow
def test_what_kills_its_worker_again_and_again_fails_alone() -> None:
    jobs = [_Job("deadly", _Work(10**9)), _Job("good", _Work(0))]  # type: ignore[arg-type]
    found = _results(jobs)
    assert found["good"] == 2.0
    assert isinstance(found["deadly"], Failure) and str(RETRIES + 1) in found["deadly"].words


def _children(parent: int) -> list[int]:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(word) for word in path.read_text().split()] if path.is_file() else []


def _alive(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent_and_the_same_command_goes_on(
    number: signal.Signals, checkpoint: Path, here: Path
) -> None:
    attack = ["--attack", "pgd(eps=0.1,steps=1000)", "--tier", "strict"]  # long enough to be met at work
    words = [sys.executable, "-m", "benchmark", *_command(checkpoint, "run", *attack, "--workers", "2")]
    victim = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    _wait(lambda: any((here / "run").rglob("unfinished/*/*.parquet")) or victim.poll() is not None)
    workers = _children(victim.pid)
    assert victim.poll() is None and len(workers) >= 2
    if number == signal.SIGINT:
        os.killpg(victim.pid, number)  # as a terminal does: the workers get it too
    else:
        victim.kill()
    said = victim.communicate(timeout=60)[1]
    assert "Traceback" not in said
    assert victim.returncode == (130 if number == signal.SIGINT else -number)
    _wait(lambda: not any(map(_alive, workers)), seconds=20)
    assert run(_command(checkpoint, "run", *attack, "--workers", "1")) == 0
    assert run(_command(checkpoint, "whole", *attack, "--workers", "1")) == 0
    assert _untimed(here / "run") == _untimed(here / "whole")


# --- how many ---


def test_the_default_is_what_cores_and_memory_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**24}.get)  # 64 GiB
    assert [room_for_workers(threads) for threads in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**20}.get)  # 4 GiB
    assert room_for_workers(1) == 4


def test_every_accelerator_gets_a_worker_and_one_that_was_named_gets_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    four = [torch.device("cuda", number) for number in range(4)]
    monkeypatch.setattr("benchmark.machine.devices.accelerators", lambda: four)
    assert Workers().places(torch.device("cuda")) == four
    assert Workers(6).places(torch.device("cuda")) == [*four, *four[:2]]
    assert Workers().places(torch.device("cuda:2")) == [torch.device("cuda:2")]


def test_a_number_that_makes_no_sense_is_refused() -> None:
    for workers in (0, -1, 10**9):
        with pytest.raises(BadInput, match=str(workers)), open_executor("local", workers=workers):
            pass
    with open_executor("local", workers=1) as executor:
        assert isinstance(executor, Local)


# --- nothing is computed twice ---


def test_a_strict_cell_takes_its_records_from_the_paper_cell_that_is_under_way(
    make_cell: Callable[..., Cell], make_records: Callable[..., pd.DataFrame], here: Path
) -> None:
    from benchmark.attacks import parse_attack

    named = parse_attack("jsma(gamma=0.05)")
    paper = make_cell(WhiteBox(named, "paper"), samples=20, batch_size=10)
    strict = make_cell(WhiteBox(named, "strict", shared_images=True), samples=20, batch_size=10)
    assert strict.paper_twin == paper
    store = Store(here / "run")
    store.open("demo")
    ledger = Ledger(store, RunDisplay())
    material: Any = None
    handed = list(ledger.batches([(material, [paper, strict])]))
    assert [batch.cell for batch in handed] == [paper, paper]
    whole = make_records(paper, {})
    for batch in handed:
        rows = whole.iloc[batch.span.first : batch.span.end].reset_index(drop=True)
        ledger.take(Outcome(Batch(material, paper, batch.span), rows))
    assert not ledger.parts and store.has(paper) and store.has(strict)
    pd.testing.assert_frame_equal(
        store.read(strict)[["index", "correct", "label"]], as_strict(whole)[["index", "correct", "label"]]
    )
    assert Span(0, 10) == handed[0].span
