"""Accuracies that the paper published, by dataset, ensemble and attack."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.attacks import NamedAttack
from benchmark.attacks.definitions import came_later
from defenses import specs

Key = tuple[str, int, str, str, float | str, str]


@cache
def _table() -> dict[Key, float]:
    found: dict[Key, float] = {}
    with open(Path(__file__).with_name("adp_icml2019.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            accuracy = float(row["published"])
            if row["metric"] not in ("accuracy", "error"):
                continue
            if row["metric"] == "error":
                accuracy = round(100 - accuracy, 4)
            value: float | str = row["value"]
            if row["parameter"] and row["parameter"] != "classifier":
                value = float(row["value"])
            found[row["dataset"], int(row["members"]), row["attack"], row["parameter"], value, row["defense"]] = (
                accuracy
            )
    return found


def published_accuracy(
    dataset: str, members: int, named: NamedAttack | None, classifier: str, defense: str
) -> float | None:
    """The paper's accuracy in percent for a defense under an attack, if the attack has the paper's settings.

    The paper's settings are the attack's defaults, except for the parameter that the paper's tables vary, and for
    JSMA's eps on MNIST. Without an attack, the number is the accuracy of ``classifier``: a member, or the ensemble.
    """
    if named is None:
        settings: dict[str, Any] = {"classifier": classifier}
        usual: dict[str, Any] = {}
        attack = "none"
    else:
        settings, attack = named.settings(), named.name
        fields = specs.parameters(type(named.attack))
        usual = {key: field.default for key, field in fields.items() if not came_later(field)}
        if attack == "jsma":
            usual["eps"] = 0.2 if dataset == "mnist" else 0.1
    for (data, count, name, parameter, value, who), accuracy in _table().items():
        if (data, count, name, who) == (dataset, members, attack, defense):
            varied = {parameter: value} if parameter else {"classifier": "ensemble"}
            if settings == {**usual, **varied}:
                return accuracy
    return None
