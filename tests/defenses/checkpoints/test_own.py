"""Checkpoints come back exactly, and whatever is wrong with one is a line that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from defenses.checkpoints import (
    FILE_NAME,
    Provenance,
    digest,
    load_checkpoint,
    read_provenance,
    save_checkpoint,
)
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble

NETWORK = "mini-resnet(width=2)"
SHAPE = (1, 8, 8)


def _provenance(**changes: Any) -> Provenance:
    values: dict[str, Any] = {"defense": "baseline", "dataset": "digits", "network": NETWORK, "members": 2}
    return Provenance(**{**values, "shape": SHAPE, "classes": 10, "recipe": {"epochs": 3}, "seed": 4, **changes})


@pytest.fixture
def ensemble() -> Ensemble:
    return build_ensemble(NETWORK, 2, SHAPE, 10, torch.rand(SHAPE), seed=3)


@pytest.fixture
def path(tmp_path: Path, ensemble: Ensemble) -> Path:
    save_checkpoint(tmp_path / FILE_NAME, ensemble, _provenance())
    return tmp_path / FILE_NAME


def _refusal(path: Path, **expected: Any) -> str:
    with pytest.raises(BadInput) as caught:
        load_checkpoint(path, **expected)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_an_ensemble_comes_back_exactly_with_its_origin(path: Path, ensemble: Ensemble) -> None:
    loaded = load_checkpoint(path)
    assert not loaded.training
    torch.testing.assert_close(loaded.state_dict(), ensemble.state_dict(), rtol=0, atol=0)
    images = torch.rand(4, *SHAPE)
    assert torch.equal(loaded(images), ensemble.eval()(images))
    assert loaded.provenance is not None
    assert (loaded.provenance.seed, loaded.provenance.recipe, loaded.provenance.shape) == (4, {"epochs": 3}, SHAPE)
    assert loaded.provenance.versions["torch"] == torch.__version__
    assert loaded.provenance.weights_sha256 == digest(loaded.state_dict())


def test_the_folder_stands_for_the_file_in_it(path: Path) -> None:
    assert load_checkpoint(path.parent).provenance == load_checkpoint(str(path)).provenance


def test_the_digest_sees_values_names_and_shapes_but_not_memory_layout() -> None:
    tensor = torch.rand(2, 3, 4, 5)
    assert digest({"a": tensor}) == digest({"a": tensor.to(memory_format=torch.channels_last)})
    others = [{"b": tensor}, {"a": tensor.reshape(2, 3, 20)}, {"a": tensor + 1e-7}, {"a": tensor.double()}]
    assert len({digest({"a": tensor}), *map(digest, others)}) == 5
    assert digest({"a": torch.tensor(3)}) != digest({"a": torch.tensor(4)})


def test_what_does_not_fit_the_expectations_is_refused(path: Path) -> None:
    load_checkpoint(path, dataset="digits", members=2, network=NETWORK)
    assert "has dataset 'digits', not 'mnist'" in _refusal(path, dataset="mnist")
    assert "has members 2, not 3" in _refusal(path, members=3)


def test_no_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    assert "no checkpoint at" in _refusal(tmp_path / "nothing.safetensors")
    assert "no checkpoint at" in _refusal(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "truncated or not a safetensors file" in _refusal(path)


def test_a_flipped_byte_in_the_weights_is_found(path: Path) -> None:
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for place in (header, (header + len(content)) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert "weights do not match their checksum" in _refusal(path)


def test_a_flipped_byte_in_the_header_is_refused_or_harmless_but_never_a_crash(path: Path) -> None:
    content, weights = path.read_bytes(), digest(load_checkpoint(path).state_dict())
    header = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    for place in range(0, header, 29):
        for flip in (1, 16, 128):
            damaged = bytearray(content)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            try:
                assert digest(load_checkpoint(path).state_dict()) == weights
            except BadInput:
                refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "mini-resnet(width=3)"}, "has shape"),
        ({"network": "mini-resnett"}, "did you mean mini-resnet"),
        ({"members": 3}, "3 members"),
        ({"members": 1}, "1 members"),
        ({"classes": 11}, "needs (11,)"),
        ({"shape": (3, 8, 8)}, "needs (3, 8, 8)"),
    ],
)
def test_metadata_that_does_not_describe_the_weights_is_refused(
    tmp_path: Path, ensemble: Ensemble, changes: dict[str, Any], message: str
) -> None:
    save_checkpoint(tmp_path / FILE_NAME, ensemble, _provenance(**changes))
    with pytest.raises(BadInput) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "is a plain state dict"),
        ({"other": "1"}, "is a plain state dict"),
        ({"adp-benchmark": "{"}, "metadata that cannot be read"),
        ({"adp-benchmark": "[]"}, "metadata that cannot be read"),
        ({"adp-benchmark": '{"format": 1}'}, "metadata that cannot be read"),
        ({"adp-benchmark": '{"format": 1, "shape": 5}'}, "metadata that cannot be read"),
        ({"adp-benchmark": '{"format": 99}'}, "checkpoint format 99; this version reads format 1"),
    ],
)
def test_weights_of_unknown_origin_are_refused(tmp_path: Path, metadata: dict[str, str] | None, message: str) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(3)}, path, metadata=metadata)
    assert message in _refusal(path)


def test_metadata_can_be_read_without_the_weights_and_only_from_this_projects_files(path: Path, tmp_path: Path) -> None:
    assert read_provenance(path).defense == "baseline"
    save_file({"a": torch.zeros(3)}, tmp_path / "foreign.safetensors")
    with pytest.raises(BadInput, match="no adp-benchmark metadata"):
        read_provenance(tmp_path / "foreign.safetensors")


def test_metadata_written_by_a_version_that_knew_more_still_loads(tmp_path: Path, ensemble: Ensemble) -> None:
    path = tmp_path / FILE_NAME
    record = {**_provenance().__dict__, "weights_sha256": digest(ensemble.state_dict()), "novelty": 1}
    save_file(ensemble.state_dict(), path, metadata={"adp-benchmark": json.dumps(record)})
    assert load_checkpoint(path).provenance == _provenance(weights_sha256=record["weights_sha256"])
