"""Find a dataset by a registered name, or as the user's ``data.npz``, folder or ``file.py:load``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from benchmark.datasets import catalogue, formats
from benchmark.datasets.catalogue import Entry
from benchmark.datasets.image_folders import SPLITS, read_folder
from benchmark.datasets.npz import read_npz
from benchmark.datasets.splits import KEYS, NAMES, read_splits
from defenses import user_functions
from defenses.errors import BadInput, first_line
from defenses.registry import did_you_mean
from defenses.specs import Call
from defenses.training.recipes import Look

TINY = 12
"""Largest side, in pixels, of images that are trained like the 8×8 digits."""
LIKE: Mapping[Look, str] = {"tiny": "digits", "grey": "mnist", "colour": "cifar10"}
"""Kind of images to the registered dataset that gives the network, threads and preset."""
FORMS = "a registered name, data.npz, a folder with test/CLASS/, or file.py:function"

_opened: dict[str, Entry] = {}
"""The user's datasets that this process has read, by their names in cells."""


def find(spec: str) -> Entry:
    """The dataset of a spec; the user's own data are read and checked here, once."""
    if spec in catalogue.DATASETS.names():
        target: Any = catalogue.DATASETS.get(spec)
        return target if isinstance(target, Entry) else _remember(_from_package(spec, target))
    if user_functions.is_in_file(spec):
        return _remember(_from_file(spec))
    path = Path(spec)
    if path.suffix == ".npz":
        return _remember(_from_npz(path, _stamp([path])))
    if path.is_dir():
        classes = [place for split in SPLITS if (path / split).is_dir() for place in (path / split).iterdir()]
        return _remember(_from_folder(path, _stamp([path, *sorted(classes)])))
    raise BadInput(f"unknown dataset {spec!r}; {did_you_mean(spec, catalogue.DATASETS.names())}; or give {FORMS}")


def named(name: str) -> Entry:
    """A dataset by its name in cells: a registered dataset, or data that the user named in this process.

    Nothing is opened here, because a name in a run folder may be the path of any file.
    """
    if name in _opened:
        return _opened[name]
    if name in catalogue.DATASETS.names():
        return find(name)
    raise BadInput(f"the run uses {name!r}, which is not a registered dataset; give the data with --dataset")


def is_own(spec: str) -> bool:
    """True if the user or an installed package provides the dataset."""
    return find(spec).own


def _remember(entry: Entry) -> Entry:
    _opened[entry.name] = entry
    return entry


def _stamp(paths: list[Path]) -> tuple[tuple[int, int], ...]:
    """Modification times and sizes of files: changed files are read again."""
    found = [os.stat(path) for path in paths if path.exists()]
    return tuple((state.st_mtime_ns, state.st_size) for state in found)


@lru_cache(maxsize=4)
def _from_npz(path: Path, stamp: object) -> Entry:
    return _entry(path.name, read_npz(path), str(path), path)


@lru_cache(maxsize=4)
def _from_folder(path: Path, stamp: object) -> Entry:
    return _entry(f"{path.resolve().name}/", read_folder(path), str(path), path)


@lru_cache(maxsize=4)
def _from_file(spec: str) -> Entry:
    function = user_functions.from_file(spec, "dataset")
    assert function.path is not None
    text = f"{function.path.name}:{function.text.rpartition('.py:')[2]}"
    found = _given(partial(function.target, **function.arguments), spec)
    return _entry(text, found, spec, function.path)


@lru_cache(maxsize=4)
def _from_package(name: str, target: Callable[..., Any]) -> Entry:
    if not callable(target):
        raise BadInput(f"dataset {name!r} of an installed package is {target!r}; it must be a function")
    function = user_functions.called(target, Call(name, {}), "dataset")
    return _entry(name, _given(function.target, f"dataset {name!r}"), f"dataset {name!r}", None)


def _given(load: Callable[[], Any], where: str) -> Mapping[str, Any]:
    """Call a user's function. It returns a dictionary with the keys of an npz file, or two pairs, as in Keras."""
    try:
        found = load()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{where} failed: {type(error).__name__}: {first_line(error)}") from error
    if isinstance(found, Mapping):
        unknown = [str(key) for key in found if key not in (*KEYS, NAMES)]
        if unknown:
            raise BadInput(
                f"{where} returns the unknown key {unknown[0]!r}; {did_you_mean(unknown[0], (*KEYS, NAMES))}"
            )
        return found
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(p, tuple) and len(p) == 2 for p in found):
        (x_train, y_train), (x_test, y_test) = found
        return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    raise BadInput(
        f"{where} returns a {type(found).__name__}; return a dictionary with {', '.join(KEYS)}, "
        "or ((x_train, y_train), (x_test, y_test))"
    )


def _entry(name: str, found: Mapping[str, Any], where: str, path: Path | None) -> Entry:
    splits = read_splits(found, where)
    look = look_of(splits.shape)
    like = catalogue.DATASETS.get(LIKE[look])
    arrays: tuple[formats.Arrays, formats.Arrays] = (splits.train, splits.test)
    return Entry(
        name=name,
        classes=splits.classes,
        shape=splits.shape,
        sizes=(len(splits.train[1]), len(splits.test[1])),
        flip=False,  # unknown: a mirrored letter is another letter
        origin=str(path) if path else "an installed package",
        read=lambda contents: arrays,
        look=look,
        network=like.network,
        threads=like.threads,
        preset=like.preset,
        levels=splits.levels,
        checksum=splits.checksum,
        class_names=splits.names,
        path=path,
        own=True,
        remarks=splits.remarks,
    )


def look_of(shape: tuple[int, int, int]) -> Look:
    """The kind of the user's images, by their shape."""
    channels, height, width = shape
    if max(height, width) <= TINY:
        return "tiny"
    return "grey" if channels == 1 else "colour"
