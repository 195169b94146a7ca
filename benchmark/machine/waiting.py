"""A line about slow work that says nothing itself: loading libraries, measuring, the first look at a model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE = 1.0
"""Seconds without a word that nobody minds."""


def _to_standard_error(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


@contextmanager
def saying(words: str, say: Callable[[str], None] = _to_standard_error) -> Iterator[None]:
    """Say what is being done if it takes more than a second; say nothing if it takes less."""
    timer = Timer(PATIENCE, say, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load_torch() -> None:
    """Import PyTorch, which takes a second or two, before what needs it."""
    with saying("loading PyTorch"):
        importlib.import_module("torch")
