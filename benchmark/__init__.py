"""What evaluates: attacks, the grid of cells, the store, statistics and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmark.api import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:  # torch and pandas are imported only when they are needed
    if name != "evaluate":
        raise AttributeError(f"module 'benchmark' has no attribute {name!r}")
    from benchmark.api import evaluate

    return evaluate
