"""One attack on one batch of images, by the rules of a tier: a record per image."""

from __future__ import annotations

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
from benchmark.attacks.native.losses import margin
from benchmark.models import AttackedModel, Output, number_from
from benchmark.tiers import FLAGS, JUDGED, NORMS, as_strict
from benchmark.verification import norms, verify
from defenses.members.ensemble import Ensemble

LOOKED_AT_TWICE = 4
"""Images of a batch that the model judges twice: an output that is drawn at random differs on every one."""


def attack_batch(
    model: nn.Module,
    named: NamedAttack,
    tier: str,
    images: Tensor,
    labels: Tensor,
    clean_output: Tensor,
    first: int,
    seed: int,
    classes: int,
    fast: nn.Module | None = None,
    keep: int = 0,
    keep_successes: bool = False,
) -> pd.DataFrame:
    """Attack a batch and check what comes back; ``first`` is the row of its first image in the test set.

    ``images`` and ``labels`` are on the model's device, ``clean_output`` on the CPU; the model is prepared.
    The attack sees ``fast``, a copy of the model made for speed; the model itself judges the result. The first
    ``keep`` images are kept in the records, clean and adversarial, for a look at them; with ``keep_successes``,
    every adversarial image that fools the model, in full precision.
    """
    attack = named.attack
    if tier == "strict" and attack.same_in_tiers:
        paper = attack_batch(
            model, named, "paper", images, labels, clean_output, first, seed, classes, fast, keep, keep_successes
        )
        return as_strict(paper)
    count = len(labels)
    clean_prediction = clean_output.argmax(-1)
    correct = clean_prediction == labels.cpu()
    rows = torch.arange(count) if tier == "paper" else correct.nonzero().flatten()
    targets = wrong_labels(labels.cpu(), classes, first, seed) if attack.wants_target else None
    adversarial_prediction = clean_prediction.clone()
    found: dict[str, Tensor] = {name: torch.zeros(count, dtype=torch.bool) for name in (*FLAGS, *JUDGED)}
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
        chosen = images[rows.to(images.device)]
        crafted = craft(fast or model, named, chosen, given, first, seed, output, rows)
        adversarial_prediction[rows], judged = judge(
            model, clean_output[rows], crafted.images, given, attack.wants_target
        )
        for name, values in (crafted.found | judged).items():
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
    if keep_successes:
        found_images = {} if crafted is None else dict(zip(rows.tolist(), crafted.images, strict=True))
        fooled = frame["attacked"] & ~frame["correct"]
        add_successes(frame, {row: found_images[row] for row in np.flatnonzero(fooled).tolist()})
    return frame


def add_successes(frame: pd.DataFrame, images: dict[int, Tensor]) -> None:
    """Put adversarial images into the column ``adversarial``, as bytes of float32; None where there is none."""
    pixels = {row: picture.float().cpu().numpy().tobytes() for row, picture in images.items()}
    shapes = {row: list(picture.shape) for row, picture in images.items()}
    frame["adversarial"] = pd.Series(pixels, dtype=object).reindex(frame.index)
    frame["adversarial_shape"] = pd.Series(shapes, dtype=object).reindex(frame.index)


@torch.no_grad()
def judge(
    model: nn.Module, clean: Tensor, adversarial: Tensor, given: Tensor, targeted: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """What the model makes of adversarial images, on the CPU, and what is odd about it; ``clean`` is its clean output.

    ``unstable``: a second look at the same pixels, which the first few images get, gives another output.
    ``wrong_way``: the margin of the class the attack was given moved against the attack's goal.
    """
    after = model(adversarial).cpu()
    unstable = torch.zeros(len(after), dtype=torch.bool)
    again = model(adversarial[:LOOKED_AT_TWICE]).cpu()
    stable = torch.isclose(after[:LOOKED_AT_TWICE], again, rtol=1e-3, atol=1e-4, equal_nan=True)
    unstable[:LOOKED_AT_TWICE] = ~stable.all(-1)
    rise = margin(clean, given) - margin(after, given)  # the loss falls where the given class gains
    return after.argmax(-1), {"unstable": unstable, "wrong_way": rise < 0 if targeted else rise > 0}


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
    rows: Tensor | None = None,
) -> Crafted:
    """Run an attack on a batch and verify what it returns; ``given`` are labels, or targets of a targeted attack.

    ``rows`` are the places of these images in the batch that begins at ``first``, where they are not all of it.
    """
    places = range(len(images)) if rows is None else rows.tolist()
    attacked = AttackedModel(model, output, [(seed, named.text, first + place) for place in places], images)
    backend = named.backend()  # the clock starts when the library is imported
    began = time.perf_counter()
    with seeded(seed, named.text, first):
        raw = backend(attacked, images.clone(), given.to(images.device), named.attack)
    seconds = time.perf_counter() - began
    checked = verify(images, raw.to(images.device), named.attack.budget)
    dead = attacked.dead_gradient
    if dead is None or len(dead) != len(images):  # the attack never asked for the gradient of the whole batch
        dead = torch.zeros(len(images), dtype=torch.bool)
    assert attacked.left is not None
    unmoved = ~checked.moved
    if named.attack.keeps_survivors and attacked.forwards:
        unmoved = torch.zeros_like(unmoved)
    found = {
        "unmoved": unmoved,
        "not_finite": checked.not_finite,
        "out_of_box": checked.out_of_box,
        "out_of_ball": checked.out_of_ball,
        "zero_gradient": dead,
        "never_left": unmoved & ~attacked.left,
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
    shifts = [1 + number_from(seed, "target", first + i) % (classes - 1) for i in range(len(labels))]
    return (labels + torch.tensor(shifts, dtype=labels.dtype)) % classes


@contextmanager
def seeded(seed: int, what: str, first: int) -> Iterator[None]:
    """Seed every generator an attack library may draw from, and put them all back afterwards."""
    number = number_from(seed, what, first)
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
