"""The board puts defenses of many runs side by side, and ranks them only where a test on shared images supports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages
from benchmark.findings.board import Board, Number, Proof, board_table, boards_of
from benchmark.findings.entries import BoardEntry, ClaimedResult
from benchmark.findings.results import Results
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
TENTH = Bound("linf", 0.1)


def _task(text: str = "pgd(eps=0.1)", tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _right(right: int, shift: int = 0, samples: int = 50) -> dict[str, Any]:
    """So many images stay right, beginning with image ``shift``."""
    return {"correct": np.isin(np.arange(samples), np.arange(right) + shift)}


def _strict(board: Board) -> dict[str, Number]:
    return {standing.model.defense: standing.numbers["strict"] for standing in board.standings}


def test_the_rank_is_one_more_than_the_number_of_defenses_significantly_ahead(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    """By hand: A-B, A-C and A-D differ in 20, 21 and 40 images, all one way; B-C in one; B-D in 20, C-D in 19.

    The exact p-value of n discordant images, all one way, is 2 · 0.5ⁿ: 1.9e-6 at 20, 3.8e-6 at 19; for B-C it is 1.
    Six pairs: Holm multiplies by six at most, so all but B-C stay far below 5 %.
    """
    right = {"A": 45, "B": 25, "C": 24, "D": 5}
    cells = [(make_cell(_task(), name), _right(count)) for name, count in right.items()]
    (board,) = boards_of([make_results(cells)])
    assert {name: (number.rank, number.among) for name, number in _strict(board).items()} == {
        "A": (1, 4),
        "B": (2, 4),
        "C": (2, 4),
        "D": (4, 4),
    }
    assert [standing.model.defense for standing in board.standings] == ["A", "B", "C", "D"]


def test_runs_that_may_have_stopped_early_are_left_out(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [make_cell(_task(), name) for name in "AB"]
    shuffled = [replace(cell, images=replace(cell.images, order="shuffled")) for cell in cells]
    assert len(boards_of([make_results([(cell, _right(30)) for cell in cells])])) == 1
    assert boards_of([make_results([(cell, _right(30)) for cell in shuffled])]) == []


def test_holms_correction_over_the_family_takes_back_what_one_test_alone_would_say(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    """Six discordant images, all one way: p = 2 / 64 = 0.031; three times that is not significant."""
    pair = [(make_cell(_task(), name), _right(count)) for name, count in (("A", 30), ("B", 24))]
    (alone,) = boards_of([make_results(pair)])
    (family,) = boards_of([make_results([*pair, (make_cell(_task(), "C"), _right(27))])])
    assert [number.rank for number in _strict(alone).values()] == [1, 2]
    assert [number.rank for number in _strict(family).values()] == [1, 1, 1]


def test_defenses_are_compared_on_the_attacks_and_images_that_both_have(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    """Over its own attacks A has 10 of 50; over the one that B also met, on the first 20 images, they are equal."""
    one = [(make_cell(_task(), "A"), _right(40)), (make_cell(_task("fgsm(eps=0.1)"), "A"), _right(10))]
    other = make_cell(_task(), "B", samples=20)
    found = _strict(boards_of([make_results(one), make_results([(other, _right(20, samples=20))])])[0])
    assert (found["A"].accuracy, found["A"].images, found["B"].accuracy, found["B"].images) == (20, 50, 100, 20)
    assert found["A"].rank == found["B"].rank == 1


def test_defenses_without_a_common_attack_have_no_rank(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [(make_cell(_task(), "A"), _right(50)), (make_cell(_task("fgsm(eps=0.1)"), "B"), _right(0))]
    assert [number.rank for number in _strict(boards_of([make_results(cells)])[0]).values()] == [None, None]


def test_other_data_under_the_same_name_are_another_board(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [(make_cell(_task(), name, checksum=name * 64), _right(count)) for name, count in (("a", 50), ("b", 0))]
    boards = boards_of([make_results(cells)])
    assert len(boards) == 2 and all(number.rank is None for board in boards for number in _strict(board).values())


def test_trainings_that_differ_in_the_seed_are_one_row_with_mean_and_deviation(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cells = [
        (make_cell(_task(), "A", seed=seed, weights=str(seed), training=f"fast recipe, seed {seed}"), _right(count))
        for seed, count in enumerate((20, 25, 30))
    ]
    (board,) = boards_of([make_results(cells)])
    number = _strict(board)["A"]
    assert (number.accuracy, number.deviation, number.seeds) == (50, 10, 3)
    # Student with two degrees of freedom: 4.3027 · 10 / √3
    assert (number.low, number.high) == pytest.approx((50 - 24.8414, 50 + 24.8414), abs=1e-3)
    assert board.standings[0].model.weights == ("0", "1", "2")


def test_two_trainings_of_one_seed_are_two_rows(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [(make_cell(_task(), "A", weights=weights), _right(20)) for weights in ("one", "other")]
    (board,) = boards_of([make_results(cells)])
    assert [standing.model.weights for standing in board.standings] == [("one",), ("other",)]


def test_a_cell_in_two_folders_counts_once_and_the_larger_of_two_is_taken(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    small = make_results([(make_cell(_task(), "A", samples=20), _right(20, samples=20))])
    large = make_results([(make_cell(_task(), "A"), _right(20))])
    (board,) = boards_of([small, large, large])
    assert [(number.images, number.accuracy) for number in _strict(board).values()] == [(50, 40)]


def test_clean_accuracy_is_that_of_the_most_images_and_the_paper_s_number_only_that_of_a_clean_cell(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    attacked = make_cell(_task(tier="paper"), "A", published=12.5)
    (board,) = boards_of([make_results([(attacked, {"correct": False, "clean_prediction": 3})])])
    numbers = board.standings[0].numbers
    assert (numbers["clean"].accuracy, numbers["clean"].published, numbers["paper"].published) == (100, None, 12.5)
    clean = make_cell(Clean(), "A", samples=100, published=99.0)
    (board,) = boards_of([make_results([(attacked, {}), (clean, _right(90, samples=100))])])
    assert board.standings[0].numbers["clean"].published == 99.0


def test_missing_names_tiers_cells_and_certificates(make_cell: MakeCell, make_results: MakeResults) -> None:
    done, failed = make_cell(_task(), "A"), make_cell(_task("fgsm(eps=0.1)"), "A")
    whole = make_results([(done, _right(20))])
    results = Results((done, failed), whole.records, {failed: "out of memory"}, whole.manifest)
    missing = "; ".join(boards_of([results])[0].standings[0].missing)
    assert all(word in missing for word in ("paper", "strong", "certificate", "out of memory"))
    assert "strict and" not in missing


def _proof(verified: bool, weights: str = "weights of A") -> Proof:
    return Proof("c.parquet", "digits", "0" * 64, weights, "A", TENTH, "strong(linf:0.1)=60", verified, "…", 40, 4)


def test_a_certificate_stands_beside_the_worst_case_of_its_weights(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    task = WorstCase(TENTH, "quick", stages("quick", TENTH, 2, 10))
    columns = {**_right(20), "broken_at": -1}
    cells = [(make_cell(task, name), columns) for name in ("A", "B")]
    (board,) = boards_of([make_results(cells)], [_proof(True)])
    assert {s.model.defense: len(s.proofs) for s in board.standings} == {"A": 1, "B": 0}
    assert all(standing.numbers["strong"].kind == "measured" for standing in board.standings)


def test_a_model_that_only_a_certificate_tells_of_is_a_result_only_if_it_verifies() -> None:
    (verified,), (other,) = (boards_of([], [_proof(answer)])[0].standings for answer in (True, False))
    number = verified.numbers["strong"]
    assert (number.kind, number.accuracy, verified.outside) == ("certified", 10, False)
    assert not other.numbers and other.outside


def test_an_entry_is_a_claim_until_a_certificate_of_its_weights_verifies() -> None:
    results = (ClaimedResult("clean", None, 95, 1000), ClaimedResult("strong", TENTH, 60, 1000))
    entry = BoardEntry("Theirs", "digits", "resnet20", 3, results, weights="f" * 64)
    (bare,) = boards_of([], [], [entry])[0].standings
    assert bare.outside and {number.kind for number in bare.numbers.values()} == {"claimed"}
    (refused,) = boards_of([], [_proof(False, "f" * 64)], [entry])[0].standings
    assert refused.outside and refused.numbers["strong"].kind == "claimed"
    (proved,) = boards_of([], [_proof(True, "f" * 64)], [entry])[0].standings
    strong = proved.numbers["strong"]
    assert (strong.kind, strong.accuracy, strong.claimed) == ("certified", 10, 60)
    assert proved.numbers["clean"].kind == "claimed"


def test_a_claim_never_takes_a_rank(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [(make_cell(_task(), name), _right(count)) for name, count in (("A", 40), ("B", 5))]
    entry = BoardEntry("Theirs", "digits", "resnet20", 3, (ClaimedResult("strict", TENTH, 99, 50),))
    (board,) = boards_of([make_results(cells)], [], [entry])
    assert [(s.model.defense, s.numbers["strict"].rank) for s in board.standings] == [
        ("A", 1),
        ("B", 2),
        ("Theirs", None),
    ]


def test_the_table_has_a_row_per_defense_bound_and_tier(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [(make_cell(_task(f"pgd(eps={eps})"), "A"), _right(20)) for eps in (0.1, 0.2)]
    table = board_table(boards_of([make_results(cells)]))
    assert list(zip(table["tier"], table["bound"], strict=True)) == [
        ("clean", ""),
        ("strict", "linf:0.1"),
        ("strict", "linf:0.2"),
    ]
    # Clopper-Pearson of 20 of 50
    assert table["ci_low"].iloc[1] == pytest.approx(26.4083, abs=1e-3)
    assert table["ci_high"].iloc[1] == pytest.approx(54.8206, abs=1e-3)
