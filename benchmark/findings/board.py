"""The board: defenses of many runs side by side, ranked only where a test on shared images supports it.

The number of a tier and bound is the share of images that stay correct under every attack of that tier and bound. Two
defenses are compared on their common images and attacks, by McNemar's exact test, with Holm's correction over all pairs
of one (dataset, bound, tier). The rank of a defense is one more than the number of defenses significantly ahead.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings.entries import BoardEntry
from benchmark.findings.results import Results
from benchmark.findings.rows import percent_interval, percent_mean_interval, published_beside
from benchmark.findings.statistics import SIGNIFICANT, holm, paired_test, spread

CLEAN = Clean.evaluation
TIERS = ("paper", "strict", "strong")
Kind = Literal["measured", "certified", "claimed"]
"""The source of a number: the records of a run, a verified certificate, or a claim from outside."""
SEED = re.compile(r", seed \d+\b")
COLUMNS = (
    "dataset", "defense", "members", "network", "training", "weights", "tier", "bound", "kind", "claimed", "rank",
    "among", "seeds", "samples", "accuracy", "standard_deviation", "ci_low", "ci_high", "attacks", "published",
    "forwards", "backwards", "seconds", "flags", "certificate", "certificate_says", "missing", "source",
)  # fmt: skip
"""A row per defense, bound and tier. Accuracies are in percent; forwards and backwards are per image."""


@dataclass(frozen=True)
class Proof:
    """A certificate, and whether it was verified here."""

    path: str
    dataset: str
    data: str
    """Checksum of the data."""
    weights: str
    model: str
    bound: Bound
    claim: str
    verified: bool
    words: str
    """The result of the verification, or the reason why it failed."""
    images: int = 0
    left: int = 0
    """Correctly classified images without an adversarial image; the verification counts them itself."""


@dataclass(frozen=True)
class Model:
    """The model of one row: a defense with its trainings, one set of weights for each seed."""

    dataset: str
    data: str
    """Checksum of the data; empty for an entry from outside."""
    defense: str
    members: int
    network: str
    training: str
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Number:
    """An accuracy in percent with everything that a reader needs to judge it."""

    kind: Kind
    accuracy: float
    images: int
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    """Standard deviation over seeds."""
    seeds: int = 1
    attacks: tuple[str, ...] = ()
    claimed: float | None = None
    """The claimed accuracy, beside the certified one."""
    published: float | None = None
    """The paper's number: the lowest accuracy under one of these attacks."""
    forwards: float = 0.0
    backwards: float = 0.0
    seconds: float = 0.0
    flags: tuple[str, ...] = ()
    rank: int | None = None
    among: int = 1
    """Number of compared defenses, including this one."""


@dataclass(frozen=True)
class Standing:
    """A defense within one bound: its numbers by tier, its certificates, and its missing results."""

    model: Model
    numbers: Mapping[str, Number]
    proofs: tuple[Proof, ...] = ()
    missing: tuple[str, ...] = ()
    source: str = ""
    """The source of an entry from outside."""
    outside: bool = False
    """True for a claim, of which nothing was measured or verified here."""


@dataclass(frozen=True)
class Board:
    """Defenses on one dataset within one bound, best first; the bound is None if no attack was run."""

    dataset: str
    data: str
    bound: Bound | None
    standings: tuple[Standing, ...]

    @property
    def deciding(self) -> str:
        """The tier with the most ranked defenses, then the most defenses, then the strongest; else clean accuracy."""
        numbers = [standing.numbers for standing in self.standings]

        def counts(tier: str) -> tuple[int, int]:
            here = [found[tier] for found in numbers if tier in found]
            return sum(number.rank is not None for number in here), len(here)

        best = max(reversed(TIERS), key=counts)
        return best if any(counts(best)) else CLEAN


# --- what was measured ---


class _Seen(NamedTuple):
    """A finished cell: the correct images under attack and without attack, its warnings and its cost."""

    cell: Cell
    right: pd.Series[bool]
    clean: pd.Series[bool]
    flags: tuple[str, ...]
    cost: tuple[float, float, float]


@dataclass
class _Row:
    """The cells of one model while a board is put together."""

    model: Model
    seen: list[_Seen] = field(default_factory=list)
    open: list[tuple[Cell, str]] = field(default_factory=list)
    """Cells without a result, with the reason."""

    def outcomes(self, tier: str, bound: Bound | None) -> dict[int, dict[Hashable, _Seen]]:
        """For each seed and attack setting, the cell with the most images."""
        found: dict[int, dict[Hashable, _Seen]] = {}
        for seen in self.seen:
            task = seen.cell.task
            if tier == CLEAN and (task == Clean() or task.white_box):
                one, asked = seen._replace(right=seen.clean), (CLEAN,)  # the clean prediction is in every record
            elif _counts(seen.cell) and (task.tier, task.bound) == (tier, bound):
                one, asked = seen, task.asked
            else:
                continue
            of_seed = found.setdefault(seen.cell.conditions.seed, {})
            if asked not in of_seed or len(of_seed[asked].right) < len(one.right):
                of_seed[asked] = one
        return found


def boards_of(runs: Iterable[Results], proofs: Sequence[Proof] = (), entries: Sequence[BoardEntry] = ()) -> list[Board]:
    """All boards; boards with the strongest evidence and the most defenses come first."""
    rows = _rows(runs)
    keys: dict[tuple[str, str, Bound | None], list[Standing]] = {}
    for data in dict.fromkeys((row.model.dataset, row.model.data) for row in rows):
        here = [row for row in rows if (row.model.dataset, row.model.data) == data]
        bounds = {bound for row in here for bound in _bounds(row)} | _bounds_of(proofs, here)
        clean = _numbers(here, CLEAN, None)
        for bound in _listed(bounds):
            tiers = {tier: _numbers(here, tier, bound) for tier in TIERS}
            for place, row in enumerate(here):
                numbers = {tier: found[place] for tier, found in tiers.items() if place in found}
                mine = tuple(proof for proof in proofs if proof.bound == bound and _about(proof, row.model))
                if numbers or mine or bound is None or any(cell.task.bound == bound for cell, _ in row.open):
                    first = {CLEAN: clean[place]} if place in clean else {}
                    missing = tuple(_missing(row, bound, numbers, mine))
                    keys.setdefault((*data, bound), []).append(Standing(row.model, first | numbers, mine, missing))
    for entry in entries:
        for bound, standing in _entered(entry, proofs):
            names = [key for key in keys if key[0] == entry.dataset and key[2] == bound]
            keys.setdefault(names[0] if names else (entry.dataset, "", bound), []).append(standing)
    known = {weights for found in keys.values() for standing in found for weights in standing.model.weights}
    for proof in proofs:
        if proof.weights not in known:
            keys.setdefault((proof.dataset, proof.data, proof.bound), []).append(_proved(proof))
    boards = [Board(*key, tuple(found)) for key, found in keys.items()]
    return sorted((_sorted(board) for board in boards), key=_importance)


def board_table(boards: Iterable[Board]) -> pd.DataFrame:
    """Every number of every board (leaderboard.csv)."""
    rows: list[dict[str, Any]] = []
    for board in boards:
        for standing in board.standings:
            for tier, number in standing.numbers.items():
                rows.append(_csv_row(board, standing, tier, number))
    return pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates(ignore_index=True)


def _csv_row(board: Board, standing: Standing, tier: str, number: Number) -> dict[str, Any]:
    model, attacked = standing.model, tier != CLEAN
    return {
        "dataset": board.dataset,
        "defense": model.defense,
        "members": model.members,
        "network": model.network,
        "training": model.training,
        "weights": " ".join(model.weights),
        "tier": tier,
        "bound": str(board.bound) if attacked else "",
        "kind": number.kind,
        "claimed": number.claimed,
        "rank": number.rank,
        "among": number.among,
        "seeds": number.seeds,
        "samples": number.images,
        "accuracy": round(number.accuracy, 4),
        "standard_deviation": number.deviation,
        "ci_low": number.low,
        "ci_high": number.high,
        "attacks": " ".join(number.attacks),
        "published": number.published,
        "forwards": round(number.forwards, 2),
        "backwards": round(number.backwards, 2),
        "seconds": round(number.seconds, 2),
        "flags": ", ".join(number.flags),
        "certificate": " ".join(proof.path for proof in standing.proofs) if tier == "strong" else "",
        "certificate_says": "; ".join(proof.words for proof in standing.proofs) if tier == "strong" else "",
        "missing": "; ".join(standing.missing) if attacked else "",
        "source": standing.source,
    }


# --- rows ---


def _rows(runs: Iterable[Results]) -> list[_Row]:
    """A row per model: trainings that differ only in the seed share a row, and so do equal weights.

    Cells in random order are left out: they may have stopped early, and ranks need a fixed number of images.
    """
    groups: dict[Hashable, list[tuple[Cell, Results]]] = {}
    by_weights: dict[Hashable, Hashable] = {}
    for results in runs:
        for cell in results.cells:
            if cell.images.order == "file" and isinstance(cell.task, (Clean, WhiteBox, WorstCase)):
                facts, where = cell.ensemble, (cell.images.dataset, cell.images.checksum)
                trained = (facts.spec, SEED.sub("", facts.training)) if facts.training else facts.weights
                own = (*where, facts.members, facts.network, trained)
                key = by_weights.setdefault((*where, facts.weights), own)
                groups.setdefault(key, []).append((cell, results))
    return [_row(part) for found in groups.values() for part in _one_training_each(found)]


def _one_training_each(found: list[tuple[Cell, Results]]) -> list[list[tuple[Cell, Results]]]:
    """The cells as one row; if a seed was trained twice, as one row per set of weights."""
    weights = {(cell.conditions.seed, cell.ensemble.weights) for cell, _ in found}
    if len({seed for seed, _ in weights}) == len(weights):
        return [found]
    names = dict.fromkeys(cell.ensemble.weights for cell, _ in found)
    return [[pair for pair in found if pair[0].ensemble.weights == name] for name in names]


def _row(found: list[tuple[Cell, Results]]) -> _Row:
    facts, images = found[0][0].ensemble, found[0][0].images
    weights = tuple(dict.fromkeys(cell.ensemble.weights for cell, _ in found))
    training = SEED.sub("", facts.training) if len(weights) > 1 else facts.training
    row = _Row(Model(images.dataset, images.checksum, facts.defense, facts.members, facts.network, training, weights))
    for cell, results in found:
        if cell in results.records:
            row.seen.append(_seen(cell, results))
        else:
            row.open.append((cell, results.failures.get(cell, "not run yet")))
    done = {seen.cell.identity for seen in row.seen}
    row.open = [(cell, why) for cell, why in row.open if cell.identity not in done]
    return row


def _seen(cell: Cell, results: Results) -> _Seen:
    records = results.records[cell]
    index = records["index"].to_numpy()
    right, clean = (pd.Series(values.to_numpy(), index=index) for values in (records["p_correct"], records["p_clean"]))
    cost = (float(records["forwards"].mean()), float(records["backwards"].mean()), float(records["seconds"].sum()))
    return _Seen(cell, right, clean, tuple(results.diagnosis.names(cell)), cost)


def _bounds(row: _Row) -> set[Bound]:
    cells = [*(seen.cell for seen in row.seen), *(cell for cell, _ in row.open)]
    return {cell.task.bound for cell in cells if cell.task.bound is not None and _counts(cell)}


def _listed(bounds: set[Bound]) -> list[Bound | None]:
    """Bounds in a fixed order; a single None means a board without an attack."""
    return [*sorted(bounds, key=str)] or [None]


def _counts(cell: Cell) -> bool:
    """True if a cell counts for its tier; targeted attacks do not count, because they are easier to survive."""
    attack = cell.task.attack
    return cell.task.tier is not None and not (attack and attack.attack.wants_target)


def _bounds_of(proofs: Iterable[Proof], rows: Iterable[_Row]) -> set[Bound]:
    return {proof.bound for proof in proofs for row in rows if _about(proof, row.model)}


def _about(proof: Proof, model: Model) -> bool:
    return (proof.dataset, proof.data) == (model.dataset, model.data) and proof.weights in model.weights


def _missing(row: _Row, bound: Bound | None, numbers: Mapping[str, Number], proofs: Sequence[Proof]) -> Iterator[str]:
    """The missing results of a row, in words."""
    if bound is not None:
        lacking = [tier for tier in TIERS if tier not in numbers]
        if lacking:
            yield f"tier{'s' * (len(lacking) > 1)} {' and '.join(lacking)}"
        if not proofs:
            yield "certificate"
    if len(row.model.weights) == 1:
        yield "other seeds"
    for cell, why in row.open:
        if cell.task.bound == bound:
            yield f"{cell.task.attack_title}, tier {cell.task.group}: {why}"


# --- numbers and ranks ---


def _numbers(rows: Sequence[_Row], tier: str, bound: Bound | None) -> dict[int, Number]:
    """The number and rank of each row that has one, by the index of the row."""
    outcomes = {place: found for place, row in enumerate(rows) if (found := row.outcomes(tier, bound))}
    ranks = _ranks(outcomes)
    return {place: _number(found, tier, *ranks[place]) for place, found in outcomes.items()}


def _number(outcomes: dict[int, dict[Hashable, _Seen]], tier: str, rank: int | None, among: int) -> Number:
    shared = set.intersection(*(set(found) for found in outcomes.values()))
    chosen = (
        [[seen for asked, seen in found.items() if asked in shared] for found in outcomes.values()]
        if shared
        else [list(max(outcomes.values(), key=len).values())]  # seeds without a common attack: the seed with most
    )
    index = _common([seen.right.index for seeds in chosen for seen in seeds])
    rights = [np.minimum.reduce([seen.right.loc[index].to_numpy() for seen in seeds]) for seeds in chosen]
    shares = [100 * float(right.mean()) for right in rights]
    over = spread(shares)
    low, high = percent_mean_interval(rights[0]) if len(rights) == 1 else (over.low, over.high)
    every = [seen for seeds in chosen for seen in seeds]
    printed = [seen.cell for seen in every if tier != CLEAN or seen.cell.task == Clean()]
    published = [number for cell in printed if (number := published_beside(cell)) is not None]
    costs = np.array([seen.cost for seen in every]) if tier != CLEAN else np.zeros((1, 3))
    return Number(
        "measured",
        over.mean,
        len(index),
        None if np.isnan(low) else round(low, 4),
        None if np.isnan(high) else round(high, 4),
        None if len(rights) == 1 else round(over.deviation, 4),
        len(rights),
        tuple(dict.fromkeys(seen.cell.task.attack_title for seen in every)) if tier != CLEAN else (),
        published=min(published) if published else None,
        forwards=float(costs[:, 0].sum()) / len(rights),
        backwards=float(costs[:, 1].sum()) / len(rights),
        seconds=float(costs[:, 2].sum()),
        flags=tuple(dict.fromkeys(flag for seen in every for flag in seen.flags)) if tier != CLEAN else (),
        rank=rank,
        among=among,
    )


def _common(indices: Sequence[pd.Index[Any]]) -> pd.Index[Any]:
    found = indices[0]
    for index in indices[1:]:
        found = found.intersection(index)
    return found


def _ranks(outcomes: Mapping[int, dict[int, dict[Hashable, _Seen]]]) -> dict[int, tuple[int | None, int]]:
    """The rank of each row, and the number of rows it is ranked among; the rank is None without a comparison."""
    pairs = [
        (one, other, *found)
        for one, other in combinations(outcomes, 2)
        if (found := _tested(outcomes[one], outcomes[other])) is not None
    ]
    adjusted = holm([p for _, _, p, _ in pairs])
    ahead, compared = dict.fromkeys(outcomes, 0), dict.fromkeys(outcomes, 0)
    for (one, other, _, difference), p in zip(pairs, adjusted, strict=True):
        compared[one] += 1
        compared[other] += 1
        if p < SIGNIFICANT:
            ahead[other if difference > 0 else one] += 1
    return {place: (1 + ahead[place] if compared[place] else None, 1 + compared[place]) for place in outcomes}


def _tested(
    one: dict[int, dict[Hashable, _Seen]], other: dict[int, dict[Hashable, _Seen]]
) -> tuple[float, float] | None:
    """p-value and difference on the common images, attacks and seeds; None if nothing is common.

    The differences of all seeds must have the same sign, and the largest p-value counts.
    """
    found = []
    for seed in one.keys() & other.keys():
        asked = [key for key in one[seed] if key in other[seed]]
        if not asked:
            continue
        index = _common([side[seed][key].right.index for side in (one, other) for key in asked])
        if len(index):
            rights = [
                np.minimum.reduce([side[seed][key].right.loc[index].to_numpy() for key in asked])
                for side in (one, other)
            ]
            found.append((paired_test(*rights), float(rights[0].mean() - rights[1].mean())))
    if not found:
        return None
    differences = [difference for _, difference in found]
    agree = min(differences) > 0 or max(differences) < 0
    return max(p for p, _ in found) if agree else 1.0, differences[0]


# --- certificates and entries ---


def _entered(entry: BoardEntry, proofs: Sequence[Proof]) -> Iterator[tuple[Bound | None, Standing]]:
    """An entry from outside, for each of its bounds: its numbers are claims, unless a certificate is verified."""
    weights = (entry.weights,) if entry.weights else ()
    model = Model(entry.dataset, "", entry.defense, entry.members, entry.network, entry.training, weights)
    clean = {result.tier: _claimed(result.accuracy, result.samples) for result in entry.results if result.bound is None}
    bounds = {result.bound for result in entry.results if result.bound is not None}
    for bound in _listed(bounds):
        here = [result for result in entry.results if result.bound == bound and bound is not None]
        mine = tuple(
            proof
            for proof in proofs
            if proof.bound == bound and proof.dataset == entry.dataset and proof.weights in weights
        )
        numbers = {result.tier: _claimed(result.accuracy, result.samples, result.attack) for result in here}
        verified = [proof for proof in mine if proof.verified]
        if verified:
            claim = numbers["strong"].accuracy if "strong" in numbers else None
            best = min(map(_certified, verified), key=lambda number: number.accuracy)
            numbers["strong"] = replace(best, claimed=claim)
        missing = () if verified else ("certificate that verifies",)
        yield bound, Standing(model, clean | numbers, mine, missing, entry.source, outside=not verified)


def _claimed(accuracy: float, samples: int, attack: str = "") -> Number:
    return Number("claimed", accuracy, samples, attacks=(attack,) if attack else ())


def _proved(proof: Proof) -> Standing:
    """A model that is known only from a certificate."""
    model = Model(proof.dataset, proof.data, proof.model, 0, "", "", (proof.weights,))
    numbers = {"strong": _certified(proof)} if proof.verified else {}
    return Standing(model, numbers, (proof,), ("run",), "audit", outside=not proof.verified)


def _certified(proof: Proof) -> Number:
    low, high = percent_interval(proof.left, proof.images)
    return Number("certified", 100 * proof.left / max(proof.images, 1), proof.images, low, high)


# --- order ---


def _sorted(board: Board) -> Board:
    """Sorted by rank in the deciding tier, then by accuracy; rows without that tier and claims come last."""

    def key(standing: Standing) -> tuple[bool, bool, int, float]:
        number = standing.numbers.get(board.deciding)
        if number is None:
            return standing.outside, True, 0, 0.0
        return standing.outside, False, number.rank or len(board.standings), -number.accuracy

    return Board(board.dataset, board.data, board.bound, tuple(sorted(board.standings, key=key)))


def _importance(board: Board) -> tuple[Any, ...]:
    measured = [standing for standing in board.standings if not standing.outside]
    strong = sum("strong" in standing.numbers for standing in measured)
    radius = (board.bound.norm, board.bound.radius) if board.bound else ("", 0.0)
    return not measured, -strong, board.dataset, -len(measured), radius
