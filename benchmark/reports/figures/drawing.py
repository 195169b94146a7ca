"""How figures look and are kept: one style, SVG and PNG beside the CSV they were drawn from, always the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure as Canvas

from defenses.files import write_text, write_with

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's palette: told apart by colour-blind readers; line styles tell them apart in grey."""
STYLES = ("-", "--", "-.", ":")
WIDTH = 6.75
"""Text width of a two-column paper, in inches."""

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "adp-benchmark",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Figure:
    """A drawn figure, what it shows in words, and the numbers it was drawn from."""

    name: str
    title: str
    words: str
    """What a reader who cannot see the figure should know."""
    canvas: Canvas
    data: pd.DataFrame


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this; what a reader's own matplotlibrc says does not count."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)  # type: ignore[arg-type]
        yield


def canvas(height: float, width: float = WIDTH) -> Canvas:
    """An empty figure that never goes through pyplot's global state."""
    return Canvas(figsize=(width, height), layout="constrained")


def look(position: int) -> dict[str, Any]:
    """Colour and line style of the n-th of several things."""
    return {"color": COLOURS[position % len(COLOURS)], "linestyle": STYLES[position % len(STYLES)]}


def keep(folder: Path, figures: Sequence[Figure], say: Callable[[str], None] = lambda words: None) -> None:
    """Write every figure as SVG and PNG with its CSV; nothing in the files depends on when or where.

    Figures of an earlier report that this one does not have are removed: they show what is no longer in the tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.svg"):
        old = [path.with_name(f"{path.name[:-4]}.{kind}") for kind in ("svg", "png", "csv")]
        if all(map(Path.is_file, old)) and path.name[:-4] not in {figure.name for figure in figures}:
            for other in old:
                other.unlink()
    for number, figure in enumerate(figures, 1):
        say(f"writing figure {number} of {len(figures)}")
        with style():
            for _ in range(2):  # panels of fixed shape find their places at the second drawing; there they stay
                figure.canvas.draw_without_rendering()
            figure.canvas.set_layout_engine("none")
            for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                write_with(
                    folder / f"{figure.name}.{kind}",
                    lambda path, kind=kind, metadata=metadata, figure=figure: figure.canvas.savefig(  # type: ignore[misc]
                        path, format=kind, metadata=metadata
                    ),
                )
        write_text(folder / f"{figure.name}.csv", figure.data.to_csv(index=False, lineterminator="\n"))


def seed_mark(seed: int) -> str:
    """What tells figures of several seeds apart; the first one needs no mark."""
    return f"seed{seed}" if seed else ""


def slug(*words: str) -> str:
    """A file name from words."""
    return "-".join("".join(c if c.isalnum() or c in ".+=" else "-" for c in word).strip("-") for word in words if word)
