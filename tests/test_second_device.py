"""The tests of ``tests/second_device`` in a process of their own: a type of device cannot be unregistered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMBINATION = "test_an_attack_leaves_the_same_records"
TRAINING = "test_a_defense_trains_to_the_same_weights"


def _run(tmp_path: Path, *more: str, devices: int = 1) -> dict[str, int]:
    """How many tests passed, by name; one that fails fails here, with what it said."""
    report = tmp_path / "report.xml"
    words = [sys.executable, "-m", "pytest", "tests/second_device", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"ADP_BENCH_TESTED_DEVICES": str(devices), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*words, f"--junitxml={report}", *more], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed: dict[str, int] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            name = re.sub(r"\[.*", "", case.attrib["name"])
            passed[name] = passed.get(name, 0) + 1
    return passed


def _tell(passed: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(
            f"\nsecond device: {passed.get(COMBINATION, 0)} combinations of attack, evaluation and tier, "
            f"{passed.get(TRAINING, 0)} trainings, all equal to the CPU's"
        )


def test_a_second_device_gives_what_the_cpu_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passed = _run(tmp_path)
    _tell(passed, capsys)
    assert passed[COMBINATION] >= 10 and passed[TRAINING] >= 2


@pytest.mark.slow
def test_every_attack_and_defense_gives_on_a_second_device_what_it_gives_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = _run(tmp_path, "-m", "slow or not slow", devices=2)
    _tell(passed, capsys)
    assert passed[COMBINATION] > 150 and passed[TRAINING] > 10
