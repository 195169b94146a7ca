"""Datasets in memory: formats, splits, checksums on every load, and clear words for damaged files."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmark import datasets
from benchmark.datasets import catalogue, formats
from defenses.errors import BadInput


def idx(values: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def random_bytes(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_idx_gives_back_the_array_that_was_written() -> None:
    values = random_bytes(5, 4, 3)
    assert np.array_equal(formats.read_idx(idx(values)), values)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"\x1f" + data[1:], lambda data: b""]
)
def test_a_malformed_idx_file_is_bad_input(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadInput, match="idx file"):
        formats.read_idx(damage(idx(random_bytes(5, 4, 3))))


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_records_hold_the_fine_label_just_before_the_channels(label_bytes: int) -> None:
    records = random_bytes(6, label_bytes + 3072)
    pixels, labels = formats.read_cifar([records[:4].tobytes(), records[4:].tobytes()], label_bytes)
    assert np.array_equal(labels, records[:, label_bytes - 1])
    assert pixels.shape == (6, 3, 32, 32)
    assert pixels[5, 2, 31, 30] == records[5, -2]  # last channel, last row, last but one column
    with pytest.raises(BadInput, match="whole number"):
        formats.read_cifar([records.tobytes()[:-1]], label_bytes)


def test_a_sheet_of_rgb_rows_becomes_channel_first_records(tmp_path: Path) -> None:
    rows = random_bytes(3, 1024, 3)
    Image.fromarray(rows).save(tmp_path / "sheet.png")
    pixels, labels = formats.read_cifar([formats.cifar_from_sheet(tmp_path / "sheet.png", [7, 0, 9])], 1)
    assert labels.tolist() == [7, 0, 9]
    assert np.array_equal(pixels.reshape(3, 3, 1024), rows.transpose(0, 2, 1))
    with pytest.raises(ValueError, match="shape"):
        formats.cifar_from_sheet(tmp_path / "sheet.png", [7, 0])


def test_digits_are_the_real_scans_split_at_row_1437() -> None:
    digits = datasets.load("digits")
    assert (len(digits.train), len(digits.test), digits.shape, digits.classes) == (1437, 360, (1, 8, 8), 10)
    images = digits.test.images()
    assert images.dtype == torch.float32 and images.min() == 0 and images.max() == 1
    assert digits.train.labels[:10].tolist() == list(range(10))
    assert not digits.flip
    assert datasets.verify("digits") == digits.checksum and len(digits.checksum) == 64


@pytest.mark.parametrize("size", [1, 200, 1436])
def test_holdout_parts_are_disjoint_and_cover_train(size: int) -> None:
    digits = datasets.load("digits")
    rest, validation = digits.holdout(size, seed=3)
    assert (len(rest), len(validation)) == (1437 - size, size)
    both = torch.cat([rest.pixels, validation.pixels]).flatten(1).tolist()
    assert sorted(both) == sorted(digits.train.pixels.flatten(1).tolist())
    assert validation.levels == 16


def test_holdout_depends_on_the_seed_and_on_nothing_else() -> None:
    digits = datasets.load("digits")
    first = digits.holdout(100, seed=0)[1].pixels
    torch.manual_seed(1234)
    assert torch.equal(first, digits.holdout(100, seed=0)[1].pixels)
    assert not torch.equal(first, digits.holdout(100, seed=1)[1].pixels)


@pytest.mark.parametrize("size", [-1, 0, 1437, 5000])
def test_holdout_of_an_impossible_size_says_what_is_possible(size: int) -> None:
    with pytest.raises(BadInput, match=rf"cannot hold out {size} of .*from 1 to 1436"):
        datasets.load("digits").holdout(size, seed=0)


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    for use in (datasets.load, datasets.fetch, datasets.verify):
        with pytest.raises(BadInput, match="unknown dataset 'cifar-10'; did you mean cifar10"):
            use("cifar-10")


def test_the_listing_tells_sizes_origin_and_presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADP_BENCH_DATA", str(tmp_path / "none"))
    rows = {row["name"]: row for row in json.loads(json.dumps(datasets.describe()))}
    assert set(rows) == {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100"}
    assert rows["digits"]["present"] and not rows["mnist"]["present"]
    assert (rows["cifar100"]["classes"], rows["cifar100"]["shape"], rows["cifar100"]["train"]) == (
        100,
        [3, 32, 32],
        50_000,
    )
    assert not (tmp_path / "none").exists()


def test_only_mirror_safe_datasets_allow_flips() -> None:
    flips = {name: catalogue.DATASETS.get(name).flip for name in datasets.names()}
    assert flips == {"digits": False, "mnist": False, "fashion-mnist": True, "cifar10": True, "cifar100": True}


def test_the_data_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADP_BENCH_DATA", str(tmp_path))
    assert datasets.data_folder() == tmp_path and datasets.where("cifar10") == tmp_path / "cifar-10-batches-bin"
    monkeypatch.setenv("ADP_BENCH_DATA", "")
    assert "adp-benchmark" in datasets.data_folder().parts


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pooch", "sklearn", "rich"}
    code = f"import sys, benchmark.datasets as d; d.names(); print({heavy} & set(sys.modules))"
    root = Path(datasets.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True).stdout == "set()\n"
