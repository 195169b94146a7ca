"""One attack on one batch of images, by the rules of a tier: a record per image."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmark.attacks import NamedAttack
from benchmark.models import AttackedModel, Output, predict
from benchmark.verification import norms, verify
from defenses.ensemble import Ensemble
from defenses.errors import BadInput
from defenses.registry import did_you_mean

TIERS = {
    "paper": "the paper's attacks with the paper's quirks: predicted labels, probabilities as logits, all images",
    "strict": "the same attacks with true labels and correct outputs; an image that is wrong already counts as wrong",
}


FLAGS = ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient")
NORMS = ("linf", "l2", "l1", "l0")


def check_tier(tier: str) -> str:
    """The tier, if there is one of that name."""
    if tier not in TIERS:
        raise BadInput(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    return tier


def attack_batch(
    model: nn.Module,
    named: NamedAttack,
    tier: str,
    images: Tensor,
    labels: Tensor,
    clean_prediction: Tensor,
    first: int,
    seed: int,
    classes: int,
    fast: nn.Module | None = None,
    keep: int = 0,
) -> pd.DataFrame:
    """Attack a batch and check what comes back; ``first`` is the row of its first image in the test set.

    ``images`` and ``labels`` are on the model's device, ``clean_prediction`` on the CPU; the model is prepared.
    The attack sees ``fast``, a copy of the model made for speed; the model itself judges the result. The first
    ``keep`` images are kept in the records, clean and adversarial, for a look at them.
    """
    attack = named.attack
    count = len(labels)
    correct = clean_prediction == labels.cpu()
    rows = torch.arange(count) if tier == "paper" else correct.nonzero().flatten()
    targets = wrong_labels(labels.cpu(), classes, first, seed) if attack.wants_target else None
    adversarial_prediction = clean_prediction.clone()
    found: dict[str, Tensor] = {name: torch.zeros(count, dtype=torch.bool) for name in FLAGS}
    found |= {name: torch.zeros(count, dtype=torch.float64) for name in NORMS}
    crafted = None
    if len(rows):
        if targets is not None:
            given = targets[rows]
        elif tier == "paper" and attack.paper_labels == "predicted":
            given = clean_prediction[rows]
        else:
            given = labels.cpu()[rows]
        output: Output = attack.paper_output if tier == "paper" else "log-probabilities"
        crafted = craft(fast or model, named, images[rows.to(images.device)], given, first, seed, output)
        adversarial_prediction[rows] = predict(model, crafted.images, count)
        for name, values in crafted.found.items():
            found[name][rows] = values.to(found[name].dtype)
    still = adversarial_prediction == labels.cpu()
    frame = pd.DataFrame(
        {
            "index": np.arange(first, first + count),
            "label": labels.cpu().numpy(),
            "clean_prediction": clean_prediction.numpy(),
            "target": targets.numpy() if targets is not None else np.full(count, -1),
            "attacked": np.isin(np.arange(count), rows.numpy()),
            "adversarial_prediction": adversarial_prediction.numpy(),
            "correct": (still if tier == "paper" else still & correct).numpy(),
            **{name: values.numpy() for name, values in found.items()},
            **cost_columns(crafted, count),
        }
    )
    if keep and crafted is not None:
        _keep_images(frame, model, images, rows, crafted, keep)
    return frame


def _keep_images(
    frame: pd.DataFrame, model: nn.Module, images: Tensor, rows: Tensor, crafted: Crafted, keep: int
) -> None:
    """Add half-precision copies of the first attacked images to look at, and what each member makes of them."""
    chosen = rows[:keep].numpy()
    adversarial = crafted.images[: len(chosen)]
    columns: dict[str, list[Any]] = {"shape": [list(images.shape[1:])] * len(chosen)}
    for name, pictures in (("clean", images[rows[:keep].to(images.device)]), ("adversarial", adversarial)):
        columns[f"image_{name}"] = [picture.half().cpu().numpy().tobytes() for picture in pictures]
    if isinstance(model, Ensemble):
        with torch.no_grad():
            columns["members"] = model.member_logits(adversarial).argmax(-1).cpu().T.tolist()
    for name, values in columns.items():
        frame[name] = pd.Series(values, index=chosen, dtype=object).reindex(frame.index)


@dataclass(frozen=True)
class Crafted:
    """Adversarial images that passed verification, what was found on each (on the CPU), and what they cost."""

    images: Tensor
    found: dict[str, Tensor]
    forwards: int
    backwards: int
    seconds: float


def craft(
    model: nn.Module,
    named: NamedAttack,
    images: Tensor,
    given: Tensor,
    first: int,
    seed: int,
    output: Output = "log-probabilities",
) -> Crafted:
    """Run an attack on a batch and verify what it returns; ``given`` are labels, or targets of a targeted attack."""
    attacked = AttackedModel(model, output)
    began = time.perf_counter()
    with seeded(seed, named.text, first):
        raw = named.backend()(attacked, images.clone(), given.to(images.device), named.attack)
    seconds = time.perf_counter() - began
    checked = verify(images, raw.to(images.device), named.attack.budget)
    dead = attacked.dead_gradient
    if dead is None or len(dead) != len(images):  # the attack never asked for the gradient of the whole batch
        dead = torch.zeros(len(images), dtype=torch.bool)
    found = {
        "unmoved": ~checked.moved,
        "not_finite": checked.not_finite,
        "out_of_box": checked.out_of_box,
        "out_of_ball": checked.out_of_ball,
        "zero_gradient": dead,
        **norms(images, checked.images),
    }
    on_cpu = {name: values.cpu() for name, values in found.items()}
    return Crafted(checked.images, on_cpu, attacked.forwards, attacked.backwards, seconds)


def cost_columns(crafted: Crafted | None, count: int) -> dict[str, float | int]:
    """What a batch cost, shared evenly by its images."""
    if crafted is None:
        return {"forwards": 0.0, "backwards": 0.0, "seconds": 0.0, "batch_size": count}
    return {
        "forwards": crafted.forwards / count,
        "backwards": crafted.backwards / count,
        "seconds": crafted.seconds / count,
        "batch_size": count,
    }


def wrong_labels(labels: Tensor, classes: int, first: int, seed: int) -> Tensor:
    """A uniformly drawn wrong label per image; it depends on the image's row and the seed alone."""
    shifts = [1 + _number(seed, "target", first + i) % (classes - 1) for i in range(len(labels))]
    return (labels + torch.tensor(shifts, dtype=labels.dtype)) % classes


@contextmanager
def seeded(seed: int, what: str, first: int) -> Iterator[None]:
    """Seed every generator an attack library may draw from, and put them all back afterwards."""
    number = _number(seed, what, first)
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(number)
        np.random.seed(number % 2**32)
        torch.manual_seed(number)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
