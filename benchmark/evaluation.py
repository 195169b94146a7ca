"""One attack on one batch of images, by the rules of a tier: a record per image."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmark.attacks import NamedAttack
from benchmark.models import AttackedModel, Output, predict
from benchmark.verification import norms, verify
from defenses.errors import BadInput
from defenses.registry import did_you_mean

TIERS = {
    "paper": "the paper's attacks with the paper's quirks: predicted labels, probabilities as logits, all images",
    "strict": "the same attacks with true labels and correct outputs; an image that is wrong already counts as wrong",
}


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
) -> pd.DataFrame:
    """Attack a batch and check what comes back; ``first`` is the row of its first image in the test set.

    ``images`` and ``labels`` are on the model's device, ``clean_prediction`` on the CPU; the model is prepared.
    The attack sees ``fast``, a copy of the model made for speed; the model itself judges the result.
    """
    attack = named.attack
    count = len(labels)
    correct = clean_prediction == labels.cpu()
    rows = torch.arange(count) if tier == "paper" else correct.nonzero().flatten()
    targets = wrong_labels(labels.cpu(), classes, first, seed) if attack.wants_target else None
    adversarial_prediction = clean_prediction.clone()
    record: dict[str, Any] = {
        "index": np.arange(first, first + count),
        "label": labels.cpu().numpy(),
        "clean_prediction": clean_prediction.numpy(),
        "target": targets.numpy() if targets is not None else np.full(count, -1),
        "attacked": np.isin(np.arange(count), rows.numpy()),
    }
    zeros: dict[str, Any] = {name: torch.zeros(count, dtype=torch.bool) for name in _FLAGS}
    sizes: dict[str, Any] = {name: torch.zeros(count, dtype=torch.float64) for name in ("linf", "l2", "l1", "l0")}
    forwards = backwards = 0
    seconds = 0.0
    if len(rows):
        device = images.device
        chosen = images[rows.to(device)]
        if targets is not None:
            given = targets[rows].to(device)
        elif tier == "paper" and attack.paper_labels == "predicted":
            given = clean_prediction[rows].to(device)
        else:
            given = labels[rows.to(device)]
        output: Output = attack.paper_output if tier == "paper" else "log-probabilities"
        attacked = AttackedModel(fast or model, output)
        began = time.perf_counter()
        with seeded(seed, named.text, first):
            raw = named.backend()(attacked, chosen.clone(), given, attack)
        seconds = time.perf_counter() - began
        checked = verify(chosen, raw.to(device), attack.budget)
        adversarial_prediction[rows] = predict(model, checked.images, count)
        dead = attacked.dead_gradient
        if dead is not None and len(dead) == len(rows):
            zeros["zero_gradient"][rows] = dead.cpu()
        zeros["unmoved"][rows] = ~checked.moved.cpu()
        for name in ("not_finite", "out_of_box", "out_of_ball"):
            zeros[name][rows] = getattr(checked, name).cpu()
        for name, values in norms(chosen, checked.images).items():
            sizes[name][rows] = values.double().cpu()
        forwards, backwards = attacked.forwards, attacked.backwards
    record["adversarial_prediction"] = adversarial_prediction.numpy()
    still = adversarial_prediction == labels.cpu()
    record["correct"] = (still if tier == "paper" else still & correct).numpy()
    record |= {name: values.numpy() for name, values in {**sizes, **zeros}.items()}
    record["forwards"] = forwards / count
    record["backwards"] = backwards / count
    record["seconds"] = seconds / count
    record["batch_size"] = count
    return pd.DataFrame(record)


_FLAGS = ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient")


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
