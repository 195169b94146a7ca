"""On a Ray cluster a run ends with the table of a local run, also when a node is lost or the user stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmark.cli import run

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -c constraints.txt -e '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]

ROOT = Path(__file__).parents[3]
SMALL = 80 * 2**20
"""Bytes of an object store, about the least that Ray takes."""


@pytest.fixture
def demo(checkpoint: Path) -> list[str]:
    """Short cells that go as one task each, and long ones in several: Ray takes seconds to miss a node."""
    attacks = ["none", "fgsm", "pgd(eps=0.1)", "cw(c=5,steps=1500,abort_early=false)", "ead(c=5,steps=1500)"]
    chosen = [word for attack in attacks for word in ("--attack", attack)]
    return [
        "run",
        "demo",
        "--defense",
        str(checkpoint),
        "--samples",
        "40",
        "--batch-size",
        "20",
        *chosen,
        "--tier",
        "strict",
    ]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each on this machine."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": SMALL}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(**node)
    yield made
    ray.shutdown()
    made.shutdown()


def _untimed(folder: Path) -> str:
    return pd.read_csv(folder / "table.csv", keep_default_na=False).drop(columns="seconds").to_csv()


def _progress(folder: Path) -> int:
    return len(list(folder.glob("cells/unfinished/*/*.parquet")))


def test_a_node_that_is_lost_in_the_middle_changes_nothing_in_the_table(
    demo: list[str], cluster: Any, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*demo, "--out", "local"]) == 0
    second = next(iter(cluster.worker_nodes))
    lost_at: list[int] = []

    def lose_a_node() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            busy = ray.is_initialized() and not ray.available_resources().get("CPU")
            if busy and _progress(here / "wide"):
                cluster.remove_node(second, allow_graceful=False)
                lost_at.append(len(list((here / "wide").glob("cells/*.parquet"))))
                return
            time.sleep(0.05)

    thief = threading.Thread(target=lose_a_node)
    thief.start()
    assert run([*demo, "--executor", "ray", "--ray-address", cluster.address, "--out", "wide"]) == 0
    thief.join()
    said = capfd.readouterr().err
    assert "ray: 2 tasks at a time on 2 nodes, 1 CPU each" in said
    assert "ray: 1 of 2 nodes lost" in said
    assert 0 <= lost_at[0] < len(pd.read_csv(here / "local" / "table.csv")), "in the middle of the run"
    assert _untimed(here / "wide") == _untimed(here / "local")
    for name in ("table.md", "table.tex"):
        assert (here / "wide" / name).read_bytes() == (here / "local" / name).read_bytes()


def test_an_interrupt_stops_the_tasks_and_the_same_command_goes_on(demo: list[str], here: Path) -> None:
    command = [*demo, "--executor", "ray", "--out", "wide"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmark.cli", *command], cwd=here, env=environment, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not _progress(here / "wide"):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("adp-bench: interrupted")
    assert _progress(here / "wide"), "what is done is kept"
    assert run([*demo, "--out", "wide"]) == 0, "wherever it goes on"
    assert run([*demo, "--out", "local"]) == 0
    assert _untimed(here / "wide") == _untimed(here / "local")
