"""The repository stays light: what can be made again is not committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 500_000
"""Bytes; the pre-commit hook has the same limit."""
NO_RUNS = ("checkpoints", "benchmarks", "strong-stages")
"""Folders of results that no run left."""


@pytest.fixture(scope="module")
def committed() -> list[Path]:
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if answer.returncode:
        pytest.skip("this is not a git checkout")
    paths = [ROOT / name for name in answer.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_only_checkpoints_are_large(committed: list[Path]) -> None:
    large = [path.relative_to(ROOT) for path in committed if path.stat().st_size > LARGEST]
    assert [path for path in large if path.parts[:2] != ("results", "checkpoints")] == []


def test_reference_results_are_cells_and_their_tables(committed: list[Path]) -> None:
    results = [path.relative_to(ROOT / "results") for path in committed if path.is_relative_to(ROOT / "results")]
    assert {path.name for path in results if len(path.parts) == 1} <= {"README.md", "references.txt", "claims.py"}
    runs = [path for path in results if len(path.parts) > 1 and path.parts[0] not in NO_RUNS]
    assert [path.name for path in results if path.parts[0] == "benchmarks"] == ["baseline.csv"]
    kinds = {path.name if len(path.parts) == 2 else path.parts[1] + "/*" + path.suffix for path in runs}
    assert kinds <= {"manifest.json", "table.csv", "table.md", "cells/*.parquet", "figures/*.png"}


def test_a_committed_picture_is_shown_in_a_readme(committed: list[Path]) -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in committed if path.suffix == ".md")
    pictures = [path for path in committed if path.suffix == ".png" and path.is_relative_to(ROOT / "results")]
    assert [path.name for path in pictures if path.name not in texts] == []
