"""Slow work that says nothing itself gets a line; quick work gets none."""

from __future__ import annotations

import time

import pytest

from benchmark.machine import waiting


def test_a_line_comes_while_the_work_goes_on_and_never_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.1)
    said: list[str] = []
    with waiting.saying("slow", said.append):
        end = time.monotonic() + 30
        while not said and time.monotonic() < end:
            time.sleep(0.01)
    assert said == ["slow"]
    with waiting.saying("quick", said.append):
        pass
    time.sleep(0.3)
    assert said == ["slow"]
