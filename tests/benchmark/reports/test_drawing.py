"""Figures are laid out in inches: one axes for many panels, no label cut off, every pixel as large as the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.pictures import Pictures
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import member_name
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.transfer_rates import transfer_table
from benchmark.reports.figures.curves import curve_figures
from benchmark.reports.figures.diversity_pictures import diversity_figures
from benchmark.reports.figures.drawing import WIDTH, Figure, legend_columns, legend_width, text_width
from benchmark.reports.figures.heatmaps import transfer_figures
from benchmark.reports.figures.strips import IMAGES, MARK, strip_figures

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
LONG = "label-smoothing-0.6+adp-2-0.5-with-a-name-longer-than-any"


def _strict(text: str) -> WhiteBox:
    return WhiteBox(parse_attack(text), "strict")


def _pictured(results: Results, side: int, members: int = 3) -> Results:
    """The results with five pictures for every cell."""
    draws = np.random.default_rng(side)
    clean, adversarial = draws.random((2, 6, 1, side, side)).astype(np.float16)
    votes = np.full((IMAGES, members), 7)
    pictures = Pictures(np.arange(IMAGES), adversarial[:IMAGES], votes)
    return replace(results, pictures=lambda cell: pictures, clean_pictures=lambda checksum: clean)


@pytest.mark.parametrize("attacks", [1, 4])
def test_a_strip_has_one_axes_however_many_attacks_it_shows(
    attacks: int, make_cell: MakeCell, make_results: MakeResults
) -> None:
    names = ("fgsm", "bim", "pgd", "mim")[:attacks]
    cells = [make_cell(_strict(f"{name}(eps=0.1)"), samples=6) for name in names]
    (figure,) = strip_figures(_pictured(make_results([(cell, {}) for cell in cells]), 8))
    (axis,) = figure.canvas.axes
    assert len(axis.images) == 1 and len(figure.data) == attacks * IMAGES
    assert len(axis.texts) == attacks * (2 * IMAGES + 1) + IMAGES + 1, "two above every pair, and the names of lines"


@pytest.mark.parametrize("side", [8, 28, 32, 300])
def test_a_strip_shows_every_pixel_as_large_as_the_next(
    side: int, make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(_strict("fgsm(eps=0.1)"), samples=6)
    (figure,) = strip_figures(_pictured(make_results([(cell, {})]), side))
    mosaic = np.asarray(figure.canvas.axes[0].images[0].get_array())
    assert tuple(mosaic.shape[1::-1]) == tuple(200 * figure.canvas.get_size_inches()), "a pixel of the PNG is its own"
    lines = np.flatnonzero((mosaic[..., :3] != 255).any(axis=(1, 2)))
    first = lines[: np.flatnonzero(np.diff(lines, append=10**6) > 1)[0] + 1]
    assert 70 < len(first) <= 104 and (len(first) % side == 0 or side > 104)


def test_a_strip_frames_the_images_that_are_misclassified_and_no_others(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(_strict("fgsm(eps=0.1)"), samples=6)
    columns = {"label": np.full(6, 3), "adversarial_prediction": np.array([3, 4, 3, 4, 4, 3])}
    (figure,) = strip_figures(_pictured(make_results([(cell, columns)]), 8))
    mosaic = np.asarray(figure.canvas.axes[0].images[0].get_array())
    red = (mosaic[..., :3] == MARK).all(axis=2)
    assert (figure.data["prediction"] != figure.data["label"]).sum() == 3 and "3 of 5" in figure.words
    starts = np.flatnonzero(np.diff(red.any(axis=0).astype(int), prepend=0) == 1)
    assert len(starts) == 3, "a frame for each, around the adversarial image alone"


def _diverse(members: int, samples: int = 30) -> dict[str, Any]:
    draws = np.random.default_rng(members)
    columns: dict[str, Any] = {"label": np.arange(samples) % 10, "clean_prediction": np.arange(samples) % 10}
    columns["led"] = -draws.random(samples)
    for k in range(members):
        columns[f"probabilities_{member_name(k)}"] = list(draws.dirichlet(np.ones(10), samples))
        columns[f"tsne_{member_name(k)}"] = list(draws.random((samples, 2)))
    return columns


def _long_figures(make_cell: MakeCell, make_results: MakeResults) -> list[Figure]:
    """A figure of most kinds whose labels are longer than usual."""
    curves = [make_cell(_strict(f"pgd(eps={eps})"), f"{LONG}-{n}") for n in range(20) for eps in (0.1, 0.2, 0.3)]
    figures = curve_figures(Layout(make_results([(cell, {}) for cell in curves])))
    texts = [f"{name}(eps=0.1,steps=1000,step_size=0.00123)" for name in ("pgd", "mim")]
    attacks = [make_cell(_strict(text), LONG, samples=6) for text in texts]
    figures += strip_figures(_pictured(make_results([(cell, {}) for cell in attacks]), 8, members=10))
    pgd = parse_attack("pgd(eps=0.1)")
    transfers = [make_cell(Transfer(pgd, 1), f"{LONG}-{n}", samples=10) for n in range(3)]
    predictions = {f"{kind}_{name}": 3 for kind in ("prediction", "clean") for name in ("net1", "net2", "ensemble")}
    figures += transfer_figures(transfer_table(make_results([(cell, predictions) for cell in transfers])))
    diverse = [make_cell(Diversity(), f"{LONG}-{members}", members=members, samples=30) for members in (2, 10)]
    figures += diversity_figures(make_results([(cell, _diverse(cell.ensemble.members)) for cell in diverse]))
    return figures


def test_no_label_is_cut_off_however_long(make_cell: MakeCell, make_results: MakeResults) -> None:
    figures = _long_figures(make_cell, make_results)
    assert len(figures) == 6
    for figure in figures:
        drawn = figure.canvas.get_tightbbox().extents  # in inches
        assert (drawn[:2] > -1e-6).all() and (drawn[2:] < figure.canvas.get_size_inches() + 1e-6).all(), figure.name


def test_a_legend_has_as_many_columns_as_fit() -> None:
    assert legend_columns(["a", "b", "c"]) == 3
    assert legend_columns(["a"] * 9) == 4
    wide = "x" * 60
    assert WIDTH / 2 < legend_width([wide]) < WIDTH and legend_columns([wide, wide]) == 1
    assert text_width([]) == 0 and text_width(["a\nlonger", "b"]) == text_width(["longer"])
