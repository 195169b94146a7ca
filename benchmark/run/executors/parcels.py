"""Parcels for other processes: an ensemble with its images, packed once and unpacked by each worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmark.cells.cell import Cell
from benchmark.datasets import lookup
from benchmark.datasets.catalogue import Entry
from benchmark.ensembles.finding import load_outside
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, Subject, subject_of
from benchmark.machine.devices import set_threads
from benchmark.run.executors import Failure, evaluate
from defenses.checkpoints import versions
from defenses.errors import BadInput, RunFailed
from defenses.members.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Parcel:
    """A packed material: weights and images by value, a model from outside by its file name."""

    key: str
    ensemble: Ensemble | None
    """None when every worker loads it from ``spec``."""
    surrogate: Ensemble | None
    others: dict[str, Any]
    """The other fields of the material."""
    about: Entry
    """The dataset without its images."""
    weights: str
    folder: str
    """Working folder, for relative names of files."""
    threads: int
    versions: dict[str, str]


def _no_images(contents: Mapping[str, bytes]) -> tuple[Any, Any]:
    raise RunFailed("a worker has only the images that it received")


def pack(material: Material, cell: Cell) -> Parcel:
    origin = material.ensemble.provenance
    outside = origin is None or bool(origin.recognised)
    test = material.test
    own = replace(test, pixels=test.pixels.clone(), labels=test.labels.clone())  # a pickled view has its whole storage
    names = ("batch_size", "device", "keep_images", "acceleration", "spec", "trust")
    return Parcel(
        key=os.urandom(8).hex(),
        ensemble=None if outside else material.ensemble,
        surrogate=material.surrogate,
        others={"test": own, **{name: getattr(material, name) for name in names}},
        about=replace(lookup.named(cell.images.dataset), read=_no_images, sources=()),
        weights=cell.ensemble.weights,
        folder=os.getcwd(),
        threads=torch.get_num_threads(),
        versions=versions(),
    )


def unpack(parcel: Parcel) -> Material:
    """Unpack the material; BadInput if the versions or the model here differ from those of the driver."""
    here, wanted = versions(), parcel.versions
    for name in wanted:
        if here[name] != wanted[name]:
            raise BadInput(f"a worker has {name} {here[name]}, the driver {wanted[name]}; install the same version")
    set_threads(parcel.threads)
    ensemble = parcel.ensemble
    if ensemble is None:
        spec = parcel.others["spec"]
        try:
            os.chdir(parcel.folder)
            loaded = load_outside(spec, parcel.about, parcel.others["trust"])
        except (OSError, BadInput) as error:
            raise BadInput(
                f"a worker cannot load {spec}: {error}; put the file where every worker can read it"
            ) from error
        if loaded.provenance.identity != parcel.weights:
            raise BadInput(f"{spec} is a different model on a worker; copy the same file there")
        ensemble = loaded.ensemble
    return Material(ensemble=ensemble, surrogate=parcel.surrogate, **parcel.others)


def records(
    parcel: Parcel,
    logits: Tensor | None,
    cell: Cell,
    spans: list[Span],
    say: Callable[[str], None],
    report: Callable[[str], None] = lambda words: None,
) -> list[pd.DataFrame | Failure]:
    """Records of batches of a cell, up to the first that fails."""
    subject = _subject(parcel, logits, say, report)
    results: list[pd.DataFrame | Failure] = []
    for span in spans:
        results.append(evaluate(subject, cell, span, say))
        if isinstance(results[-1], Failure):
            break
    return results


_kept: dict[str, tuple[AbstractContextManager[Subject], Subject]] = {}
"""The last subject of this process, by the key of its parcel: the next batches mostly need the same one."""


def _subject(
    parcel: Parcel, logits: Tensor | None, say: Callable[[str], None], report: Callable[[str], None]
) -> Subject:
    if parcel.key not in _kept:
        _kept.clear()
        context = subject_of(unpack(parcel), logits, say, report)
        _kept[parcel.key] = context, context.__enter__()  # never exited: this process does nothing else
    return _kept[parcel.key][1]
