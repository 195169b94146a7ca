"""Records: one row per image of a cell. This file defines every column with its type and its meaning.

An evaluation uses `RECORDS` unchanged, or adds its own columns. `Schema.frame` is the only constructor.
`Schema.complete` adds the columns that older versions did not write, so that a reader finds every column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FLAGS = ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient")
"""Findings of the verification of an image."""
JUDGED = ("unstable", "wrong_way", "never_left", "undefined")
"""Findings of the checks of an attack; null if an image was not checked."""
NORMS = ("linf", "l2", "l1", "l0")
COSTS = ("forwards", "backwards", "seconds")
PICTURES = ("image_adversarial", "shape", "members")
"""Columns for the display of the first attacked images; the store keeps them in a separate file."""
AFRESH = ("strict_prediction", "strict_p_correct")
"""In tier paper, for a model with random output: prediction and probability of a correct one by the rules of strict."""
SUCCESSES = ("adversarial", "adversarial_shape")
"""Adversarial images that fool the ensemble, in full precision; the store keeps them in a separate file."""


class Span(NamedTuple):
    """Images ``first`` to ``end`` in the order of a cell: one batch."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first

    @property
    def rows(self) -> slice:
        return slice(self.first, self.end)


@dataclass(frozen=True)
class Column:
    """A column of the records; ``{member}`` in its name stands for ``net1``, ``net2``, … and ``ensemble``."""

    name: str
    kind: str
    """A pandas type; ``object`` for lists."""
    meaning: str
    default: Any = None


@dataclass(frozen=True)
class Schema:
    """The columns of an evaluation's records."""

    columns: tuple[Column, ...]

    def plus(self, *columns: Column) -> Schema:
        """This schema with more columns."""
        return Schema((*self.columns, *columns))

    def frame(self, span: Span, values: Mapping[str, Any]) -> pd.DataFrame:
        """Records of a batch; a missing column gets its default."""
        return self.complete(pd.DataFrame({"index": np.arange(span.first, span.end), **values}))

    def complete(self, records: pd.DataFrame) -> pd.DataFrame:
        """The records with every fixed column in its type; columns of members follow unchanged."""
        fixed = [column for column in self.columns if "{member}" not in column.name]
        kinds: Any = {c.name: c.kind for c in fixed if c.name in records and records[c.name].dtype != c.kind}
        found = records.astype(kinds) if kinds else records
        missing = {c.name: self._default(c, records) for c in fixed if c.name not in records and c.kind != "object"}
        found = found.assign(**missing) if missing else found
        names = [column.name for column in fixed if column.name in found]
        return found[[*names, *(name for name in found if name not in names)]]

    def _default(self, column: Column, records: pd.DataFrame) -> Any:
        kind: Any = column.kind
        if column.name == "adversarial_prediction":  # without an attack, that of the clean image
            return records["clean_prediction"].astype(kind)
        if column.name in CERTAIN:  # without randomness, probabilities are 0 or 1
            return CERTAIN[column.name](records).astype(kind)
        if column.default is None:
            raise ValueError(f"the records have no column {column.name!r}, which every record needs")
        return pd.Series(column.default, index=records.index, dtype=kind)


RECORDS = Schema(
    (
        Column("index", "int64", "place of the image in the order of the cell: in file order, its row in the test set"),
        Column("label", "int64", "true class"),
        Column("clean_prediction", "int64", "class predicted for the clean image"),
        Column("target", "int64", "class that a targeted attack aims at, or -1", -1),
        Column("attacked", "bool", "whether the image was attacked", False),
        Column("adversarial_prediction", "int64", "class predicted for the adversarial image"),
        Column("correct", "bool", "whether the image counts as classified correctly, by the rules of the evaluation"),
        Column("p_clean", "float64", "probability of a right prediction of the clean image; 0 or 1 without randomness"),
        Column("p_correct", "float64", "probability that the image counts as classified correctly; likewise"),
        Column("unmoved", "bool", "the attack returned the clean image", False),
        Column("not_finite", "bool", "the attack returned NaN or infinity; the clean image was taken instead", False),
        Column("out_of_box", "bool", "the attack left [0, 1]; the image was clipped", False),
        Column("out_of_ball", "bool", "the attack left its bound; the image was projected", False),
        Column("zero_gradient", "bool", "the first gradient was zero or not finite", False),
        Column("unstable", "boolean", "the model gave two different outputs for the same pixels", pd.NA),
        Column("wrong_way", "boolean", "the margin moved against the attack's goal", pd.NA),
        Column("never_left", "boolean", "the attack never showed the model a changed image", pd.NA),
        Column("undefined", "boolean", "the model's output was not a number while the image was attacked", pd.NA),
        Column("linf", "float64", "L∞ norm of the perturbation", 0.0),
        Column("l2", "float64", "L2 norm of the perturbation", 0.0),
        Column("l1", "float64", "L1 norm of the perturbation", 0.0),
        Column("l0", "float64", "number of scalars changed", 0.0),
        Column("forwards", "float64", "forward passes, shared evenly by the images of a batch", 0.0),
        Column("backwards", "float64", "backward passes, shared evenly", 0.0),
        Column("seconds", "float64", "seconds, shared evenly", 0.0),
        Column("batch_size", "int64", "images in the batch that ran", 0),
    )
)


def judged(records: pd.DataFrame, name: str) -> pd.Series[bool] | None:
    """A column of `JUDGED` with null as False; None if no image was checked."""
    values = records[name]
    return values.fillna(False).astype(bool) if values.notna().any() else None


def was_right(records: pd.DataFrame) -> pd.Series[bool]:
    """Images that were classified correctly before the attack; for a randomised model, by its expected output."""
    return records["clean_prediction"] == records["label"]


CERTAIN: dict[str, Callable[[pd.DataFrame], pd.Series[bool]]] = {
    "p_clean": was_right,
    "p_correct": lambda records: records["correct"],
}
"""Probabilities of a model that is not randomised."""
