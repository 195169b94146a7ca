"""A message about slow work that prints nothing itself, such as loading libraries or measuring speed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE = 1.0
"""Seconds of silence before the message."""


def _to_standard_error(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


@contextmanager
def saying(words: str, say: Callable[[str], None] = _to_standard_error) -> Iterator[None]:
    """Print ``words`` if the block takes more than a second."""
    timer = Timer(PATIENCE, say, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load_torch() -> None:
    """Import PyTorch, and print a message if that takes more than a second."""
    with saying("loading PyTorch"):
        importlib.import_module("torch")
