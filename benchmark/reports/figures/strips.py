"""Clean images, adversarial images and the perturbation, amplified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings import naming
from benchmark.findings.results import Results
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import DPI, Figure, sheet, slug, style, text_width

IMAGES = 5
SIDE, GAP, HEAD, LINE = 104, 16, 40, 22
"""Pixels of the PNG: side of a thumbnail at most, gap between two, room above one, line of an attack's name."""
EIGHTH = DPI // 8
"""Figures are whole eighths of an inch large: these are exact as floats, so no pixel of the PNG is lost to rounding."""
TEXT = 6.5
LONGEST_NAME = 12
"""Letters of a class's name that are shown."""

Picture = NDArray[np.float64]
"""Channels first, between 0 and 1."""
Thumbnail = NDArray[np.uint8]
"""Channels last, always in colour."""
MARK, EDGE = (179, 64, 31), 5
"""Colour and width in pixels of the frame around an image that is misclassified."""


class Tile(NamedTuple):
    """A thumbnail, the words above it, and whether the ensemble misclassifies it."""

    thumbnail: Thumbnail
    words: str
    wrong: bool = False


Line = dict[int, Tile]
"""Tiles by column."""


@dataclass(frozen=True)
class _Look:
    """A clean image, its adversarial image, and the predictions of the ensemble and its members for the latter."""

    image: int
    label: int
    clean: Picture
    adversarial: Picture
    prediction: int
    votes: str
    said: str
    """The true class, in words."""
    told: str
    """The predicted class, in words."""

    @property
    def largest(self) -> float:
        return float(np.abs(self.adversarial - self.clean).max())

    @property
    def difference(self) -> Picture:
        """The perturbation, amplified to the full range; grey means no difference."""
        return np.asarray(0.5 + (self.adversarial - self.clean) / max(2 * self.largest, 1e-12))


def strip_figures(results: Results) -> list[Figure]:
    """A figure per dataset and defense of tier strict, a line per attack; none if no images are stored."""
    figures = []
    wanted = [cell for cell in results.of(WhiteBox) if cell.task.tier == "strict"]
    for dataset, defense in dict.fromkeys((cell.images.dataset, cell.ensemble.defense) for cell in wanted):
        chosen: dict[str, Cell] = {}
        for cell in wanted:
            if (cell.images.dataset, cell.ensemble.defense) == (dataset, defense):
                chosen.setdefault(cell.task.name, cell)  # the first strength of each attack
        found = [(cell, looks) for cell in chosen.values() if (looks := _looks(results, cell))]
        if found:
            figures.append(_strip(dataset, defense, found))
    return figures


def _strip(dataset: str, defense: str, lines: list[tuple[Cell, list[_Look]]]) -> Figure:
    data = [
        {
            "attack": f"{cell.task.name}({cell.task.parameters})",
            "image": look.image,
            "label": look.label,
            "prediction": look.prediction,
            "members": look.votes,
            "largest_change": round(look.largest, 6),
        }
        for cell, looks in lines
        for look in looks
    ]
    fooled = sum(row["prediction"] != row["label"] for row in data)
    names = [_words(cell) for cell, _ in lines]
    clean = {2 * column: Tile(_thumbnail(look.clean), look.said) for column, look in enumerate(lines[0][1])}
    figure = _draw(["clean", *names], [clean, *(_line(looks) for _, looks in lines)])
    words = (
        "Top row: clean images with their class. Below, for each attack, the adversarial image with the ensemble's "
        "prediction and the members' predictions in parentheses; a red frame marks an image that the ensemble "
        f"misclassifies ({fooled} of {len(data)}). To its right: the perturbation, amplified to full range, with its "
        "largest value."
    )
    title = f"Adversarial images: {naming.defense(defense)} on {naming.dataset(dataset)}, tier strict"
    return Figure(slug("attacks", dataset, defense), title, words, figure, pd.DataFrame(data))


def _words(cell: Cell) -> str:
    """An attack and its parameters, a line each."""
    return escaping.figure(naming.attack(cell.task.name, cell.task.parameters)).replace(", ", chr(10))


def _looks(results: Results, cell: Cell) -> list[_Look]:
    pictures = results.pictures(cell)
    if pictures is None:
        return []
    index, clean = pictures.index[:IMAGES], pictures.clean
    if clean is None:
        kept = results.clean_pictures(cell.images)
        if kept is None:
            return []
        clean = kept[index]
    records = results.records[cell].set_index("index").loc[index]
    votes = [[]] * len(index) if pictures.members is None else pictures.members.tolist()
    looks = []
    for place, row in enumerate(index):
        label = int(records["label"].iloc[place])
        prediction = int(records["adversarial_prediction"].iloc[place])
        found = _Look(
            image=int(row),
            label=label,
            clean=clean[place].astype(float),
            adversarial=pictures.adversarial[place].astype(float),
            prediction=prediction,
            votes="/".join(map(str, votes[place])),
            said=_class_words(results, cell, label, "class "),
            told=_class_words(results, cell, prediction),
        )
        looks.append(found)
    return looks


def _class_words(results: Results, cell: Cell, label: int, before: str = "") -> str:
    """A class by its name, cut to the width of a thumbnail, or by its number."""
    name = results.class_name(cell.images.dataset, label)
    if name == str(label):
        return f"{before}{label}"
    return escaping.figure(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…")


def _line(looks: list[_Look]) -> Line:
    line = {}
    for column, look in enumerate(looks):
        votes = f" ({look.votes})" if look.votes else ""
        line[2 * column] = Tile(_thumbnail(look.adversarial), f"{look.told}{votes}", look.prediction != look.label)
        line[2 * column + 1] = Tile(_thumbnail(look.difference), f"±{look.largest:.2g}")
    return line


def _draw(names: list[str], lines: list[Line]) -> Canvas:
    """All thumbnails in one image on a sheet, in units of a pixel."""
    tiles = [tile for line in lines for tile in line.values()]
    tall, wide = max((tile.thumbnail.shape[:2] for tile in tiles), default=(SIDE, SIDE))
    longest = max((tile.words for tile in tiles), key=len, default="")
    step = max(wide + GAP, round(DPI * (text_width([longest], TEXT) + text_width(["±0.0001"], TEXT)) / 2))
    left = round(DPI * text_width(names, TEXT)) + 2 * GAP
    heights = [HEAD + max(tall, LINE * len(name.splitlines())) for name in names]
    height, width = (-(-size // EIGHTH) * EIGHTH for size in (sum(heights) + GAP, left + 2 * IMAGES * step))
    mosaic = np.full((height, width, 4), 255, dtype=np.uint8)
    with style():
        figure, axis = sheet(height / DPI, width / DPI, unit=(1 / DPI, 1 / DPI))
        for position, (name, line) in enumerate(zip(names, lines, strict=True)):
            middle = sum(heights[:position]) + (heights[position] + HEAD) // 2
            axis.text(left - GAP, middle, name, fontsize=TEXT, ha="right", va="center")
            for column, tile in line.items():
                x, y = left + column * step, middle - tall // 2
                if tile.wrong:
                    mosaic[y - EDGE : y + tall + EDGE, x - EDGE : x + wide + EDGE, :3] = MARK
                mosaic[y : y + tall, x : x + wide, :3] = tile.thumbnail
                axis.text(x + wide / 2, y - 5 - EDGE, tile.words, fontsize=TEXT, ha="center")
        axis.imshow(mosaic, extent=(0, width, height, 0), aspect="auto", interpolation="none")
    return figure


def _thumbnail(picture: Picture) -> Thumbnail:
    """An image enlarged by a whole factor, or a large image with pixels left out."""
    every = -(-max(picture.shape[1:]) // SIDE)
    picture = picture[:, ::every, ::every]
    times = SIDE // max(picture.shape[1:])
    colour = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    return (255 * colour.clip(0, 1)).round().astype(np.uint8).repeat(times, axis=0).repeat(times, axis=1)
