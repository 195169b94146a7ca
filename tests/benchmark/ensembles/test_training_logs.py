"""Training curves: a watched split and a log change no weight, a log holds the history, and a resumed run says so."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.ensembles.training_logs import open_log
from defenses.checkpoints import read_provenance

pytestmark = pytest.mark.usefixtures("here")
SMALL = EnsembleRequest("baseline", "digits", "mini-resnet(width=4)", 2)
CHANGES = {"epochs": 2, "train_images": 200, "batch_size": 50}
COMMAND = ["train", "baseline", "--dataset", "digits", "--network", "mini-resnet(width=4)", "--members", "2"]
COMMAND += ["--epochs", "2", "--train-images", "200", "--batch-size", "50", "--threads", "1"]


def _history(checkpoint: Path) -> pd.DataFrame:
    return pd.read_csv(checkpoint.parent / "history.csv")


def test_a_watched_split_is_in_the_history_and_changes_no_weight(tmp_path: Path) -> None:
    plain, watched = (
        train_ensemble(SMALL, CHANGES, tmp_path / (watch or "plain"), "cpu", 1, watch=watch) for watch in ("", "test")
    )
    assert read_provenance(plain).weights_sha256 == read_provenance(watched).weights_sha256
    assert "test_accuracy" not in _history(plain)
    assert _history(watched)["test_accuracy"].iloc[-1] == read_provenance(watched).scores["test_accuracy"]


def test_validation_can_be_watched_where_images_are_held_out(tmp_path: Path) -> None:
    held_out = [*COMMAND, "--watch", "validation", "--validation", "100", "--out", str(tmp_path / "a")]
    assert run(held_out) == 0
    shares = pd.read_csv(tmp_path / "a" / "history.csv")["validation_accuracy"]
    assert len(shares) == 2 and shares.between(0, 1).all()
    assert run([*COMMAND, "--watch", "validation", "--out", str(tmp_path / "b")]) == 2
    assert run([*COMMAND, "--watch", "train", "--out", str(tmp_path / "b")]) == 2
    assert run([*COMMAND, "--log", "tensorbord", "--out", str(tmp_path / "b")]) == 2
    assert not (tmp_path / "b").exists()


def test_a_resumed_training_says_from_which_epoch_it_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("benchmark.ensembles.training._Display.epoch", stop)  # the first epoch is saved before
        assert run([*COMMAND, "--out", str(tmp_path / "run")]) == 130
    assert run([*COMMAND, "--out", str(tmp_path / "run")]) == 0
    assert "resuming after epoch 1 of 2" in capfd.readouterr().err


def test_tensorboard_shows_the_numbers_of_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = train_ensemble(SMALL, CHANGES, tmp_path / "run", "cpu", 1, log="tensorboard", watch="test")
    shown = EventAccumulator(str(path.parent / "tensorboard")).Reload()
    for name in ("train_accuracy", "test_accuracy", "learning_rate"):
        points = shown.Scalars(name)
        assert [point.step for point in points] == [1, 2]
        assert [point.value for point in points] == pytest.approx(_history(path)[name].tolist(), rel=1e-5)


def test_mlflow_has_one_run_for_a_folder_even_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for epoch in (1, 2):
        log = open_log("mlflow", tmp_path, "baseline", {"seed": 0}, epoch - 1)
        log.epoch({"epoch": epoch, "train_accuracy": epoch / 4})
        log.close()
    (found,) = mlflow.search_runs(output_format="list", experiment_names=["adp-bench train"])
    assert found.data.metrics == {"train_accuracy": 0.5} and found.data.params == {"seed": "0"}
