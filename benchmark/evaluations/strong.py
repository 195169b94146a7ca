"""The strong tier: the worst case over a suite of attacks at one eps, image by image.

An image that is fooled leaves; only survivors go on to the next attack, so a broken defense costs little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmark.attacks import NamedAttack, library_version, parse_attack
from benchmark.cells import Cell
from benchmark.evaluation import Crafted, add_successes, craft
from benchmark.evaluations import Subject
from benchmark.models import predict
from benchmark.tiers import FLAGS, NORMS
from defenses.members.ensemble import Ensemble
from defenses.specs import value_text

ATTACK = "worst-case"
"""What the tier's rows are called in tables."""

SUITES = {
    "full": (
        "fgsm(eps={eps})",
        "bim(eps={eps})",
        "pgd(eps={eps})",
        "mim(eps={eps})",
        "pgd(eps={eps},steps=50,step_size={step},restarts=5)",
        "pgd(eps={eps},steps=50,step_size={step},restarts=5,loss=margin)",
        "mora(eps={eps})",
        "pgd@native(eps={eps},steps=50,step_size={step}) from members",
        "apgd-ce(eps={eps})",
        "apgd-t(eps={eps})",
        "fab-t(eps={eps})",
        "square(eps={eps})",
    ),
    "quick": (
        "fgsm(eps={eps})",
        "bim(eps={eps})",
        "pgd(eps={eps})",
        "mim(eps={eps})",
        "pgd(eps={eps},steps=50,step_size={step},restarts=2)",
        "pgd(eps={eps},steps=50,step_size={step},restarts=2,loss=margin)",
        "mora(eps={eps},targets=0,steps=50)",
        "pgd@native(eps={eps},steps=50,step_size={step}) from members",
        "apgd-ce(eps={eps},steps=50)",
        "square(eps={eps},queries=300)",
    ),
}
"""Attacks in the order they run: cheap ones, ones that leave fooled images alone, then the rest of the reference
AutoAttack. ``full`` is the tier; ``quick`` is its sketch, for data where robustness is not the question."""


@dataclass(frozen=True)
class Stage:
    """One attack of the suite, made on the whole ensemble or on one member (``net1`` …)."""

    named: NamedAttack
    source: str

    @property
    def label(self) -> str:
        """For readers: the attack, and where it is made."""
        return self.named.label + ("" if self.source == "ensemble" else f" from {self.source}")

    @property
    def text(self) -> str:
        """For a cell's identity: with the library and its version."""
        version = library_version(self.named.library)
        return f"{self.label.replace(self.named.label, self.named.text)} [{version}]"


def stages(suite: str, eps: float, members: int) -> list[Stage]:
    """The attacks of a suite at one eps against an ensemble of so many members."""
    found = []
    for template in SUITES[suite]:
        text = template.format(eps=value_text(eps), step=value_text(eps / 5))
        alone = text.endswith(" from members")
        if alone and members < 2:
            continue
        named = parse_attack(text.removesuffix(" from members"))
        sources = [f"net{k + 1}" for k in range(members)] if alone else ["ensemble"]
        found += [Stage(named, source) for source in sources]
    return found


def read_stage(text: str) -> Stage:
    """The stage that a text in a cell's settings stands for."""
    match = re.fullmatch(r"(?P<attack>.+?)(?: from (?P<source>net\d+))? \[.*\]", text)
    assert match is not None, text
    return Stage(parse_attack(match["attack"]), match["source"] or "ensemble")


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Run the cell's suite on the images that are classified right; what is fooled leaves."""
    rows = slice(first, end)
    clean, labels, images = subject.clean[rows], subject.labels[rows], subject.images[rows]
    count = end - first
    survivors = (clean == labels).nonzero().flatten()
    prediction = clean.clone()
    found: dict[str, Tensor] = {name: torch.zeros(count, dtype=torch.bool) for name in FLAGS}
    found["unmoved"][survivors] = True  # until some attack moves it
    found |= {name: torch.zeros(count, dtype=torch.float64) for name in NORMS}
    broken_at = torch.full((count,), -1)
    columns: dict[str, Tensor] = {}
    attacked = torch.zeros(count, dtype=torch.bool)
    attacked[survivors] = True
    kept: dict[int, Tensor] = {}
    suite = [read_stage(text) for text in cell.settings["stages"]]
    for number, stage in enumerate(suite):
        cost = {name: torch.zeros(count, dtype=torch.float64) for name in ("forwards", "backwards", "seconds")}
        source_fooled = torch.zeros(count, dtype=torch.bool)
        if len(survivors):
            subject.report(f"{stage.label} on {len(survivors)} images")
            chosen = survivors.to(images.device)
            crafted = _craft(subject, stage, images[chosen], labels[survivors], first, cell.seed, survivors)
            for name in cost:
                cost[name][survivors] = getattr(crafted, name) / len(survivors)
            predicted = predict(subject.ensemble, crafted.images, count)
            fooled = predicted != labels[survivors]
            if stage.source != "ensemble":
                own = predict(subject.ensemble.member(_index(stage)), crafted.images, count)
                source_fooled[survivors] = own != labels[survivors]
            _note(found, crafted, survivors, fooled)
            prediction[survivors[fooled]] = predicted[fooled]
            broken_at[survivors[fooled]] = number
            if subject.keep_images:
                kept |= dict(zip(survivors[fooled].tolist(), crafted.images[fooled.to(chosen.device)], strict=True))
            survivors = survivors[~fooled]
        columns |= {f"stage{number:02d}_{name}": values for name, values in cost.items()}
        if stage.source != "ensemble":
            columns[f"stage{number:02d}_source_fooled"] = source_fooled
    names = np.array([*(stage.label for stage in suite), ""], dtype=object)
    frame = pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": clean.numpy(),
            "target": np.full(count, -1),
            "attacked": attacked.numpy(),
            "adversarial_prediction": prediction.numpy(),
            "correct": (prediction == labels).numpy(),
            "broken_at": broken_at.numpy(),
            "broken_by": names[broken_at.numpy()],
            **{name: values.numpy() for name, values in found.items()},
            **{
                name: torch.stack([columns[f"stage{number:02d}_{name}"] for number in range(len(suite))]).sum(0).numpy()
                for name in ("forwards", "backwards", "seconds")
            },
            "batch_size": count,
            **{name: values.numpy() for name, values in columns.items()},
        }
    )
    if subject.keep_images:
        add_successes(frame, kept)
    return frame


def _index(stage: Stage) -> int:
    return int(stage.source.removeprefix("net")) - 1


def _craft(
    subject: Subject, stage: Stage, images: Tensor, labels: Tensor, first: int, seed: int, rows: Tensor
) -> Crafted:
    model = subject.fast
    if stage.source != "ensemble":
        assert isinstance(model, Ensemble)
        model = model.member(_index(stage))
    return craft(model, stage.named, images, labels, first, seed, rows=rows)


def _note(found: dict[str, Tensor], crafted: Crafted, survivors: Tensor, fooled: Tensor) -> None:
    """Keep what was seen: norms of what fooled, and whether anything ever moved, left the ball or lost its gradient."""
    found["unmoved"][survivors] &= crafted.found["unmoved"]
    for name in ("not_finite", "out_of_box", "out_of_ball", "zero_gradient"):
        found[name][survivors] |= crafted.found[name]
    for name in NORMS:
        found[name][survivors[fooled]] = crafted.found[name][fooled].double()
