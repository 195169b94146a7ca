"""Training curves for TensorBoard or MLflow: a point per epoch for each number of history.csv."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from defenses.errors import BadInput
from defenses.registry import did_you_mean

FOLDERS = {"tensorboard": "tensorboard", "mlflow": "mlruns"}
"""Kind of log (the name of its package) to its place in the folder of an ensemble. If MLFLOW_TRACKING_URI is set,
MLflow uses it instead."""


class TrainingLog(Protocol):
    """Receives the rows of history.csv, epoch by epoch."""

    @abstractmethod
    def epoch(self, row: dict[str, Any]) -> None:
        """Write a finished epoch."""

    @abstractmethod
    def close(self) -> None:
        """Close the log."""


class NoLog(TrainingLog):
    """No log in addition to history.csv."""

    def epoch(self, row: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def check_log(kind: str) -> str:
    """The kind of log, which may be empty; BadInput if it is unknown or not installed."""
    if kind and kind not in FOLDERS:
        raise BadInput(f"unknown --log {kind!r}; {did_you_mean(kind, FOLDERS)}")
    if kind and find_spec(kind) is None:
        raise BadInput(f"--log {kind} needs a package that is not installed: pip install 'adp-benchmark[{kind}]'")
    return kind


def open_log(kind: str, folder: Path, title: str, settings: dict[str, Any], done: int) -> TrainingLog:
    """Open the log of the training in ``folder`` after ``done`` finished epochs."""
    if not check_log(kind):
        return NoLog()
    path = folder / FOLDERS[kind]
    return _TensorBoard(path, done) if kind == "tensorboard" else _MLflow(path, title, settings)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "epoch" and isinstance(value, (int, float))}


class _TensorBoard(TrainingLog):
    """Event files that ``tensorboard --logdir`` shows."""

    def __init__(self, path: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # hides the points of a lost epoch
        self.writer = SummaryWriter(str(path), purge_step=done + 1)

    def epoch(self, row: dict[str, Any]) -> None:
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, row["epoch"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class _MLflow(TrainingLog):
    """A run of MLflow; a resumed training continues its run."""

    def __init__(self, path: Path, title: str, settings: dict[str, Any]) -> None:
        import mlflow  # type: ignore[import-not-found,unused-ignore]

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a database otherwise
            mlflow.set_tracking_uri(path.resolve().as_uri())
        self.mlflow = mlflow
        mlflow.set_experiment("adp-bench train")
        where = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        found = mlflow.search_runs(filter_string=f"tags.folder = '{where}'", output_format="list")
        mlflow.start_run(run_id=found[0].info.run_id if found else None, run_name=None if found else title)
        if not found:
            mlflow.set_tag("folder", where)
            mlflow.log_params(settings)

    def epoch(self, row: dict[str, Any]) -> None:
        self.mlflow.log_metrics(_numbers(row), step=row["epoch"])

    def close(self) -> None:
        self.mlflow.end_run()
