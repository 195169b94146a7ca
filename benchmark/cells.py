"""Cells: the unit of work, of caching and of resuming; an identity is a hash of all that changes the result."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmark.attacks import ATTACKS
from defenses.errors import BadInput

PROTOCOL = 1
"""Raised when the evaluation changes in a way that makes older cells wrong."""


TABLED = ("clean", "whitebox", "strong", "blackbox")
"""Evaluations whose cells are rows of the tables."""


@dataclass(frozen=True)
class Cell:
    """One (dataset, trained ensemble, attack, tier, sample set, seed)."""

    dataset: str
    data_checksum: str
    defense: str
    """Short name for tables."""
    spec: str
    """Canonical defense spec, or the path of a checkpoint."""
    members: int
    network: str
    training: str
    """Recipe and epochs the ensemble was trained with, in words; empty for checkpoints from outside."""
    weights: str
    """sha256 of the ensemble's weights."""
    attack: str
    """Attack name, such as ``pgd``, or ``none`` for clean accuracy."""
    parameters: str
    library: str
    library_version: str
    settings: dict[str, Any]
    """Every parameter of the attack, defaults included."""
    tier: str
    samples: int
    seed: int
    batch_size: int
    device: str
    published: float | None = None
    """The paper's accuracy in percent, where it has one."""
    evaluation: str = "whitebox"
    """What is measured: the name of a module in benchmark.evaluations."""
    acceleration: str = "folded"
    """How the copy that is attacked is made: it rounds in its own way, and an image may hang on that."""

    def asked(self) -> dict[str, Any]:
        """Plain values, for files."""
        return asdict(self)

    @property
    def identity(self) -> str:
        """Hash of everything that changes the records of its images."""
        return _hash({**self._result(), "samples": self.samples})

    @property
    def key(self) -> str:
        """Tells the cells of a run apart, where one ensemble may go by two names."""
        return f"{self.defense} {self.identity}"

    @property
    def series(self) -> str:
        """Like the identity, whatever the number of samples: a larger sample set extends a smaller one."""
        return _hash(self._result())

    def _result(self) -> dict[str, Any]:
        names = (
            "dataset",
            "data_checksum",
            "weights",
            "attack",
            "library",
            "library_version",
            "settings",
            "tier",
            "evaluation",
        )
        others = ("seed", "batch_size", "device", *(["acceleration"] if self.acceleration != "folded" else []))
        shared = {"images": "of tier paper"} if self.paper_twin else {}
        return {name: getattr(self, name) for name in (*names, *others)} | shared | {"protocol": PROTOCOL}

    @property
    def paper_twin(self) -> Cell | None:
        """For a cell of tier strict whose attack is the same in tier paper, the cell there: it has the same images."""
        known = self.attack in ATTACKS.targets() and ATTACKS.get(self.attack).same_in_tiers
        shared = known and (self.tier, self.evaluation) == ("strict", "whitebox")
        return replace(self, tier="paper") if shared else None

    @property
    def asked_settings(self) -> dict[str, Any]:
        """Settings as they were asked for: of a suite its name, not the library versions it resolves to today, and of
        a surrogate not its weights."""
        return {key: value for key, value in self.settings.items() if key not in ("stages", "surrogate")}

    @property
    def question(self) -> str:
        """What cells of several defenses have in common that stand in one row of a table."""
        names = ("dataset", "attack", "library", "tier", "evaluation", "seed", "asked_settings")
        return json.dumps([getattr(self, name) for name in names], sort_keys=True)

    @property
    def conditions(self) -> dict[str, str]:
        """What else an attack may depend on, and what numbers that are compared should share."""
        conditions = {"batch size": str(self.batch_size), "device": self.device, "acceleration": self.acceleration}
        if "surrogate" in self.settings:
            conditions["surrogate"] = self.settings["surrogate"][:8]
        if "stages" in self.settings:  # a suite names the version of a library behind each attack
            used = (re.match(r"[^@]*@([^(]+).*\[(.*)\]$", stage) for stage in self.settings["stages"])
            conditions["libraries"] = ", ".join(dict.fromkeys(" ".join(found.groups()) for found in used if found))
        return conditions | {self.library: self.library_version}

    @property
    def setting(self) -> tuple[str, str, str]:
        """The attack as a table names it: what cells of several defenses, tiers and seeds have in common."""
        return self.attack, self.parameters, self.library

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it stands in a table; of two cells with one place, the later one counts."""
        return self.question, self.defense

    @property
    def attack_title(self) -> str:
        """The attack with its parameters; the library is named where it is not the usual one."""
        usual = self.library in ("none", "several", _usual_library(self.attack))
        name = self.attack if usual else f"{self.attack}@{self.library}"
        return f"{name}({self.parameters})" if self.parameters else name

    @property
    def title(self) -> str:
        """For progress lines."""
        what = self.tier if self.evaluation == "whitebox" else self.evaluation
        source = f" from {self.settings['source']}" if "source" in self.settings else ""
        return f"{self.defense} · {self.attack_title}{source} · {what}"


def cell_from(asked: dict[str, Any]) -> Cell:
    """The cell a file describes."""
    try:
        return Cell(**asked)
    except TypeError as error:
        raise BadInput(f"the run was made by another version of this program ({error}); choose another --out") from None


def attack_titles(cells: Iterable[Cell]) -> dict[tuple[str, str, str], str]:
    """What to call an attack, by dataset, attack and library: the library is named where there are several."""
    keys = {(cell.dataset, cell.attack, cell.library) for cell in cells}
    several = Counter((dataset, attack) for dataset, attack, _ in keys)
    return {
        (d, attack, library): f"{attack}@{library}" if several[d, attack] > 1 else attack for d, attack, library in keys
    }


def in_both_tiers(cells: Iterable[Cell]) -> set[tuple[str, str, str]]:
    """Attacks that tiers paper and strict both have: over these, the tiers differ in the way of attacking alone."""
    tiers: dict[str, set[tuple[str, str, str]]] = {"paper": set(), "strict": set()}
    for cell in cells:
        tiers.get(cell.tier, set()).add(cell.setting)
    return tiers["paper"] & tiers["strict"]


def _usual_library(attack: str) -> str:
    return next(iter(ATTACKS.get(attack).backends)) if attack in ATTACKS.targets() else ""


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
