"""leaderboard.html and leaderboard.csv: all boards on one page that works offline."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmark.attacks.bounds import Bound
from benchmark.findings import naming
from benchmark.findings.board import CLEAN, TIERS, Board, Number, Proof, Standing, board_table
from benchmark.reports import escaping
from defenses.files import write_text
from defenses.specs import value_text

PAGE, TABLE = "leaderboard.html", "leaderboard.csv"
NAMES = {"measured": "", "certified": "certificate", "claimed": "claim"}


@dataclass(frozen=True)
class Leaderboard:
    """The boards, their sources, and the parts that were left out."""

    boards: Sequence[Board]
    runs: int
    certificates: int
    entries: int
    damaged: tuple[str, ...] = ()


def write_leaderboard(folder: Path, found: Leaderboard) -> None:
    """Write the page and the table."""
    write_text(folder / TABLE, escaping.csv(board_table(found.boards)))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=escaping.html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = _digest
    write_text(folder / PAGE, environment.get_template("leaderboard.html.j2").render(_content(folder, found)))


def _digest(script: str) -> str:
    """The hash in the content security policy that allows only the page's own script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _content(folder: Path, found: Leaderboard) -> dict[str, Any]:
    standings = [standing for board in found.boards for standing in board.standings]
    several = {board.dataset for board in found.boards for other in found.boards if _other_data(board, other)}
    return {
        "counts": _counts(found, standings),
        "damaged": found.damaged,
        "boards": [_board(folder, board, board.dataset in several) for board in found.boards],
        "choices": {
            "dataset": _choices((board.dataset, naming.dataset(board.dataset)) for board in found.boards),
            "bound": _choices(
                (str(board.bound), bound_words(board.bound)) for board in sorted(found.boards, key=_radius)
            ),
            "network": _choices((s.model.network, s.model.network) for s in standings if s.model.network),
            "members": _choices(
                (str(members), str(members)) for members in sorted({s.model.members for s in standings} - {0})
            ),
        },
    }


def _choices(pairs: Any) -> dict[str, str]:
    return dict(pairs)


def _radius(board: Board) -> tuple[str, float]:
    return (board.bound.norm, board.bound.radius) if board.bound else ("", 0.0)


def _other_data(one: Board, other: Board) -> bool:
    return one.dataset == other.dataset and bool(one.data and other.data) and one.data != other.data


def _counts(found: Leaderboard, standings: Sequence[Standing]) -> list[str]:
    models = {standing.model for standing in standings if not standing.outside}
    return [
        _plural(len(models), "defense"),
        _plural(found.runs, "run"),
        _plural(found.certificates, "certificate"),
        _plural(found.entries, "entry from outside", "entries from outside"),
    ]


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def bound_words(bound: Bound | None) -> str:
    """A bound in words."""
    return "no attack" if bound is None else f"{bound.symbol}, ε = {value_text(bound.radius)}"


def _board(folder: Path, board: Board, several: bool) -> dict[str, Any]:
    proved = any(standing.proofs for standing in board.standings)  # a certificate is shown beside the worst case
    has = {tier for standing in board.standings for tier in standing.numbers} | ({"strong"} if proved else set())
    tiers = [tier for tier in (CLEAN, *TIERS) if tier in has]
    return {
        "title": f"{naming.dataset(board.dataset)} · {bound_words(board.bound)}",
        "note": f"data {board.data[:8]}" if several else "",
        "about": _about(board),
        "dataset": board.dataset,
        "bound": str(board.bound),
        "tiers": tiers,
        "deciding": board.deciding,
        "rows": [_standing(folder, board, standing, tiers) for standing in board.standings],
    }


def _about(board: Board) -> str:
    numbers = [s.numbers[board.deciding] for s in board.standings if board.deciding in s.numbers]
    ranked = [number for number in numbers if number.rank]
    where = "clean accuracy" if board.deciding == CLEAN else f"tier {board.deciding}"
    if not ranked:
        return "Not ranked: no two defenses share attacks and images here."
    if all(number.rank == 1 for number in ranked):
        return f"No significant difference in {where}: every defense has rank 1."
    return f"Ranked in {where}. A shared rank means that as many defenses are significantly ahead."


def _standing(folder: Path, board: Board, standing: Standing, tiers: Sequence[str]) -> dict[str, Any]:
    model, deciding = standing.model, standing.numbers.get(board.deciding)
    attacked = [number for tier, number in standing.numbers.items() if tier != CLEAN and number.kind == "measured"]
    strongest = attacked[-1] if attacked else None
    members = _plural(model.members, "member") if model.members else ""
    weights = f"weights {' '.join(weights[:8] for weights in model.weights)}" if model.weights else ""
    return {
        "name": naming.defense(model.defense),
        "network": model.network,
        "members": model.members,
        "about": " · ".join(filter(None, (model.network, members))),
        "training": " · ".join(filter(None, (model.training, weights))),
        "outside": standing.outside,
        "source": standing.source,
        "rank": deciding.rank if deciding else None,
        "tied": deciding is not None and _tied(board, deciding),
        "numbers": {tier: _number(standing.numbers.get(tier), tier) for tier in tiers},
        "proofs": [_proof(folder, proof) for proof in standing.proofs],
        "seconds": sum(number.seconds for number in attacked),
        "cost": _duration(sum(number.seconds for number in attacked)) if attacked else "",
        "passes": f"{strongest.forwards + strongest.backwards:,.0f} passes per image" if strongest else "",
        "flags": list(dict.fromkeys(flag for number in standing.numbers.values() for flag in number.flags)),
        "missing": standing.missing,
    }


def _tied(board: Board, number: Number) -> bool:
    found = [s.numbers[board.deciding].rank for s in board.standings if board.deciding in s.numbers]
    return found.count(number.rank) > 1


def _number(number: Number | None, tier: str) -> dict[str, Any] | None:
    if number is None:
        return None
    interval = None if number.low is None or number.high is None else (number.low, number.high)
    spread = f" ± {number.deviation:.1f}" if number.deviation is not None else ""
    attacks = [_attack_words(attack) for attack in number.attacks]
    return {
        "kind": number.kind,
        "tag": NAMES[number.kind],
        "text": f"{'≤ ' * (number.kind == 'certified')}{number.accuracy:.1f}{spread}",
        "order": f"{number.accuracy:.4f}",
        "interval": f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else "",
        "left": f"{max(interval[0], 0):.1f}" if interval else "",
        "width": f"{max(min(interval[1], 100) - max(interval[0], 0), 0.8):.1f}" if interval else "",
        "at": f"{number.accuracy:.1f}",
        "images": f"{number.images:,} images",
        "seeds": f"{number.seeds} seeds" if number.seeds > 1 else "",
        "count": _plural(len(attacks), "attack") if attacks and tier != "strong" else "",
        "rank": f"rank {number.rank} of {number.among}" if number.rank else "",
        "claimed": "" if number.claimed is None else f"claimed {number.claimed:.1f}",
        "published": "" if number.published is None else f"published {number.published:.1f}",
        "flagged": bool(number.flags),
        "attacks": f"{tier}: {'; '.join(attacks)}" if attacks else "",
    }


def _attack_words(title: str) -> str:
    name, _, parameters = title.partition("(")
    return naming.attack(name, parameters.removesuffix(")")) if parameters else naming.attack(name)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _proof(folder: Path, proof: Proof) -> dict[str, Any]:
    state, _, rest = proof.words.partition(": ")
    return {
        "link": quote(Path(os.path.relpath(Path(proof.path).resolve(), folder.resolve())).as_posix(), safe="/"),
        "verified": proof.verified,
        "state": state,
        "words": rest,
        "claim": proof.claim,
    }
