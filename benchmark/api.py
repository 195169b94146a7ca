"""The harness as a library: `evaluate` any model that gives logits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmark.acceleration import accelerated, check_mode
from benchmark.attacks import NamedAttack, parse_attack
from benchmark.cells import Cell
from benchmark.devices import find_device
from benchmark.diagnostics import diagnose
from benchmark.evaluations import Subject, find_evaluation
from benchmark.models import check_model, outputs, prepared
from benchmark.planning import attack_cell, strong_cell
from benchmark.reports.tables import COLUMNS, summarise
from benchmark.tiers import check_tier
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: Sequence[str],
    tier: str = "strict",
    batch_size: int = 100,
    seed: int = 0,
    device: str | torch.device = "cpu",
    name: str = "model",
    records: dict[str, pd.DataFrame] | None = None,
    acceleration: str = "folded",
) -> pd.DataFrame:
    """Attack a model and measure what accuracy is left; nothing is written to disk.

    Args:
        model: any module that maps images (N, C, H, W) in [0, 1] to logits (N, classes), with its normalisation
            inside, or a `defenses.Ensemble`. It is left as it was: mode, gradients, frozen or not.
        images: float images in [0, 1].
        labels: true classes, (N,).
        attacks: specs, such as ``["fgsm(eps=0.02)", "pgd@art(eps=0.01)"]``; see ``adp-bench list attacks``.
        tier: ``strict`` (true labels, correct outputs), ``paper`` (the paper's quirks included) or ``strong`` (the
            worst case over a suite of strong attacks, one row per eps among ``attacks``).
        batch_size: images attacked at once; the result of some attacks depends on it.
        seed: seed of random starts and targets.
        device: where to run; the model is moved there and back.
        name: what to call the model in the column ``defense``.
        records: a dictionary to receive one data frame of per-image records for each attack spec.
        acceleration: ``folded`` or ``compiled`` attack a fast copy of an ensemble of the package's networks, which is
            checked against it first; ``none`` attacks the ensemble as it is, like any other model.

    Returns:
        One row per attack with the columns of table.csv: accuracies in percent with a 95 % interval, counts of
        images that did not move or had to be mended, cost, and in the column ``flags`` what speaks against the number:
        each attack is checked by itself and against the others of the call (docs/diagnostics.md).
    """
    check_tier(tier)
    check_mode(acceleration)
    if isinstance(attacks, str):
        raise BadInput(f"attacks is the text {attacks!r}; give a list of specs, such as [{attacks!r}]")
    named = [parse_attack(text) for text in attacks]
    images, labels = _check_images(images, labels, batch_size)
    target = find_device(str(device))
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    results = []
    try:
        model.to(target)
        with prepared(model):
            images = images.to(target)
            check_model(model, images, labels)
            clean = outputs(model, images, batch_size)
            subject = Subject(
                ensemble=cast(Ensemble, model),
                fast=accelerated(model, images[:batch_size], acceleration, warnings.warn),
                images=images,
                labels=labels,
                logits=clean[None],  # a model whose members, if it has any, no attack below asks for
                outputs=clean,
                surrogate=None,
            )
            for cell, attack in _cells(model, named, tier, name, len(labels), seed, batch_size, target.type):
                batch = find_evaluation(cell.evaluation)
                starts = range(0, len(labels), batch_size)
                parts = [batch(subject, cell, attack, i, min(i + batch_size, len(labels))) for i in starts]
                found = pd.concat(parts, ignore_index=True)
                if records is not None:
                    records[attack.text if attack else f"{cell.attack}({cell.parameters})"] = found
                results.append((cell, found))
    finally:
        model.to(home)
    diagnosis = diagnose(results)
    return pd.DataFrame([summarise(*result, diagnosis) for result in results], columns=list(COLUMNS))


def _cells(
    model: nn.Module,
    named: list[NamedAttack],
    tier: str,
    name: str,
    samples: int,
    seed: int,
    batch_size: int,
    device: str,
) -> list[tuple[Cell, NamedAttack | None]]:
    """What to run: every attack, or in tier ``strong`` the worst case at every eps among them."""
    base = {
        "dataset": "",
        "data_checksum": "",
        "defense": name,
        "spec": name,
        "members": len(model) if isinstance(model, Ensemble) else 1,
        "network": type(model).__name__,
        "training": "",
        "weights": "",
        "seed": seed,
        "batch_size": batch_size,
        "device": device,
    }
    if tier != "strong":
        return [(attack_cell(base, attack, samples, "whitebox", tier=tier), attack) for attack in named]
    radii = dict.fromkeys(attack.attack.budget for attack in named if attack.attack.budget is not None)
    if not radii:
        raise BadInput("tier strong attacks at the eps of the attacks, and none of these has one; add pgd(eps=…)")
    return [(strong_cell(base, "full", eps, samples), None) for eps in radii]


def _check_images(images: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    images = torch.as_tensor(images).detach()
    labels = labels.detach().cpu() if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels))
    if batch_size < 1:
        raise BadInput(f"batch_size is {batch_size}; it must be at least 1")
    if images.ndim != 4 or not images.is_floating_point():
        raise BadInput(f"images are {images.dtype} of shape {tuple(images.shape)}; give floats of shape (N, C, H, W)")
    if labels.ndim != 1 or len(labels) != len(images) or len(labels) == 0:
        raise BadInput(f"{len(images)} images and labels of shape {tuple(labels.shape)}; give one class per image")
    if labels.is_floating_point():
        raise BadInput("labels are floats; give whole numbers, one class per image")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise BadInput(f"images range from {low:g} to {high:g}; give pixels in [0, 1] and normalise inside the model")
    return images.to(torch.float32), labels.to(torch.int64)
