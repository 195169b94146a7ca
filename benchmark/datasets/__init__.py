"""Datasets for training and evaluation: images with checked bytes and explicit splits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.datasets import catalogue, installation
from benchmark.datasets.installation import data_folder
from benchmark.datasets.lookup import find, is_own, named
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.datasets.formats import Arrays
    from defenses.members.images import LabelledImages

__all__ = [
    "Dataset",
    "data_folder",
    "describe",
    "fetch",
    "find",
    "is_own",
    "load",
    "load_named",
    "named",
    "names",
    "verify",
    "where",
]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded dataset. ``flip``: a mirrored image keeps its class. ``checksum`` covers the whole content."""

    name: str
    classes: int
    shape: tuple[int, int, int]
    flip: bool
    train: LabelledImages
    test: LabelledImages
    checksum: str
    class_names: tuple[str, ...] = ()

    def holdout(self, size: int, seed: int) -> tuple[LabelledImages, LabelledImages]:
        """Hold out ``size`` training images, drawn by ``seed``: training and validation images, both in file order."""
        import torch

        if not 0 < size < len(self.train):
            raise BadInput(
                f"cannot hold out {size} of the {len(self.train)} training images of {self.name} for validation; "
                f"choose from 1 to {len(self.train) - 1}"
            )
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        return self.train.subset(order[size:].sort().values), self.train.subset(order[:size].sort().values)


def names() -> list[str]:
    """Every dataset a user may name."""
    return catalogue.DATASETS.names()


def describe() -> list[dict[str, object]]:
    """One row per dataset for listings; ``present`` means on disk, not yet checked."""
    rows: list[dict[str, object]] = []
    for name in names():
        entry: Any = catalogue.DATASETS.get(name)
        if not isinstance(entry, catalogue.Entry):  # a function of an installed package, which is not called here
            unknown = {"classes": "", "shape": "", "train": "", "test": ""}
            rows.append({"name": name, **unknown, "origin": "an installed package", "present": True})
            continue
        row = {"name": entry.name, "classes": entry.classes, "shape": list(entry.shape)}
        sizes = {"train": entry.sizes[0], "test": entry.sizes[1]}
        rows.append({**row, **sizes, "origin": entry.origin, "present": not installation.missing(entry)})
    return rows


def where(name: str) -> Path | None:
    """The folder of a dataset's files, which may not exist yet; None for a dataset inside a library."""
    entry = find(name)
    return data_folder() / entry.folder if entry.files else entry.path


def fetch(name: str, *, progress: bool = True) -> str:
    """Install a dataset, or repair it; returns the source that it came from."""
    entry = find(name)
    return entry.origin if entry.own else installation.fetch(entry, progress)


def verify(name: str) -> str:
    """Check every file again, and return the dataset's checksum."""
    return _read(find(name))[2]


def load(name: str, *, progress: bool = True) -> Dataset:
    """Read a dataset, and fetch it first if it is missing; a damaged file raises BadInput and is not changed."""
    return _load(find(name), progress)


def load_named(name: str) -> Dataset:
    """Read a dataset by its name in cells; only registered data and data that the user named are opened (`named`)."""
    return _load(named(name), progress=True)


def _load(entry: catalogue.Entry, progress: bool) -> Dataset:
    import torch

    from defenses.members.images import LabelledImages

    if installation.missing(entry):
        installation.fetch(entry, progress)
    train, test, checksum = _read(entry)

    def labelled(arrays: Arrays) -> LabelledImages:
        pixels, labels = map(torch.from_numpy, arrays)
        return LabelledImages(pixels, labels.to(torch.int64), entry.levels)

    parts = labelled(train), labelled(test)
    return Dataset(entry.name, entry.classes, entry.shape, entry.flip, *parts, checksum, entry.class_names)


def _read(entry: catalogue.Entry) -> tuple[Arrays, Arrays, str]:
    """Train, test and the sha256 of both; each file is checked when it is read."""
    train, test = entry.read({file: installation.checked(entry, file) for file in entry.files})
    if entry.own:  # `find` has read it and computed its checksum
        return train, test, entry.checksum
    digest = hashlib.sha256()
    for values in (*train, *test):
        digest.update(values.reshape(-1).data)
    if entry.checksum and digest.hexdigest() != entry.checksum:
        raise BadInput(
            f"the images of {entry.name} {entry.origin} do not match their checksum; install the dataset again"
        )
    return train, test, digest.hexdigest()
