"""The plan of ``crosscheck``: the attacks, their settings and their images, for every library."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace

from benchmark.attacks import ATTACKS, NamedAttack, library_version, parse_attack
from benchmark.datasets.lookup import find
from benchmark.evaluations.task import Amount
from benchmark.evaluations.whitebox import Row, WhiteBoxSection
from benchmark.plan.grid import Grid
from benchmark.plan.labels import read_labels
from benchmark.plan.presets import Preset, usual_recipe
from defenses import specs
from defenses.errors import BadInput
from defenses.training.recipes import Look

NAME = "crosscheck"


@dataclass(frozen=True)
class Program:
    """The default attacks on a dataset, if the user names none."""

    minutes: float
    """On one core, without training."""
    usual: dict[str, str]
    """Values of required parameters, for attacks that are not listed."""
    samples: int
    """Images for attacks that are not listed."""
    listed: dict[str, int]
    """Spec to number of images, which is the same for every library, and small if one of them is slow."""


_DIGITS = Program(
    minutes=2,
    usual={"eps": "0.1", "c": "1", "gamma": "0.3"},
    samples=50,
    listed={
        "fgsm(eps=0.1)": 300,
        "bim(eps=0.1)": 300,
        "pgd(eps=0.1)": 300,
        "mim(eps=0.1)": 300,
        "jsma(gamma=0.3,eps=0.2)": 100,
        "cw(c=1,steps=50,lr=0.05)": 100,
        "ead(c=5,steps=50)": 100,
        "apgd-ce(eps=0.1,steps=50)": 100,
        "apgd-t(eps=0.1,steps=20)": 100,
        "fab-t(eps=0.1,steps=20)": 50,
        "square(eps=0.2,queries=200)": 100,
    },
)
_MNIST = Program(
    minutes=15,
    usual={"eps": "0.1", "c": "1", "gamma": "0.05"},
    samples=20,
    listed={
        "fgsm(eps=0.1)": 100,
        "bim(eps=0.1)": 100,
        "pgd(eps=0.1)": 100,
        "mim(eps=0.1)": 100,
        "jsma(gamma=0.05,eps=0.2)": 16,
        "cw(c=1,steps=50,lr=0.05)": 16,
        "ead(c=5,steps=50)": 16,
        "apgd-ce(eps=0.1,steps=50)": 50,
        "apgd-t(eps=0.1,steps=20)": 20,
        "fab-t(eps=0.1,steps=20)": 20,
        "square(eps=0.2,queries=200)": 20,
    },
)
_CIFAR = Program(
    minutes=15,
    usual={"eps": "0.01", "c": "0.1", "gamma": "0.01"},
    samples=20,
    listed={
        "fgsm(eps=0.01)": 100,
        "bim(eps=0.01)": 100,
        "pgd(eps=0.01)": 100,
        "mim(eps=0.01)": 100,
        "jsma(gamma=0.01)": 16,
        "cw(c=0.1,steps=50)": 16,
        "ead(c=1,steps=50)": 16,
        "apgd-ce(eps=0.01,steps=50)": 50,
        "apgd-t(eps=0.01,steps=20)": 20,
        "fab-t(eps=0.01,steps=20)": 20,
        "square(eps=0.03,queries=200)": 20,
    },
)
PROGRAMS: dict[Look, Program] = {"tiny": _DIGITS, "grey": _MNIST, "colour": _CIFAR}


def crosscheck_preset(dataset: str, defense: str, asked: list[str], samples: int | None = None) -> Preset:
    """The requested attacks, or all attacks of several libraries, in each of their libraries, in tier strict."""
    about = find(dataset)
    program = PROGRAMS[about.look]
    shared = _shared(program)
    attacks = dict(_asked(text, shared, program) for text in asked) if asked else shared
    rows = tuple(
        # the same number of images on a CPU (samples) and on a GPU (paper_samples)
        Row(one, Amount(samples or images, samples or images))
        for named, images in attacks.items()
        for one in every_library(named)
    )
    defenses, labels = read_labels([defense])
    _refuse_alone([row.named for row in rows])
    grid = Grid(
        dataset=dataset,
        defenses=defenses,
        labels=labels,
        tiers=("strict",),
        members=3,
        network=about.network,
        recipe=usual_recipe(dataset),
        batch_size=100,
        sections=(WhiteBoxSection(rows),),
    )
    return Preset(NAME, "One attack, every library", (grid,))


def every_library(named: NamedAttack) -> list[NamedAttack]:
    """The attack in each library that supports its settings, default first; ``LIBRARY:CLASS`` is returned unchanged."""
    if named.attack.named_in_full:
        return [named]
    first = named.attack.usual_library
    return [
        replace(named, library=name, version=library_version(name))
        for name in dict.fromkeys([first, *named.attack.backends])
        if not named.attack.refusal(name)
    ]


def _refuse_alone(attacks: list[NamedAttack]) -> None:
    """Refuse an attack of one library or file if no other attack has its bound: nothing is comparable with it."""
    for named in attacks:
        beside = [one for one in attacks if one != named and one.bound == named.bound]
        if named.attack.named_in_full and not beside:
            bound = f"within {named.bound}" if named.bound else "without a bound"
            raise BadInput(f"{named.text} has no attack to compare with; add another --attack {bound}")


def remarks(dataset: str, samples: int | None) -> tuple[str, ...]:
    """Messages before a full run: attacks without a default setting, and the expected time."""
    missing = [
        f"{name} has no default setting for {dataset}: choose one with --attack '{name}(…)'"
        for name in without_setting(dataset)
    ]
    time = f"everything on {dataset} takes about {PROGRAMS[find(dataset).look].minutes:g} minutes on one core"
    return (*missing, time) if samples is None else tuple(missing)


def without_setting(dataset: str) -> list[str]:
    """Attacks of several libraries without a default setting here; they run only with a full spec."""
    known = {named.name for named in _shared(PROGRAMS[find(dataset).look])}
    return [name for name in ATTACKS.targets() if len(ATTACKS.get(name).backends) > 1 and name not in known]


def _shared(program: Program) -> dict[NamedAttack, int]:
    """Attacks of several libraries with their numbers of images: listed attacks first, then the others by name."""
    found = {parse_attack(text): samples for text, samples in program.listed.items()}
    listed = {named.name for named in found}
    for name in ATTACKS.targets():
        fields = specs.parameters(ATTACKS.get(name)).items()
        needed = [key for key, field in fields if field.default is MISSING]
        if name not in listed and set(needed) <= program.usual.keys():
            arguments = ",".join(f"{key}={program.usual[key]}" for key in needed)
            found[parse_attack(f"{name}({arguments})")] = program.samples
    return {named: samples for named, samples in found.items() if len(named.attack.backends) > 1}


def _asked(text: str, shared: dict[NamedAttack, int], program: Program) -> tuple[NamedAttack, int]:
    """A requested attack and its number of images: a bare name gets the default setting, a full spec is kept."""
    own = {named.name: (named, samples) for named, samples in shared.items()}
    if text in own:
        return own[text]
    if ":" in text.partition("(")[0]:  # LIBRARY:CLASS or file.py:name
        return parse_attack(text), program.samples
    name, at, library = specs.parse(text, "attack").name.partition("@")
    if at:
        raise BadInput(
            f"attack {text!r} names a library, but every library is run; write {text.replace(at + library, '', 1)}"
        )
    libraries = list(ATTACKS.get(name).backends)
    if len(libraries) > 1:  # some of these libraries may not support the setting
        named = parse_attack(text)
        libraries = [one.library for one in every_library(named)]
    if len(libraries) == 1:
        raise BadInput(
            f"attack {text!r} exists only in {libraries[0]}, so there is nothing to compare; "
            f"attacks of several libraries: {', '.join(own)}"
        )
    return named, own[name][1] if name in own else program.samples
