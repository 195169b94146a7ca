"""Names for readers: ``adp-2-0.5`` is ADP, α=2, β=0.5. Every table, figure, page and sentence uses these names.

Files for programs (CSV, manifests, cells) keep the specs. A name that is not a known spec, such as a user's label, is
not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmark.attacks.bounds import SYMBOLS
from defenses import specs
from defenses.catalogue import DEFENSES
from defenses.errors import BadInput

DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
}
CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "fashion-mnist": (
        "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
}  # fmt: skip
"""The class names of a dataset, in the order of the labels."""
OBJECTIVES = {
    "adp": "ADP",
    "gal": "GAL",
    "trs": "TRS",
    "dverge": "DVERGE",
    "jsd": "JSD",
    "igat": "iGAT",
    "mce": "MCE",
    "mrboost": "MRBoost",
    "barre": "BARRE",
    "lotos": "LOTOS",
    "label-smoothing": "label smoothing",
    "advt": "AdvT",
}
ATTACKS = {
    **{
        name: name.upper()
        for name in ("fgsm", "bim", "pgd", "mim", "jsma", "ead", "mora", "arc", "apgd", "apgd-ce", "apgd-t", "fab-t")
    },
    "cw": "C&W",
    "square": "Square",
    "autoattack": "AutoAttack",
    "worst-case": "worst case",
    "none": "no attack",
}
GREEK = {"eps": "ε", "alpha": "α", "beta": "β", "gamma": "γ", "kappa": "κ", "lambda": "λ", "delta": "δ", "tau": "τ"}
COUNTED = ("steps", "restarts", "queries", "targets", "walks")
SCORES = {
    "diversity": "diversity, predicted label",
    "diversity_true": "diversity, true label",
    "confidence": "confidence",
    "entropy": "negative entropy",
    "agreement": "agreement of members",
}

_PARAMETER = re.compile(r"(?P<key>\w+)=(?P<value>[^=]+)")


def defense(label: str) -> str:
    """``advt-pgd+adp-2-0.5`` is AdvT (PGD) + ADP, α=2, β=0.5."""
    try:
        parts = [specs.parse(DEFENSES.expand(part.strip()), "defense") for part in specs.split(label)]
    except BadInput:
        return label
    return " + ".join(map(_objective, parts))


def inline(label: str) -> str:
    """A defense inside a sentence, where commas would be misread: ADP (α=2, β=0.5)."""
    readable = defense(label)
    name, comma, parameters = readable.partition(", ")
    if readable == label or not comma or "+" in parameters:
        return readable
    return f"{name} ({parameters})"


def attack(name: str, parameters: str = "") -> str:
    """``fgsm`` with ``eps=0.02`` is FGSM, ε=0.02; ``pgd@art`` is PGD (art)."""
    title, _, library = name.partition("@")
    named = f"{ATTACKS.get(title, title)} ({library})" if library else ATTACKS.get(title, title)
    return ", ".join(filter(None, (named, settings(parameters))))


def settings(parameters: str) -> str:
    """``eps=0.01,steps=50`` is ε=0.01, 50 steps."""
    return ", ".join(map(_parameter, parameters.split(",")))


def dataset(name: str) -> str:
    """``cifar10`` is CIFAR-10."""
    return DATASETS.get(name, name)


def class_name(dataset: str, label: int) -> str:
    """The name of a class; its number if it has no name."""
    names = CLASSES.get(dataset, ())
    return names[label] if 0 <= label < len(names) else str(label)


def classifier(name: str) -> str:
    """``net1`` is member 1; the ensemble is the ensemble."""
    number = name.removeprefix("net")
    return f"member {number}" if number != name and number.isdecimal() else name


def score(name: str) -> str:
    """A detection score."""
    return SCORES.get(name, name.replace("_", " "))


def listed(names: Iterable[str]) -> str:
    """Names as a list in a sentence; names with commas are separated by semicolons."""
    words = list(names)
    comma = "; " if any("," in word for word in words) else ", "
    if len(words) < 2:
        return "".join(words)
    return f"{comma.join(words[:-1])}{';' if comma == '; ' else ''} and {words[-1]}"


def _objective(call: specs.Call) -> str:
    name, arguments = OBJECTIVES.get(call.name, call.name), dict(call.arguments)
    if call.name == "label-smoothing" and "target" in arguments:
        name += f" {arguments.pop('target')}"
    elif call.name == "advt" and "attack" in arguments:
        name += f" ({attack(arguments.pop('attack'))})"
    return ", ".join([name, *(_parameter(f"{key}={value}") for key, value in arguments.items())])


def _parameter(text: str) -> str:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        return text
    key, value = match["key"], match["value"].replace("·eps", "·ε")
    letter, _, index = key.partition("_")
    if letter in GREEK:
        return f"{GREEK[letter]}{'_' * bool(index)}{index}={value}"
    if key in COUNTED and value.isdecimal():
        return f"{value} {key if value != '1' else key.removesuffix('s')}"
    if key in ("classifier", "source"):
        return classifier(value) if key == "classifier" else f"source {classifier(value)}"
    if key == "norm" and value in SYMBOLS:
        return SYMBOLS[value]
    if key in ("loss", "suite"):
        return f"{value} {key}"
    if value.lower() in ("true", "false"):
        return f"{'no ' * (value.lower() == 'false')}{key.replace('_', ' ')}"
    return f"{key.replace('_', ' ')} {value}" if "_" in key else f"{key}={value}"
