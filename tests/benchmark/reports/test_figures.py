"""Figures say in words what they show, draw as far as the images go, and never write over each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.tier_gap import gap_table
from benchmark.findings.transfer_rates import transfer_table
from benchmark.reports.figures.curves import curve_figures
from benchmark.reports.figures.diversity_pictures import diversity_figures
from benchmark.reports.figures.drawing import Figure, keep
from benchmark.reports.figures.gap import gap_figures
from benchmark.reports.figures.heatmaps import transfer_figures

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


# --- curves ---


@pytest.fixture
def drawn(make_cell: MakeCell, make_results: MakeResults) -> Callable[..., list[Figure]]:
    """Curves of PGD at three strengths, by what each defense keeps of 50 images."""

    def make(right: dict[str, tuple[int, ...]], attack: str = "pgd(eps={})") -> list[Figure]:
        finished = [
            (make_cell(WhiteBox(parse_attack(attack.format(eps)), "strict"), name), {"correct": np.arange(50) < count})
            for name, counts in right.items()
            for eps, count in zip((0.1, 0.2, 0.3), counts, strict=True)
        ]
        return curve_figures(Layout(make_results(finished)))

    return make


def test_a_curve_that_does_not_fall_is_named(drawn: Callable[..., list[Figure]]) -> None:
    (figure,) = drawn({"good": (40, 10, 0), "odd": (40, 35, 30)})
    assert "odd: 60.0 %" in figure.words and "good:" not in figure.words
    assert figure.data["accuracy"].tolist() == [80, 20, 0, 80, 70, 60, 100, 100], "at last without an attack"
    (figure,) = drawn({"good": (40, 10, 0)})
    assert figure.words.startswith("Every curve falls below 5 % by ε=0.3")


def test_a_curve_ends_soon_after_the_last_change_and_its_numbers_do_not(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    right = {0.1: 40, 0.2: 3, 0.3: 0, 0.4: 0, 0.5: 0, 0.6: 0}
    cells = [
        (make_cell(WhiteBox(parse_attack(f"pgd(eps={eps})"), "strict")), {"correct": np.arange(50) < count})
        for eps, count in right.items()
    ]
    (figure,) = curve_figures(Layout(make_results(cells)))
    (line,) = figure.canvas.axes[0].lines
    assert [round(float(x), 6) for x in line.get_xdata()] == [0, 0.1, 0.2, 0.3, 0.4]
    assert figure.data["strength"].max() == 0.6 and "up to ε=0.6, no curve changes" in figure.words


def test_a_curve_over_a_constant_names_it(drawn: Callable[..., list[Figure]]) -> None:
    (figure,) = drawn({"good": (40, 10, 0)}, "cw(c={},steps=50)")
    assert figure.words.startswith("Every curve falls below 5 % by c=0.3")
    assert figure.title == "Security curve of C&W, 50 steps on digits, tier strict"
    assert figure.data["strength"].tolist() == [0.1, 0.2, 0.3]


def test_more_defenses_than_colours_can_be_drawn(drawn: Callable[..., list[Figure]], tmp_path: Path) -> None:
    (figure,) = drawn({f"defense {n}": (40, n, 0) for n in range(11)})
    keep(tmp_path, [figure])
    assert len(list(tmp_path.glob("curve-*"))) == 3 and figure.data["defense"].nunique() == 11


# --- diversity ---


def _diverse(samples: int, right: int, members: int = 2, mapped: bool = True) -> dict[str, Any]:
    draws = np.random.default_rng(0)
    columns: dict[str, Any] = {"led": -draws.random(samples), "correct": np.arange(samples) < right}
    for k in range(members):
        shown = [*draws.dirichlet(np.ones(10), min(samples, 12))] + [None] * max(samples - 12, 0)
        columns[f"probabilities_net{k + 1}"] = shown
        if mapped:
            columns[f"tsne_net{k + 1}"] = [*draws.normal(size=(samples, 2))]
    return columns


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ([{"right": 30}, {"right": 30}], ["diversity", "geometry", "features"]),
        ([{"right": 30, "members": 10}], ["diversity", "geometry", "features"]),
        ([{"right": 30}, {"right": 0}], ["diversity", "features"]),
        ([{"right": 30}, {"right": 5, "samples": 5}], ["diversity", "geometry", "features"]),
        ([{"right": 1, "samples": 1, "mapped": False}], ["diversity", "geometry"]),
    ],
    ids=["usual", "many members", "no image that all get right", "different sample counts", "a single image"],
)
def test_pictures_of_diversity_are_drawn_as_far_as_the_images_go(
    cells: list[dict[str, Any]], names: list[str], make_cell: MakeCell, make_results: MakeResults, tmp_path: Path
) -> None:
    finished = []
    for position, given in enumerate(cells):
        samples = given.get("samples", 30)
        cell = make_cell(Diversity(), f"d{position}", members=given.get("members", 2), samples=samples)
        finished.append((cell, _diverse(**{"samples": samples, **given})))
    figures = diversity_figures(make_results(finished))
    assert [figure.name for figure in figures] == [f"{name}-digits" for name in names]
    keep(tmp_path / "figures", figures)
    medians = [f"d{n}: {np.median(columns['led']):.2f}" for n, (_, columns) in enumerate(finished)]
    assert f" {'; '.join(medians)}. " in figures[0].words
    shares = figures[0].data.groupby("defense")["percent"].sum()
    assert shares.tolist() == pytest.approx([100] * len(cells), abs=1e-3)


def test_pictures_of_several_seeds_keep_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [make_cell(Diversity(), samples=30, seed=seed) for seed in (0, 1)]
    figures = diversity_figures(make_results([(cell, _diverse(30, 30)) for cell in cells]))
    assert len({figure.name for figure in figures}) == 6


# --- transfer ---

TRANSFERRED = {
    "prediction_net1": np.where(np.arange(10) < 6, 3, 7),
    "prediction_net2": np.where(np.arange(10) < 2, 3, 7),
    "prediction_ensemble": 3,
    "clean_net1": np.where(np.arange(10) < 9, 3, 7),
    "clean_net2": 3,
    "clean_ensemble": 7,
}


def test_transfer_by_two_libraries_is_drawn_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    attacks = [parse_attack(f"pgd@{library}(eps=0.1)") for library in ("torchattacks", "art")]
    results = make_results([(make_cell(Transfer(named, 1), samples=10), TRANSFERRED) for named in attacks])
    assert len({figure.name for figure in transfer_figures(transfer_table(results))}) == 2


def test_the_transfer_matrix_frames_what_was_made_on_the_target_itself(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(Transfer(parse_attack("pgd(eps=0.1)"), 1), samples=10)
    (figure,) = transfer_figures(transfer_table(make_results([(cell, TRANSFERRED)])))
    axis = figure.canvas.axes[0]
    (frame,) = axis.patches
    middle = frame.get_bbox().get_points().mean(axis=0)
    assert list(middle) == pytest.approx([1, 0]), "net2 against net2, with net1 missing"
    assert "ours: 60.0 %" in figure.words and "ours: 42.9 %" in figure.words, "mean accuracy, and transfer rate"


def test_colours_of_a_transfer_matrix_span_the_values_off_the_diagonal(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(Transfer(parse_attack("pgd(eps=0.1)"), 1), samples=10)
    (figure,) = transfer_figures(transfer_table(make_results([(cell, TRANSFERRED)])))
    mesh = figure.canvas.axes[0].collections[0]
    assert mesh.get_clim() == (60, 100), "net2 keeps 20 % on its own images, net1 60 %, the ensemble 100 %"
    words = [text.get_text() for text in figure.canvas.axes[0].texts]
    assert "source model" in words and "target model" in words


# --- tiers ---


def test_the_picture_of_the_gap_says_where_it_is_widest_and_what_it_is_measured_on(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    bound = Bound("linf", 0.1)
    worst = WorstCase(bound, "quick", stages("quick", bound, 2, 10))
    pgd = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")
    right = {"one": (40, 30), "two": (45, 10)}
    finished = [
        (make_cell(task, name), {"correct": np.arange(50) < count})
        for name, counts in right.items()
        for task, count in zip((pgd, worst), counts, strict=True)
    ]
    (figure,) = gap_figures(gap_table(make_results(finished)))
    assert "on the same 50 test images, ε=0.1" in figure.words
    assert "from strict to strong: two, from 90.0 % to 20.0 %" in figure.words and "quick suite" in figure.words
    bars = figure.canvas.axes[0].containers
    assert [[patch.get_width() for patch in bar.patches] for bar in bars if hasattr(bar, "patches")] == [
        [100, 100], [80, 90], [60, 20],
    ], "clean, strict, strong"  # fmt: skip
    assert figure.data["strong"].tolist() == [60, 20] and figure.data["strict"].tolist() == [80, 90]
