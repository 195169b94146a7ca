"""A checkpoint of this project that was damaged, or made to harm, is refused by one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from defenses import load_checkpoint
from defenses.checkpoints import FILE_NAME, Provenance, digest, read_provenance, save_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import build_ensemble

NETWORK = "mini-resnet(width=2)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ensemble = build_ensemble(NETWORK, 2, (1, 8, 8), 10, torch.zeros(1, 8, 8))
    origin = Provenance("baseline", "digits", NETWORK, 2, (1, 8, 8), 10)
    save_checkpoint(tmp_path / FILE_NAME, ensemble, origin)
    return tmp_path / FILE_NAME


def _rewrite(path: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    with safe_open(path, framework="pt") as file:
        found = tensors or {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["adp-benchmark"])
    record |= {"weights_sha256": digest(found), **changes}
    save_file(found, path, metadata={"adp-benchmark": json.dumps(record)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(path: Path, value: float) -> None:
    tensors = dict(load_checkpoint(path).state_dict())
    tensors["members.1.fc.bias"] = torch.full_like(tensors["members.1.fc.bias"], value)
    _rewrite(path, tensors)
    with pytest.raises(BadInput, match=r"members\.1\.fc\.bias"):
        load_checkpoint(path)


def test_a_million_members_are_counted_before_they_are_built(path: Path) -> None:
    _rewrite(path, members=1_000_000)
    with pytest.raises(BadInput, match="1000000 members"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [{"shape": [1, 10**6, 10**6]}, {"classes": 10**9}, {"network": "mini-resnet(width=100000000)"}],
    ids=lambda change: next(iter(change)),
)
def test_sizes_are_compared_with_the_weights_before_anything_is_allocated(path: Path, change: dict[str, Any]) -> None:
    _rewrite(path, **change)
    with pytest.raises(BadInput, match="has shape"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "change", [{"recipe": {"name": ["fast"]}}, {"scores": {"test_accuracy": "much"}}, {"scores": {"train_seconds": {}}}]
)
def test_metadata_of_another_kind_is_refused(path: Path, change: dict[str, Any]) -> None:
    _rewrite(path, **change)
    with pytest.raises(BadInput, match="metadata that cannot be read"):
        read_provenance(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(BadInput, match="is not a file"):
        read_provenance(tmp_path / FILE_NAME)
