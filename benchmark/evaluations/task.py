"""The parts of an evaluation: its task, its section of a preset, its planner, its batch function and its columns.

A task is the measurement of one cell. A section is the part of a preset that requests tasks; it plans the tasks for one
trained ensemble. A task measures a batch of images and defines the columns of the records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from benchmark.attacks import ATTACKS, EOT, NamedAttack, parse_attack, read_asked, recorded_class
from benchmark.attacks.bounds import BOUND, Bound, read_bound
from benchmark.attacks.definitions import came_later
from benchmark.attacks.library_attacks import LibraryAttack
from benchmark.attacks.library_facts import LIBRARIES
from benchmark.attacks.own_attacks import recorded
from benchmark.evaluations.preset_table import PresetTable
from benchmark.harness.records import RECORDS, Schema, Span
from defenses import specs
from defenses.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from benchmark.harness.subject import Subject
    from benchmark.harness.tiers import Tier


def member_name(number: int) -> str:
    """The name of a member in records and tables; ``number`` counts from 0, the name from 1."""
    return f"net{number + 1}"


def member_number(name: str) -> int:
    """The member that a name stands for."""
    return int(name.removeprefix("net")) - 1


class Written(NamedTuple):
    """The task as a cell's file describes it; the keys are the same as in the first version."""

    attack: str
    parameters: str
    library: str
    library_version: str
    settings: dict[str, Any]
    tier: str
    """A tier, or ``clean`` or ``black-box``, which are not tiers."""
    bound: str = ""
    shared_images: bool | None = None
    """Whether a cell of tier strict has the images of tier paper; None in files of the first version."""


@dataclass(frozen=True)
class Task:
    """The measurement of one cell; frozen and hashable, with its attacks as objects."""

    evaluation: ClassVar[str]
    """The name of the evaluation in files."""
    records: ClassVar[Schema] = RECORDS
    in_tables: ClassVar[bool] = False
    """Whether its cells are rows of the tables."""
    keeps_images: ClassVar[bool] = False
    """Whether its adversarial images can be kept."""
    white_box: ClassVar[bool] = False
    """Whether the ensemble itself is attacked."""

    @property
    def attack(self) -> NamedAttack | None:
        """The attack of the task; None without an attack, or with a suite of attacks."""
        return None

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        """Every attack that it runs."""
        return (self.attack,) if self.attack else ()

    @property
    def bound(self) -> Bound | None:
        """The ball that adversarial images must stay in."""
        return self.attack.bound if self.attack else None

    @property
    def tier(self) -> Tier | None:
        """The tier; None for evaluations without tiers."""
        return None

    @property
    def group(self) -> str:
        """The part of a table that has its row: a tier, or the name of the evaluation."""
        return self.tier or self.evaluation

    @property
    def name(self) -> str:
        """The attack's name in a table."""
        return self.attack.name if self.attack else "none"

    @property
    def parameters(self) -> str:
        """The attack's parameters in a table."""
        return self.attack.parameters if self.attack else ""

    @property
    def library(self) -> str:
        """The library behind the attack, for a table."""
        return self.attack.library if self.attack else "none"

    @property
    def attack_title(self) -> str:
        """The attack with its parameters, and with the library if it is not the default."""
        if self.attack:
            return self.attack.title
        return f"{self.name}({self.parameters})" if self.parameters else self.name

    @property
    def origin(self) -> str:
        """The source of the adversarial images, in words; empty if that is the ensemble."""
        return ""

    @property
    def title(self) -> str:
        """The task in a line of progress."""
        return f"{self.attack_title}{self.origin} · {self.evaluation}"

    @property
    def extras(self) -> tuple[Any, ...]:
        """Settings of the task other than the attack and its bound."""
        return ()

    def variant(self, *but: str) -> tuple[Any, ...]:
        """A key that tasks share if they differ only in the parameters ``but`` of the attack."""
        settings = self.attack.settings() if self.attack else {}
        rest = tuple(sorted((key, value) for key, value in settings.items() if key not in but))
        return self.evaluation, self.group, self.name, self.bound and self.bound.norm, rest, *self.extras

    @property
    def asked(self) -> tuple[Any, ...]:
        """A key of the request, without library versions and surrogate; equal for all cells of one table row."""
        return *self.variant(), self.library, self.bound

    @property
    def used(self) -> dict[str, str]:
        """Other facts that its result may depend on: versions of libraries, a surrogate."""
        return {self.attack.library: self.attack.version} if self.attack else {"none": ""}

    def gradients(self, scalars: int, classes: int, members: int) -> float:
        """Largest number of gradients of the whole ensemble for one image; a query counts as `FORWARD`."""
        return self.attack.gradients(scalars, classes) if self.attack else 0.0

    def written(self) -> Written:
        """The task as a file describes it."""
        return written_attack(self.attack, {}, self.group) if self.attack else written_none({}, "clean")

    @classmethod
    @abstractmethod
    def read(cls, written: Written) -> Task:
        """The task that a file describes."""

    @abstractmethod
    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        """One record per image of a batch."""


def written_attack(named: NamedAttack, extra: Mapping[str, Any], tier: str) -> Written:
    """How a file describes a task with one attack."""
    bound = "" if named.bound is None else str(named.bound)
    settings = {**named.settings(), **extra}
    return Written(named.name, named.parameters, named.library, named.version, settings, tier, bound)


def written_none(settings: dict[str, Any], tier: str) -> Written:
    """How a file describes a task without an attack."""
    return Written("none", ",".join(f"{key}={value}" for key, value in settings.items()), "none", "", settings, tier)


def read_attack(written: Written, *extra: str) -> NamedAttack:
    """The attack that a file describes; the settings ``extra`` do not belong to the attack.

    An attack that is no longer registered, or whose parameters changed, is a `RecordedAttack`.
    """
    settings = {key: value for key, value in written.settings.items() if key not in extra}
    asked = read_asked(settings.pop(BOUND, None))
    parameters = written.parameters if asked is None else written.parameters.rpartition(f"{BOUND}=")[0].rstrip(",")
    eot = int(settings.pop(EOT, 1))
    parameters = parameters.removesuffix(f"{EOT}={eot}").rstrip(",") if eot > 1 else parameters
    found = _registered(written.attack, settings, parameters) or _foreign(written, settings, parameters)
    if found is None:
        kind = recorded_class(written.attack)
        bound = read_bound(written.bound) if written.bound else None
        eps = settings.get("eps")
        known = kind.strength if written.attack in ATTACKS.targets() else "eps"
        if not written.bound and known == "eps" and isinstance(eps, (int, float)):
            bound = Bound("linf", float(eps))  # the first version wrote no bounds: all were L∞
        values = tuple(
            sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in settings.items())
        )
        found = kind(parameters, values, bound)
    return NamedAttack(written.attack, written.library, found, written.library_version, asked, eot)


def _foreign(written: Written, settings: dict[str, Any], parameters: str) -> Any:
    """The attack of a library's own class or of a file; None for any other attack."""
    if written.attack in ATTACKS.targets():
        return None
    if written.library.endswith(".py"):
        known = written.bound and BOUND not in written.settings
        return recorded(written.attack, settings, parameters, read_bound(written.bound) if known else None)
    if written.library not in LIBRARIES:
        return None
    values = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in settings.items())
    return LibraryAttack(written.attack, values, parameters, written.library)


def _registered(name: str, settings: dict[str, Any], parameters: str) -> Any:
    if name not in ATTACKS.targets():
        return None
    target = ATTACKS.get(name)
    fields = specs.parameters(target)
    if settings.keys() - fields.keys():
        return None
    if any(not came_later(fields[key]) for key in fields.keys() - settings.keys()):
        return None
    try:
        attack = target.from_settings(settings)
    except BadInput:
        return None
    return attack if attack.parameters == parameters else None


# --- how a preset asks for tasks ---


class Planned(NamedTuple):
    """A task and its number of images."""

    task: Task
    samples: int
    published: float | None = None
    """The paper's accuracy in percent; None if the paper has none."""
    whole: bool = False
    """Whether all images are one batch."""


@dataclass(frozen=True)
class Amount:
    """Numbers of images: one for a reasonable time on a CPU, and one as in the paper; 0 means all images."""

    keys: ClassVar[tuple[str, ...]] = ("samples", "paper_samples")
    """Its keys in a preset."""

    samples: int = 0
    paper_samples: int = 0

    @classmethod
    def read(cls, table: PresetTable, usual: int = 0) -> Amount:
        """Read the numbers of images from a preset's table; ``usual`` is the default on a CPU."""
        return cls(table.number("samples", usual), table.number("paper_samples", 0))


EVERYTHING = Amount()
"""All images."""


@dataclass(frozen=True)
class Setting:
    """The input of a section's plan: one trained ensemble in one grid."""

    members: int
    classes: int
    tiers: tuple[Tier, ...]
    rows: tuple[NamedAttack, ...]
    """Attacks of the white-box rows from which tier strong takes its bounds."""
    images: Callable[[Amount], int]
    """The number of images to take."""
    test_size: int
    published: Callable[[NamedAttack | None, str], float | None]
    """The paper's accuracy for an attack; without an attack, for a classifier."""
    surrogate: str | None = None
    """Hash of the weights of the surrogate ensemble for black-box attacks."""
    reduced: bool = False
    """Whether tier strong begins with a pass in bfloat16."""
    randomised: bool = False
    """Whether the ensemble draws a member for each prediction."""


@dataclass(frozen=True)
class Choice:
    """The user's choice of attacks in a grid, by name or spec."""

    attacks: tuple[str, ...]
    has_rows: bool
    """Whether the grid has white-box rows; named attacks then select only these rows."""
    names: frozenset[str]
    """Names of the attacks in all sections of the grid."""
    has_clean: bool = False
    """Whether the grid has a row without an attack; its name is ``none``."""
    surrogate: str | None = None


@dataclass(frozen=True)
class Section:
    """The part of a preset that requests an evaluation."""

    key: ClassVar[str]
    """Its key in a preset."""
    title: ClassVar[str]
    """Its name in messages about numbers of images."""
    compared: ClassVar[bool] = False
    """Whether `adp-bench compare` runs it."""

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        """The attacks it names."""
        return ()

    @property
    def amounts(self) -> tuple[tuple[str, Amount], ...]:
        """Numbers of images, each with the title of its section or attack."""
        return ()

    @classmethod
    @abstractmethod
    def read(cls, table: PresetTable) -> Section:
        """Read the section from a preset's table."""

    def narrow(self, choice: Choice) -> Section | None:
        """The section with the attacks that the user chose; None if nothing is left."""
        return None if choice.attacks else self

    @abstractmethod
    def plan(self, setting: Setting) -> Iterator[Planned]:
        """The tasks for one ensemble."""


@dataclass(frozen=True)
class AttackSection(Section):
    """A section with a list of attacks and one number of images."""

    named: tuple[NamedAttack, ...]
    amount: Amount

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        return self.named

    @property
    def amounts(self) -> tuple[tuple[str, Amount], ...]:
        return ((self.title, self.amount),)

    @classmethod
    def read(cls, table: PresetTable) -> AttackSection:
        table.only("attacks", *Amount.keys)
        named = []
        for number, text in enumerate(table.texts("attacks"), 1):
            with table.naming(f"attacks {number}"):
                named.append(parse_attack(text))
        found = cls(tuple(named), Amount.read(table))
        with table.naming("attacks"):
            found.check(named)
        return found

    def narrow(self, choice: Choice) -> Section | None:
        if not choice.attacks:
            return self
        if choice.has_rows:
            return None
        chosen: list[NamedAttack] = []
        for text in choice.attacks:
            same = [named for named in self.named if named.name == text]
            chosen += same if text in choice.names else [parse_attack(text)]
        self.check(chosen)
        return type(self)(tuple(dict.fromkeys(chosen)), self.amount) if chosen else None

    def check(self, chosen: list[NamedAttack]) -> None:
        """Refuse attacks that the evaluation cannot use."""
