"""A few of every kind of attack on the product, in seconds; ``tox -e torture`` has them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_few_attacks_of_every_kind_lose_nothing_change_nothing_and_run_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--few"],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:7]]
    assert [row[0] for row in rows] == ["kills", "damage", "inputs", "hostile", "disk", "load"]
    assert all(row[2:5] == ["0", "0", "0"] for row in rows)
