"""The evaluation harness: attacks, runs, statistics and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmark.api import evaluate
    from benchmark.attacks.bounds import Bound

    __version__: str

__all__ = ["Bound", "evaluate"]


def __getattr__(name: str) -> Any:  # torch and pandas are imported only when they are needed
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("adp-benchmark")
        except PackageNotFoundError:
            return "unknown (run from a source tree that was not installed)"
    if name == "Bound":
        from benchmark.attacks.bounds import Bound

        return Bound
    if name != "evaluate":
        raise AttributeError(f"module 'benchmark' has no attribute {name!r}")
    from benchmark.api import evaluate

    return evaluate
