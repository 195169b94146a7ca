"""The store of a run: a manifest of what was asked, and one file per finished cell."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from numpy.typing import NDArray

from benchmark import hardware
from benchmark.cells import Cell, cell_from
from benchmark.tiers import as_strict
from defenses.errors import BadInput
from defenses.files import writable_folder, write_bytes, write_text, write_with

MANIFEST = "manifest.json"
PICTURED = ("whitebox", "strong")
"""Evaluations whose adversarial images can be kept."""
ADVERSARIAL = ["adversarial", "adversarial_shape"]


class Store:
    """Files of one run folder. A cell's file is written whole when the cell is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"

    def open(self, preset: str) -> None:
        """Make the folder ready for a preset; refuse one that holds something else."""
        manifest = self.folder / MANIFEST
        if manifest.is_file():
            there = self.manifest()["preset"]
            if there != preset:
                raise BadInput(f"{self.folder} holds a run of preset {there!r}, not {preset!r}; choose another --out")
        elif self.folder.is_dir() and not self._is_fresh():
            raise BadInput(f"{self.folder} is not empty and holds no run; choose another --out")
        writable_folder(self.cells)

    def _is_fresh(self) -> bool:
        """True for an empty folder, or one a run was killed in before its first cell was planned."""
        there = [path for path in self.folder.rglob("*") if not re.fullmatch(r"\..+\.tmp|\.probe\.\d+", path.name)]
        return there in ([], [self.cells]) and not self.cells.is_file()

    def manifest(self) -> dict[str, Any]:
        """What was asked of this folder."""
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput(f"{self.folder} holds no run: there is no {MANIFEST} in it") from None
        except ValueError as error:
            raise BadInput(f"{path} cannot be read: {error}") from None
        if not (isinstance(content, dict) and {"preset", "title", "commands", "cells"} <= content.keys()):
            raise BadInput(f"{path} was not written by adp-bench run; choose another folder")
        return content

    def planned(self) -> list[dict[str, Any]]:
        """Every cell that was asked for so far."""
        return self.manifest()["cells"] if (self.folder / MANIFEST).is_file() else []

    def commands(self) -> list[str]:
        """Every command that asked for them."""
        return self.manifest()["commands"] if (self.folder / MANIFEST).is_file() else []

    def surrogates(self) -> dict[str, str]:
        """How the ensembles that black-box attacks were made on were trained, in words, by their weights."""
        return self.manifest().get("surrogates", {}) if (self.folder / MANIFEST).is_file() else {}

    def asked(self) -> list[Cell]:
        """The cells of the manifest, in its order."""
        return [cell_from(entry) for entry in self.manifest()["cells"]]

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Record what was asked."""
        write_text(self.folder / MANIFEST, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def path(self, cell: Cell) -> Path:
        """The cell's file; the name says what it is, the hash makes it unique."""
        words = "-".join([cell.evaluation, cell.defense, cell.attack, cell.parameters, cell.tier, f"n{cell.samples}"])
        return self.cells / f"{re.sub(r'[^A-Za-z0-9.+=]+', '-', words)}-{cell.identity[:16]}.parquet"

    def has(self, cell: Cell, images: bool = False) -> bool:
        """True when the cell is finished; with ``images``, when its adversarial images were kept as well."""
        complete = not images or cell.evaluation not in PICTURED or self.images_path(cell).is_file()
        return self.path(cell).is_file() and complete

    def write(self, cell: Cell, records: pd.DataFrame) -> None:
        """Keep a finished cell and drop its progress; adversarial images go to a file of their own, first."""
        if "adversarial" in records:
            kept = records[records["adversarial"].notna()]
            shapes = {tuple(shape) for shape in kept["adversarial_shape"]}
            pixels = np.frombuffer(b"".join(kept["adversarial"]), dtype=np.float32)
            images = pixels.reshape(len(kept), *(shapes.pop() if shapes else (0,)))
            content = safetensors.numpy.save({"index": kept["index"].to_numpy(dtype=np.int64), "images": images})
            write_bytes(self.images_path(cell), content)
            records = records.drop(columns=ADVERSARIAL)
        self._write(self.path(cell), cell, records)
        self.tidy(cell)

    def images_path(self, cell: Cell) -> Path:
        """Where the adversarial images of a cell are, if they were kept: float32, with their rows in the test set."""
        return self.path(cell).with_suffix(".safetensors")

    def images(self, cell: Cell) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows in the test set and adversarial images of those that fooled the ensemble."""
        try:
            content = safetensors.numpy.load(self.images_path(cell).read_bytes())
            return content["index"], content["images"]
        except (safetensors.SafetensorError, KeyError) as error:
            raise BadInput(f"{self.images_path(cell)} cannot be read ({error}); delete it and run again") from None

    def tidy(self, cell: Cell) -> None:
        """Drop what a finished cell no longer needs; progress beyond its samples belongs to a larger one."""
        for path in self._progress(cell).glob("*.parquet"):
            if _rows(path)[1] <= cell.samples:
                path.unlink()
        with contextlib.suppress(OSError):  # not there, or not empty
            self._progress(cell).rmdir()
        self._failure(cell).unlink(missing_ok=True)

    def _write(self, path: Path, cell: Cell, records: pd.DataFrame) -> None:
        table = pa.Table.from_pandas(records, preserve_index=False)
        code = {"commit": self._commit} if self._commit else {}
        table = table.replace_schema_metadata({"adp-benchmark": json.dumps(cell.asked()), **code})
        write_with(path, lambda file: pq.write_table(table, file))

    @cached_property
    def _commit(self) -> str:
        return hardware.commit()

    def commits(self) -> Counter[str]:
        """How many of the finished cells each state of the code has finished; empty for those that do not say."""
        paths = [self.path(cell) for cell in self.asked() if self.has(cell)]
        found = ((self._readable(pq.read_schema, path).metadata or {}).get(b"commit", b"") for path in paths)
        return Counter(commit.decode() for commit in found)

    def read(self, cell: Cell) -> pd.DataFrame:
        """The records of a finished cell."""
        return self._read(self.path(cell))

    def _read(self, path: Path) -> pd.DataFrame:
        return self._readable(pq.read_table, path).to_pandas()

    def _readable(self, read: Callable[[Path], Any], path: Path) -> Any:
        try:
            return read(path)
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"{path} cannot be read ({error}); delete it and run again") from None

    def write_failure(self, cell: Cell, reason: str) -> None:
        """Remember why a cell has no result; the next run tries it again."""
        write_text(self._failure(cell), reason + "\n")

    def failure(self, cell: Cell) -> str | None:
        """Why the cell has no result, if it failed."""
        path = self._failure(cell)
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def _failure(self, cell: Cell) -> Path:
        return self.path(cell).with_suffix(".failed")

    # progress inside a cell: a file per finished batch, shared by every sample count of the same series

    def _progress(self, cell: Cell) -> Path:
        return self.cells / "unfinished" / cell.series[:16]

    def write_batch(self, cell: Cell, first: int, records: pd.DataFrame) -> None:
        """Keep the records of a finished batch of an unfinished cell."""
        folder = self._progress(cell)
        folder.mkdir(parents=True, exist_ok=True)
        self._write(folder / f"{first:06d}-{first + len(records):06d}.parquet", cell, records)

    def batches(self, cell: Cell, images: bool = False) -> dict[tuple[int, int], pd.DataFrame]:
        """Finished batches by (first row, end row): from unfinished work, from smaller or larger sample sets, and from
        the tier that has the same adversarial images.

        With ``images``, only those that hold their adversarial images.
        """
        found: dict[tuple[int, int], pd.DataFrame] = {}
        for path in sorted(self._progress(cell).glob("*.parquet")):
            records = self._read(path)
            if "adversarial" in records or not images or cell.evaluation not in PICTURED:
                found[_rows(path)] = records if images else records.drop(columns=ADVERSARIAL, errors="ignore")
        if images and cell.evaluation in PICTURED:
            return found
        for other in self._relatives(cell):
            records = self.read(other)
            for first in range(0, other.samples, cell.batch_size):
                end = min(first + cell.batch_size, other.samples)
                found[first, end] = records.iloc[first:end]
        if cell.paper_twin:
            shared = {rows: as_strict(records) for rows, records in self.batches(cell.paper_twin).items()}
            found = {**shared, **found}
        return found

    def _relatives(self, cell: Cell) -> list[Cell]:
        relatives = []
        for path in self.cells.glob("*.parquet"):
            metadata = self._readable(pq.read_schema, path).metadata or {}
            if b"adp-benchmark" in metadata:
                other = replace(cell_from(json.loads(metadata[b"adp-benchmark"])), published=None)
                if other.series == cell.series:
                    relatives.append(other)
        return relatives


def _rows(path: Path) -> tuple[int, int]:
    """First row and end row of a batch, from its file's name."""
    first, end = map(int, path.stem.split("-"))
    return first, end
