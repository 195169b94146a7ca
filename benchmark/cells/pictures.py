"""A few adversarial images of every cell for display, in a file beside the records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from numpy.typing import NDArray

from benchmark.cells.cell import TestImages
from defenses.errors import BadInput

LEGACY = ("image_clean",)
"""Columns in records of the first version, which stored the clean image in every cell."""


@dataclass(frozen=True)
class Pictures:
    """Adversarial images by the `index` of their clean image, and the predictions of each member."""

    index: NDArray[np.int64]
    adversarial: NDArray[np.float16]
    members: NDArray[np.int64] | None
    clean: NDArray[np.float16] | None = None
    """Only from files of the first version; a run keeps clean images once."""

    def to_bytes(self) -> bytes:
        content: dict[str, NDArray[np.generic]] = {"index": self.index, "adversarial": self.adversarial}
        if self.members is not None:
            content["members"] = self.members
        return safetensors.numpy.save(content)

    def columns(self, records: pd.DataFrame) -> dict[str, pd.Series[Any]]:
        """The pictures as columns of records; rows without a picture are empty."""
        places = [int(np.flatnonzero(records["index"] == row)[0]) for row in self.index]
        found: dict[str, list[Any]] = {
            "image_adversarial": [picture.tobytes() for picture in self.adversarial],
            "shape": [list(self.adversarial.shape[1:])] * len(places),
        }
        if self.members is not None:
            found["members"] = self.members.tolist()
        rows = records.index[places]
        return {name: pd.Series(values, rows, dtype=object).reindex(records.index) for name, values in found.items()}

    @classmethod
    def from_file(cls, path: Path) -> Pictures:
        try:
            content = safetensors.numpy.load(path.read_bytes())
            return cls(content["index"], content["adversarial"], content.get("members"))
        except (safetensors.SafetensorError, KeyError) as error:
            raise BadInput(f"{path} cannot be read ({error}); delete it and run again") from None


def picture_columns(records: pd.DataFrame) -> Pictures | None:
    """The pictures among the columns of records, if there are any."""
    if "image_adversarial" not in records:
        return None
    kept = records[records["image_adversarial"].notna()]
    if kept.empty:
        return None
    shape = [int(size) for size in kept["shape"].iloc[0]]

    def stacked(name: str) -> NDArray[np.float16]:
        return np.stack([np.frombuffer(content, dtype=np.float16).reshape(shape) for content in kept[name]])

    members = kept["members"].tolist() if "members" in kept else None
    return Pictures(
        kept["index"].to_numpy(dtype=np.int64),
        stacked("image_adversarial"),
        np.array([list(votes) for votes in members], dtype=np.int64) if members else None,
        stacked("image_clean") if "image_clean" in kept and kept["image_clean"].notna().all() else None,
    )


def clean_file(folder: Path, images: TestImages) -> Path:
    """The file of a run with the first clean images of a dataset."""
    order = "" if images.order == "file" else f"-{images.order}"
    return folder / f"clean-{images.checksum[:16]}{order}.pictures"
