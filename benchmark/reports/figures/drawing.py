"""The style and the files of figures: one style, widths of a paper's columns, and reproducible bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.markers import TICKDOWN, TICKLEFT
from matplotlib.textpath import text_to_path

from benchmark.machine.file_names import shortened
from benchmark.reports import escaping
from defenses.errors import BadInput
from defenses.files import write_text, write_with

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's palette, which colour-blind readers can distinguish; in grey, line styles distinguish the curves."""
STYLES = ("-", "--", "-.", ":")
COLUMN, WIDTH = 3.25, 6.75
"""Widths of one column and of both columns of a paper, in inches."""
DPI = 200
"""Pixels of a PNG per inch."""
SMALL = 7
"""Size of tick labels and legends, in points."""
NARROWEST = 2.0
"""Smallest width of the panels in inches, for labels of any length."""
Places = Sequence[tuple[float, float]]

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.titley": 1.0,  # fixed: otherwise every drawing measures all tick labels to place titles above them
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "text.parse_math": False,  # a dollar sign in a name is not math
    "figure.dpi": 100,
    "savefig.dpi": DPI,
    "svg.hashsalt": "adp-benchmark",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType fonts: publishers refuse Type 3 fonts
}

KINDS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": None}},
    "png": {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 2}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
"""The options for writing a figure: files do not depend on time or machine; a PNG is written in a third of the time and
is a little larger."""
ALWAYS = ("svg", "png")
"""The formats of every figure; the others are written on request."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure, its description in words, and its data."""

    name: str
    title: str
    words: str
    """The description for a reader who cannot see the figure."""
    canvas: Canvas
    data: pd.DataFrame
    narrow: Canvas | None = None
    """The drawing for a phone, if there is one; only the page uses it."""

    def narrow_svg(self) -> bytes:
        """The drawing for a phone; empty if there is none."""
        if self.narrow is None:
            return b""
        with style(), BytesIO() as stream:
            self.narrow.savefig(stream, format="svg", **KINDS["svg"])
            return stream.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Set the style of figures inside; the user's own matplotlibrc is ignored."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # the figure shows a box there
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)  # type: ignore[arg-type]
        yield


def canvas(height: float, width: float = WIDTH) -> Canvas:
    """An empty figure that does not use pyplot's global state."""
    return Canvas(figsize=(width, height))


def margins(figure: Canvas, *, left: float, right: float = 0.07, top: float = 0.07, bottom: float = 0.42) -> None:
    """Set the margins around the panels, in inches; the figure is widened if they leave too little room for the panels.

    A layout engine would find the margins itself, but it draws the figure several times to do so.
    """
    width, height = figure.get_size_inches()
    width = max(width, left + right + NARROWEST)
    figure.set_size_inches(width, height)
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)


def sheet(
    height: float, width: float = WIDTH, *, left: float = 0.0, top: float = 0.0, unit: tuple[float, float]
) -> tuple[Canvas, Axes]:
    """A figure with one invisible axes over the whole area, shared by many small panels: one axes per panel is slow.

    ``left`` and ``top`` (the origin) and ``unit`` (the size of a unit) are in inches; y grows downwards.
    """
    wide, tall = unit
    x, y = (-left / wide, (width - left) / wide), ((height - top) / tall, -top / tall)
    figure = canvas(height, width)
    axis = figure.add_axes((0, 0, 1, 1), xlim=x, ylim=y)
    axis.set_axis_off()
    return figure, axis


def frames(axis: Axes, corners: Places, size: tuple[float, float], x: Sequence[float], y: Sequence[float]) -> None:
    """Draw the left and lower spines of equal panels, with ticks at distances x and y from each lower left corner."""
    spines = [[(left, low - size[1]), (left, low), (left + size[0], low)] for left, low in corners]
    axis.add_collection(LineCollection(spines, colors="black", linewidths=0.6), autolim=False)
    lefts, lows = np.array(corners, dtype=float).T
    mark: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": 3.5, "markeredgewidth": 0.6}
    axis.plot(np.add.outer(lefts, x).ravel(), lows.repeat(len(x)), marker=TICKDOWN, **mark)
    axis.plot(lefts.repeat(len(y)), np.subtract.outer(lows, y).ravel(), marker=TICKLEFT, **mark)


def text_width(texts: Iterable[str], size: float = SMALL) -> float:
    """Width of the widest line, in inches."""
    return max((_line_width(line, size) for text in texts for line in text.split("\n")), default=0.0)


@lru_cache(maxsize=1000)
def _line_width(line: str, size: float) -> float:
    with style():
        points, *_ = text_to_path.get_text_width_height_descent(line, FontProperties(size=size), False)
    return 1.03 * float(points) / 72  # hinting for few pixels makes letters wider


def legend_width(labels: Iterable[str]) -> float:
    """Width of a legend with one column, in inches."""
    return text_width(labels) + 0.4


def legend_columns(labels: Sequence[str], most: int = 4, width: float = WIDTH) -> int:
    """The number of legend columns that fit into the width of a figure."""
    for columns in range(min(len(labels), most), 1, -1):
        parts = np.array_split(np.array(labels, dtype=object), columns)  # as matplotlib fills the columns
        if sum(legend_width(part) + 0.07 for part in parts) < width:
            return columns
    return 1


def column_figure(high: float, labels: Sequence[str], *, left: float = 0.5) -> tuple[Canvas, Axes]:
    """A panel of height ``high`` in one column of a paper, with room below for the x label and for `legend_below`."""
    columns = legend_columns(labels, 3, COLUMN)
    width = max(COLUMN, legend_width(labels) + 0.1 if columns == 1 else COLUMN)
    bottom = 0.42 + legend_height(-(-len(labels) // columns))
    figure = canvas(0.07 + high + bottom, width)
    margins(figure, left=left, bottom=bottom)
    return figure, figure.subplots()


def legend_below(figure: Canvas, labels: Sequence[str]) -> None:
    """The legend of a figure made by `column_figure`, for the same labels."""
    figure.legend(loc="lower center", ncols=legend_columns(labels, 3, COLUMN), borderaxespad=0.3)


def legend_height(lines: int) -> float:
    """Height of a legend with this number of lines, in inches."""
    return 0.155 * lines + 0.1


def look(position: int) -> dict[str, Any]:
    """Colour and line style of the curve with this number."""
    return {"color": COLOURS[position % len(COLOURS)], "linestyle": STYLES[position % len(STYLES)]}


def check_kind(kind: str) -> str:
    """Check a file format that figures are written in on request."""
    more = [name for name in KINDS if name not in ALWAYS]
    if kind and kind not in more:
        raise BadInput(f"figures are {kind!r}; beside SVG and PNG, they can be {' or '.join(more)}")
    return kind


def keep(
    folder: Path, figures: Sequence[Figure], say: Callable[[str], None] = lambda words: None, also: str = ""
) -> None:
    """Write every figure as SVG and PNG, and as ``also``, with its CSV; the files do not depend on time or machine.

    Figures of an earlier report that are not in this one are removed, because they do not match the tables. An existing
    PDF is written again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.svg"):
        old = [path.with_name(f"{path.name[:-4]}.{kind}") for kind in ("svg", "png", "csv")]
        if all(map(Path.is_file, old)) and path.name[:-4] not in {figure.name for figure in figures}:
            for other in (*old, path.with_name(f"{path.name[:-4]}.pdf")):
                other.unlink(missing_ok=True)
    for number, figure in enumerate(figures, 1):
        say(f"writing figure {number} of {len(figures)}")
        with style():
            for kind, how in KINDS.items():
                path = folder / f"{figure.name}.{kind}"
                if kind not in (*ALWAYS, also) and not path.is_file():
                    continue
                write_with(
                    path,
                    lambda path, kind=kind, how=how, figure=figure: figure.canvas.savefig(  # type: ignore[misc]
                        path, format=kind, **how
                    ),
                )
        write_text(folder / f"{figure.name}.csv", escaping.csv(figure.data))


def seed_mark(seed: int) -> str:
    """The part of a figure's name that identifies its seed; empty for seed 0."""
    return f"seed{seed}" if seed else ""


def slug(*words: str) -> str:
    """A file name from words."""
    named = ("".join(c if c.isalnum() or c in ".+=" else "-" for c in word).strip("-") for word in words if word)
    return shortened("-".join(named))


def distinct(figures: Iterable[Figure]) -> list[Figure]:
    """The figures with distinct names: `slug` gives a|b and a/b one name, and some file systems ignore case."""
    found: dict[str, Figure] = {}
    for figure in figures:
        name, number = figure.name, 2
        while name.casefold() in found:
            name, number = f"{figure.name}-{number}", number + 1
        found[name.casefold()] = replace(figure, name=name)
    return [*found.values()]
