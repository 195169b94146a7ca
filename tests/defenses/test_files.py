"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from defenses.errors import BadInput, RunFailed
from defenses.files import replacing, writable_folder, write_bytes, write_text, write_with


@pytest.fixture
def little_space() -> Iterator[None]:
    """No file may grow beyond 1,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_text_has_the_same_line_ends_everywhere(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "é\nb\n")
    assert (tmp_path / "a").read_bytes() == "é\nb\n".encode()


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "old")
    with contextlib.suppress(KeyError), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("little_space")
def test_a_full_disk_is_a_failed_run_that_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with pytest.raises(RunFailed, match=f"could not write {path}: .*; free some space"):
        write_bytes(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_the_error_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    def fail(temporary: Path) -> None:
        folder.rmdir()
        folder.write_text("a file, so that nothing below it can be removed")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunFailed, match=os.strerror(errno.ENOSPC)):
        write_with(folder / "table.csv", fail)


def test_a_folder_is_made_with_its_parents_and_left_empty(tmp_path: Path) -> None:
    folder = writable_folder(tmp_path / "a" / "b")
    assert folder.is_dir() and not list(folder.iterdir())


def test_a_file_where_a_folder_should_be_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(BadInput, match=f"cannot write in {path}.*--out"):
            writable_folder(path)
