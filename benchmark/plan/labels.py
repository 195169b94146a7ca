"""``Ours=SPEC``: a defense with a label, which is its name in every table and figure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark.ensembles.own_labels import own_label
from benchmark.machine.terminal import visible
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.plan.grid import Grid

SPEC_MARKS = "(/\\:"
"""A text with one of these characters before the first ``=`` has no label: they belong to a spec or a path."""


def read_label(text: str) -> tuple[str, str]:
    """Label and spec of ``Label=SPEC``; the label is empty if there is none."""
    label, equals, spec = (part.strip() for part in text.partition("="))
    if not equals or any(mark in label for mark in SPEC_MARKS) or _is_path(text):
        return "", text
    if not label or not spec:
        raise BadInput(f"cannot read {text!r}; write LABEL=DEFENSE, such as Ours=mine.py:Mine")
    return visible(label), spec


def read_labels(texts: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The distinct specs in their order, and a dictionary from spec to label."""
    labels: dict[str, str] = {}
    for label, spec in map(read_label, texts):
        if labels.setdefault(spec, label) != label:
            raise BadInput(f"{spec} has two labels, {labels[spec] or spec!r} and {label or spec!r}; give it one")
    return tuple(labels), {spec: label for spec, label in labels.items() if label}


def _is_path(text: str) -> bool:
    """True for a file or folder with ``=`` in its name."""
    return os.path.exists(text) or os.path.exists(text.partition(":")[0])


@dataclass(frozen=True)
class LabelledColumn:
    """A requested column. On each dataset, a label names one ensemble, and an ensemble has one label."""

    dataset: str
    label: str
    ensemble: tuple[str, ...]
    fixed: bool
    """False if the label is a trained model's file name; if two such labels are equal, the second becomes the path."""

    @classmethod
    def of(cls, grid: Grid, spec: str) -> LabelledColumn:
        """The column of a defense in a grid."""
        outside = is_checkpoint(spec)
        ensemble = (spec,) if outside else (canonical(spec), f"{grid.members} × {grid.network}", grid.recipe)
        given = grid.labels.get(spec, "")
        return cls(grid.dataset, given or own_label(spec), ensemble, bool(given) or not outside)

    def check_beside(self, other: LabelledColumn) -> None:
        """Refuse two ensembles with one label, and one ensemble with two labels."""
        if self.dataset != other.dataset or not (self.fixed or other.fixed):
            return
        words = " and ".join(", ".join(one.ensemble) for one in (other, self))
        if self.label == other.label and self.ensemble != other.ensemble:
            raise BadInput(
                f"label {self.label!r} on {self.dataset} names two ensembles, {words}; "
                "give each its own label, Label=SPEC"
            )
        if self.label != other.label and self.ensemble == other.ensemble:
            raise BadInput(
                f"{other.label!r} and {self.label!r} are one defense, {', '.join(self.ensemble)}; give it one label"
            )


def canonical(spec: str) -> str:
    """The spec of a cell: the canonical form of a defense, or a checkpoint as the user wrote it."""
    return spec if is_checkpoint(spec) else parse_defense(spec).text
