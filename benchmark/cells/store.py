"""The store of a run: a manifest of the requested cells, and one file of records per finished cell."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from numpy.typing import NDArray

from benchmark.cells.cell import Cell, TestImages
from benchmark.cells.codec import from_json, to_json
from benchmark.cells.pictures import LEGACY, Pictures, clean_file, picture_columns
from benchmark.cells.record_files import (
    Damaged,
    columns_of,
    read_cell,
    read_commit,
    read_records,
    rename_records,
    write_records,
)
from benchmark.cells.writer import HOLDER, LOCK, only_writer
from benchmark.evaluations.worst_case import from_wide
from benchmark.harness.records import PICTURES, SUCCESSES, Span
from benchmark.harness.tiers import as_strict
from benchmark.machine import hardware
from benchmark.machine.file_names import shortened
from benchmark.machine.terminal import visible
from defenses.errors import BadInput
from defenses.files import writable_folder, write_bytes, write_text

MANIFEST = "manifest.json"


class Store:
    """Files of one run folder. A cell's file is written whole when the cell is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    @contextlib.contextmanager
    def only_writer(self, say: Callable[[str], None] = lambda words: None) -> Iterator[None]:
        """Lock the folder against other writers, and delete temporary files of killed processes."""
        with only_writer(self.folder, say):
            for place, pattern in ((self.folder, ".*.tmp"), (self.folder, "figures/.*.tmp"), (self.cells, "**/.*.tmp")):
                for leftover in place.glob(pattern):
                    leftover.unlink(missing_ok=True)
            yield

    def open(self, preset: str) -> None:
        """Prepare the folder for a preset; refuse a folder with other content."""
        manifest = self.folder / MANIFEST
        if manifest.is_file():
            there = self.manifest()["preset"]
            if there != preset:
                raise BadInput(f"{self.folder} holds a run of preset {there!r}, not {preset!r}; choose another --out")
        elif self.folder.is_dir() and not self._is_fresh():
            raise BadInput(f"{self.folder} is not empty and holds no run; choose another --out")
        writable_folder(self.cells)

    def _is_fresh(self) -> bool:
        """True for an empty folder, also after a run that was killed before its first cell was planned."""
        ours = rf"\..+\.tmp|\.probe\.\d+|{re.escape(LOCK)}|{re.escape(HOLDER)}"
        there = [path for path in self.folder.rglob("*") if not re.fullmatch(ours, path.name)]
        return there in ([], [self.cells]) and not self.cells.is_file()

    # --- the manifest ---

    def manifest(self) -> dict[str, Any]:
        """The content of the manifest: all requests for this folder."""
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput(f"{self.folder} holds no run: it has no {MANIFEST}; give the folder of a run") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} cannot be read: {error}; restore it, or choose another folder") from None
        kinds = {"preset": str, "title": str, "commands": list, "cells": list}
        whole = isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in kinds.items())
        if not (whole and isinstance(content.get("surrogates", {}), dict)):
            raise BadInput(f"{path} was not written by adp-bench run; choose another folder")
        if content.pop("sha256", None) not in (None, _checksum(content)):  # first versions wrote none
            raise BadInput(f"{path} is damaged: it does not match its checksum; restore it, or choose another --out")
        return content

    def asked(self) -> list[Cell]:
        """Every requested cell so far, in the manifest's order; empty without a manifest."""
        cells = [from_json(entry) for entry in self._asked_before("cells", [])]
        for cell in cells:
            _check_names(cell)
        return cells

    def commands(self) -> list[str]:
        """Every command that requested cells."""
        return self._asked_before("commands", [])

    def surrogates(self) -> dict[str, str]:
        """How the surrogates of black-box attacks were trained, in words, by the hash of their weights."""
        return self._asked_before("surrogates", {})

    def class_names(self) -> dict[str, list[str]]:
        """The class names of each dataset that has them."""
        found = self._asked_before("class_names", {})
        return found if isinstance(found, dict) else {}

    def _asked_before(self, key: str, nothing: Any) -> Any:
        return self.manifest().get(key, nothing) if (self.folder / MANIFEST).is_file() else nothing

    def write_manifest(self, cells: list[Cell], content: dict[str, Any]) -> None:
        """Write the manifest with the requested cells."""
        whole = {**content, "cells": [to_json(cell) for cell in cells]}
        whole["sha256"] = _checksum(whole)
        write_text(self.folder / MANIFEST, json.dumps(whole, indent=1, sort_keys=True) + "\n")

    # --- finished cells ---

    def path(self, cell: Cell) -> Path:
        """The cell's file; the name describes the cell, the hash makes it unique."""
        task = cell.task.written()
        what = (cell.task.evaluation, cell.ensemble.defense, task.attack, task.parameters, task.tier)
        words = "-".join([*what, f"n{cell.images.samples}"])
        named = shortened(re.sub(r"[^A-Za-z0-9.+=]+", "-", words))
        return self.cells / f"{named}-{cell.identity[:16]}.parquet"

    def has(self, cell: Cell, images: bool = False) -> bool:
        """True when the cell is finished; with ``images``, when its adversarial images were kept as well."""
        complete = not images or not cell.task.keeps_images or self.images_path(cell).is_file()
        return self.path(cell).is_file() and complete

    def write(self, cell: Cell, records: pd.DataFrame) -> None:
        """Write a finished cell and delete its progress; images are written first, to separate files."""
        if "adversarial" in records:
            kept = records[records["adversarial"].notna()]
            shapes = {tuple(shape) for shape in kept["adversarial_shape"]}
            pixels = np.frombuffer(b"".join(kept["adversarial"]), dtype=np.float32)
            images = pixels.reshape(len(kept), *(shapes.pop() if shapes else (0,)))
            content = safetensors.numpy.save({"index": kept["index"].to_numpy(dtype=np.int64), "images": images})
            write_bytes(self.images_path(cell), content)
        pictures = picture_columns(records)
        if pictures is not None:
            write_bytes(self.pictures_path(cell), pictures.to_bytes())
        plain = records.drop(columns=[*SUCCESSES, *PICTURES, *LEGACY], errors="ignore")
        write_records(self.path(cell), cell, plain, self._commit)
        self._add_to_index(cell)
        self.tidy(cell)

    def rename(self, before: Cell, cell: Cell) -> None:
        """Rename the files of a cell to another name of its defense; nothing is measured again."""
        old, new = self.path(before), self.path(cell)
        if old == new or not old.is_file():
            return
        try:
            self.read(before)
        except Damaged as damage:
            _set_aside(damage)
            return
        for one, other in (
            (self.images_path(before), self.images_path(cell)),
            (self.pictures_path(before), self.pictures_path(cell)),
        ):
            if one.is_file():
                one.replace(other)
        rename_records(old, new, cell)
        old.unlink()
        self.__dict__.pop("_index", None)  # the index has the old name

    def read(self, cell: Cell) -> pd.DataFrame:
        """The records of a finished cell, with every column of its evaluation."""
        return self._complete(cell, self._read_all(cell).drop(columns=[*PICTURES, *LEGACY], errors="ignore"))

    def _read_all(self, cell: Cell) -> pd.DataFrame:
        """Everything in the file of a finished cell, including pictures of the first version."""
        return read_records(self.path(cell), cell, Span(0, cell.images.samples))

    def _complete(self, cell: Cell, records: pd.DataFrame) -> pd.DataFrame:
        return cell.task.records.complete(from_wide(records))

    def set_aside_damaged(self, cells: Iterable[Cell]) -> list[str]:
        """Rename damaged files of finished cells, so that these cells are measured again; return a message for each."""
        lines = []
        for cell in cells:
            if self.has(cell):
                try:
                    self.read(cell)
                except Damaged as damage:
                    lines.append(_set_aside(damage))
        return lines

    def tidy(self, cell: Cell) -> None:
        """Delete files that a finished cell no longer needs; progress beyond its samples belongs to a larger cell."""
        for path in self._progress(cell).glob("*.parquet"):
            if _span(path).end <= cell.images.samples:
                path.unlink()
        with contextlib.suppress(OSError):  # not there, or not empty
            self._progress(cell).rmdir()
        self._failure(cell).unlink(missing_ok=True)

    @cached_property
    def _commit(self) -> str:
        return hardware.commit()

    def commits(self) -> Counter[str]:
        """The number of finished cells by the commit of the code; the commit is empty for files without one."""
        return Counter(read_commit(self.path(cell)) for cell in self.asked() if self.has(cell))

    # --- images ---

    def images_path(self, cell: Cell) -> Path:
        """The file of a cell's adversarial images, if they were saved: float32, with their `index`."""
        return self.path(cell).with_suffix(".safetensors")

    def images(self, cell: Cell) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `index` of the images that fooled the ensemble, and their adversarial images."""
        try:
            content = safetensors.numpy.load(self.images_path(cell).read_bytes())
            return content["index"], content["images"]
        except (safetensors.SafetensorError, KeyError) as error:
            raise BadInput(f"{self.images_path(cell)} cannot be read ({error}); delete it and run again") from None

    def pictures_path(self, cell: Cell) -> Path:
        """The file of a few adversarial images of a cell, for display."""
        return self.path(cell).with_suffix(".pictures")

    def pictures(self, cell: Cell) -> Pictures | None:
        """A few adversarial images of a finished cell; None if there are none, as in committed results."""
        path = self.pictures_path(cell)
        if path.is_file():
            return Pictures.from_file(path)
        return picture_columns(self._read_all(cell)) if "image_adversarial" in columns_of(self.path(cell)) else None

    def write_clean_pictures(self, taken: TestImages, images: NDArray[np.float32]) -> None:
        """Write the first clean images of a dataset, in the order of the cells, once for all cells."""
        path = clean_file(self.cells, taken)
        if not path.is_file():
            write_bytes(path, safetensors.numpy.save({"images": images.astype(np.float16)}))

    def clean_pictures(self, taken: TestImages) -> NDArray[np.float16] | None:
        """The first clean images of a dataset, in the order of the cells."""
        path = clean_file(self.cells, taken)
        try:
            return safetensors.numpy.load(path.read_bytes())["images"] if path.is_file() else None
        except (safetensors.SafetensorError, KeyError) as error:
            raise BadInput(f"{path} cannot be read ({error}); delete it and run again") from None

    # --- failures ---

    def write_failure(self, cell: Cell, reason: str) -> None:
        """Write the reason for a failed cell; the next run tries the cell again."""
        write_text(self._failure(cell), reason + "\n")

    def failure(self, cell: Cell) -> str | None:
        """Why the cell has no result, if it failed."""
        path = self._failure(cell)
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None

    def _failure(self, cell: Cell) -> Path:
        return self.path(cell).with_suffix(".failed")

    # --- progress inside a cell: a file per finished batch, shared by every sample count of the same series ---

    def _progress(self, cell: Cell) -> Path:
        return self.cells / "unfinished" / cell.series[:16]

    def write_batch(self, cell: Cell, first: int, records: pd.DataFrame) -> None:
        """Write the records of a finished batch of an unfinished cell."""
        folder = self._progress(cell)
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / f"{first:06d}-{first + len(records):06d}.parquet", cell, records, self._commit)

    def batches(self, cell: Cell, images: bool = False) -> dict[Span, pd.DataFrame]:
        """Finished batches: from unfinished work, from smaller or larger sample sets, and from the tier with the same
        adversarial images.

        With ``images``, only batches with their adversarial images.
        """
        found = {}
        for span, records in self._unfinished(cell):
            if "adversarial" in records or not images or not cell.task.keeps_images:
                found[span] = records if images else records.drop(columns=[*SUCCESSES], errors="ignore")
        if images and cell.task.keeps_images:
            return found
        for other in self._index.get(cell.series, []):
            try:
                records = self._with_pictures(other)
            except Damaged as damage:
                _set_aside(damage)
                continue
            for first in range(0, other.images.samples, cell.conditions.batch_size):
                span = Span(first, min(first + cell.conditions.batch_size, other.images.samples))
                found[span] = records.iloc[span.rows]
        twin = cell.paper_twin
        if twin:
            found = {**{span: as_strict(records) for span, records in self.batches(twin).items()}, **found}
        return found

    def _unfinished(self, cell: Cell) -> Iterator[tuple[Span, pd.DataFrame]]:
        """Batches of unfinished work; a damaged file is renamed, and its batch is measured again."""
        for path in sorted(self._progress(cell).glob("*.parquet")):
            try:
                span = _span(path)
                yield span, self._complete(cell, read_records(path, cell, span))
            except Damaged as damage:
                _set_aside(damage)

    def _with_pictures(self, cell: Cell) -> pd.DataFrame:
        """The records of a finished cell, with its pictures as columns."""
        whole, path = self._read_all(cell), self.pictures_path(cell)
        pictures = Pictures.from_file(path) if path.is_file() else picture_columns(whole)
        records = self._complete(cell, whole.drop(columns=[*PICTURES, *LEGACY], errors="ignore"))
        return records if pictures is None else records.assign(**pictures.columns(records))

    @cached_property
    def _index(self) -> dict[str, list[Cell]]:
        """Finished cells of the folder by their series, read once."""
        found: dict[str, list[Cell]] = {}
        for path in sorted(self.cells.glob("*.parquet")):
            with contextlib.suppress(BadInput):  # a damaged file is reported when it is read
                other = read_cell(path)
                found.setdefault(other.series, []).append(other)
        return found

    def _add_to_index(self, cell: Cell) -> None:
        if "_index" in self.__dict__ and cell not in self._index.setdefault(cell.series, []):
            self._index[cell.series].append(cell)


def _check_names(cell: Cell) -> None:
    """Refuse names that are not valid Unicode: neither a table nor a file can store them."""
    facts = cell.ensemble
    for text in (cell.images.dataset, facts.defense, facts.network, facts.training, cell.task.title, cell.task.library):
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise BadInput(f"the run has a cell with {visible(text)!r}, which is not Unicode text") from None


def _checksum(content: dict[str, Any]) -> str:
    """sha256 of the content of a manifest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _span(path: Path) -> Span:
    """The rows of a batch, from its file's name."""
    match = re.fullmatch(r"(\d+)-(\d+)", path.stem)
    if match is None:
        raise Damaged(path, "its name does not say which rows it has")
    return Span(*map(int, match.groups()))


def _set_aside(damage: Damaged) -> str:
    """Rename a damaged file; return the message about it."""
    aside = damage.path.with_suffix(".damaged")
    damage.path.replace(aside)
    return f"{damage.path} is damaged ({damage.reason}); it is renamed to {aside.name}, and its cell is measured again"
