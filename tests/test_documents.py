"""The examples of the documentation run as they stand: one test per section, in an empty folder.

A block ``python title="mine.py"`` (or any other language with a title) is written to a file of that name. A block
``python`` without a title is run. In a block ``console``, every line that begins with ``$ adp-bench`` is run, and
``> FILE`` at its end keeps what it prints.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmark import datasets
from defenses.errors import RunFailed

ROOT = Path(__file__).parents[1]
TUTORIAL = "docs/tutorial.md"
DOCUMENTS = (
    "README.md",
    TUTORIAL,
    "docs/evaluate.md",
    "docs/compare.md",
    "docs/audit.md",
    "docs/leaderboard.md",
    "docs/your-own.md",
)
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """A part of a document, from one heading of the second level to the next."""

    document: str
    heading: str
    text: str


def sections(document: str) -> list[Section]:
    """The parts of a document that have something to run; a tutorial is one, since each part builds on the last."""
    if document == TUTORIAL:
        return [Section(document, "whole", (ROOT / document).read_text(encoding="utf-8"))]
    parts = re.split(r"^## (.+)$", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [Section(document, heading, text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)]
    return [section for section in found if FENCE.search(section.text)]


def run(arguments: list[str], folder: Path, code: int = 0) -> str:
    """Run Python in the folder, on this checkout, for what it prints; a failure shows that."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, *arguments]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode == code, f"{shlex.join(arguments)}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def fetched_or_skipped(dataset: str) -> None:
    """Data that an example needs; where it can not be had, the example is skipped."""
    try:
        datasets.fetch(dataset, progress=False)
    except RunFailed as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "section",
    [section for document in DOCUMENTS for section in sections(document)],
    ids=lambda section: f"{Path(section.document).stem}: {section.heading}",
)
def test_the_examples_of_a_section_run(section: Section, tmp_path: Path) -> None:
    for language, title, content in FENCE.findall(section.text):
        if title:
            (tmp_path / title).write_text(content, encoding="utf-8")
        elif language == "python":
            run(["-c", content], tmp_path)
        elif language == "console":
            joined = content.replace("\\\n", " ")
            if "cifar10" in content:
                fetched_or_skipped("cifar10")
            for line, kept in re.findall(r"^\$ adp-bench (.+?)(?: > (\S+))?$", joined, re.MULTILINE):
                code = int(found[1]) if (found := re.search(r"# exit code (\d)", line)) else 0
                printed = run(["-m", "benchmark", *shlex.split(line, comments=True)], tmp_path, code)
                if kept:
                    (tmp_path / kept).write_text(printed, encoding="utf-8")
