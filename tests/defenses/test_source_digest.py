"""The digest of a user's file changes with what the file does, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from defenses.errors import BadInput
from defenses.source_digest import source_digest

MINE = '''"""A module."""
from dataclasses import dataclass
from defenses.objectives import Defense
from layers import width  # beside this file
import package.deep

@dataclass(frozen=True)
class Mine(Defense):
    """A class."""
    weight: float = 1.0
    """A field."""

    def objective(self, logits, labels):
        """A method."""
        return {"mine": self.weight * (logits * width).sum()}  # a comment

    def later(self):
        pass
'''
SAME = """from dataclasses import dataclass
from defenses.objectives import (
    Defense,
)
from layers import width
import package.deep


@dataclass(frozen=True)
class Mine(Defense):

    weight: float = 1.00

    def objective(self, logits, labels):
        # another comment
        return {'mine': (self.weight *
                         (logits * width).sum())}

    def later(self):
        '''Nothing yet.'''
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file that imports a module and a package beside it."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "layers.py").write_text("import os\nwidth = 3\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from . import near\n")
    (tmp_path / "package" / "near.py").write_text("from ..elsewhere import nothing\n")
    (tmp_path / "package" / "deep.py").write_text("number = 1\n")
    (tmp_path / "other.py").write_text("number = 1\n")
    (tmp_path / "defenses").mkdir()
    (tmp_path / "defenses" / "__init__.py").write_text("number = 1\n")
    return tmp_path


def test_comments_docstrings_and_formatting_do_not_count(folder: Path) -> None:
    before = source_digest(folder / "mine.py")
    (folder / "mine.py").write_text(SAME)
    assert source_digest(folder / "mine.py") == before
    assert len(before) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= 1.0", "= 2.0"),
        ("frozen=True", "frozen=False"),
        ("weight: float", "weight: int"),
        ("def later", "def sooner"),
        ('"mine":', '"Mine":'),
        ("self.weight *", "self.weight +"),
        ("    def later(self):\n        pass\n", ""),
        ("import width", "import width as size"),
    ],
)
def test_what_the_file_does_counts(folder: Path, old: str, new: str) -> None:
    before = source_digest(folder / "mine.py")
    assert old in MINE
    (folder / "mine.py").write_text(MINE.replace(old, new))
    assert source_digest(folder / "mine.py") != before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("layers.py", True),
        ("package/__init__.py", True),
        ("package/near.py", True),
        ("package/deep.py", True),
        ("other.py", False),
        ("defenses/__init__.py", False),
    ],
)
def test_files_that_it_imports_from_its_own_folder_count(folder: Path, file: str, counts: bool) -> None:
    before = source_digest(folder / "mine.py")
    with open(folder / file, "a") as changed:
        changed.write("# a comment\n")
    assert source_digest(folder / "mine.py") == before
    with open(folder / file, "a") as changed:
        changed.write("more = 2\n")
    assert (source_digest(folder / "mine.py") != before) == counts


def test_the_name_and_the_place_of_the_file_do_not_count(folder: Path, tmp_path: Path) -> None:
    before = source_digest(folder / "mine.py")
    there = tmp_path / "there"
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("there"))
    (there / "mine.py").rename(there / "renamed.py")
    assert source_digest(there / "renamed.py") == before


def test_files_that_import_one_another_have_a_digest(folder: Path) -> None:
    (folder / "layers.py").write_text("import mine\nimport layers\nwidth = 3\n")
    assert len(source_digest(folder / "mine.py")) == 64


@pytest.mark.parametrize("source", ["def broken(:", "a = 1\0"])
def test_a_file_that_is_not_python_is_bad_input(folder: Path, source: str) -> None:
    (folder / "mine.py").write_text(source)
    with pytest.raises(BadInput, match=r"mine\.py"):
        source_digest(folder / "mine.py")


def test_every_version_of_python_gives_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "text = f'{1:.2f} and' u' more'\n"
        "class A:\n    def f(self, *, a: int = ...) -> None: ...\n"
        "with open('a') as b: print(b, 2j, 1e-3, {**{}}, [*()], -1)\n"
    )
    assert source_digest(tmp_path / "mine.py") == "82ac8ecc95704948bcacca92693568309b963472b419a1f6aa18bd369b48d78f"
