"""The harness as a library: `evaluate` any model that gives logits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.evaluations.task import Task
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, bounds_of, remark, stages
from benchmark.findings.diagnostics import diagnose
from benchmark.findings.rows import COLUMNS, summarise, unfinished
from benchmark.harness.acceleration import accelerated, check_mode
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.harness.soundness import batch_outputs, check_model
from benchmark.harness.subject import Subject
from benchmark.harness.tiers import Tier, check_tier
from benchmark.machine.devices import find_device
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
        each attack is checked by itself and against the others of the call (docs/diagnostics.md). An attack that fails
        has 0 samples and no accuracy; its flag says why.
    """
    rules = check_tier(tier)
    check_mode(acceleration)
    if isinstance(attacks, str):
        raise BadInput(f"attacks is the text {attacks!r}; give a list of specs, such as [{attacks!r}]")
    named = [parse_attack(text) for text in attacks]
    images, labels = _check_images(images, labels, batch_size)
    target = find_device(str(device))
    results: list[tuple[Cell, pd.DataFrame | str]] = []
    with _on_device(model, target), prepared(model):
        images = images.to(target)
        classes = check_model(model, images[:batch_size], labels)
        tasks = _tasks(named, rules, _members(model), classes)
        clean = batch_outputs(model, images, batch_size)
        subject = Subject(
            ensemble=cast(Ensemble, model),
            fast=accelerated(model, images[:batch_size], acceleration, warnings.warn),
            images=images,
            labels=labels.numpy(),
            logits=clean[None],  # a model whose members, if it has any, no attack below asks for
            outputs=clean,
            surrogate=None,
        )
        facts = EnsembleFacts(name, name, _members(model), type(model).__name__, "", "")
        taken, conditions = TestImages("", "", len(labels)), Conditions(seed, batch_size, target.type)
        for task in tasks:
            found = _found(task, subject, batch_size, seed)
            if records is not None and not isinstance(found, str):
                records[task.attack.text if task.attack else task.attack_title] = found
            results.append((Cell(facts, task, taken, conditions), found))
    diagnosis = diagnose([(cell, found) for cell, found in results if not isinstance(found, str)])
    rows = [
        unfinished(cell, found) if isinstance(found, str) else summarise(cell, found, diagnosis)
        for cell, found in results
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _found(task: Task, subject: Subject, batch_size: int, seed: int) -> pd.DataFrame | str:
    """The records of a task, or why there are none: an attack that fails does not cost the others their rows."""
    count = len(subject.labels)
    spans = [Span(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    try:
        return pd.concat([task.batch(subject, span, seed) for span in spans], ignore_index=True)
    except BadInput:
        raise
    except Exception as error:
        words = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        warnings.warn(f"{task.title} {words}", stacklevel=3)
        return words


@contextmanager
def _on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model there, and afterwards where it was."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        raise BadInput(
            "the model was made inside torch.inference_mode(), so its weights let no gradient through; make it outside"
        )
    home = next((tensor.device for tensor in tensors), torch.device("cpu"))
    try:
        with torch.inference_mode(False):  # inside, weights that move would let no gradient through
            model.to(device)
    except (RuntimeError, NotImplementedError) as error:
        raise BadInput(f"the model on {home} cannot be moved to {device} ({error})") from error
    try:
        yield
    finally:
        with torch.inference_mode(False):
            model.to(home)


def _members(model: nn.Module) -> int:
    return len(model) if isinstance(model, Ensemble) else 1


def _tasks(named: list[NamedAttack], tier: Tier, members: int, classes: int) -> list[Task]:
    """What to run: every attack, or in tier ``strong`` the worst case at every bound among them."""
    for words in [remark("full", classes)] if tier == "strong" else [one.remark(classes) for one in named]:
        if words:
            warnings.warn(words, stacklevel=3)
    if tier != "strong":
        for one in named:
            one.check_classes(classes)
        return [WhiteBox(one, tier, tier == "strict" and one.attack.same_in_tiers) for one in named]
    bounds = bounds_of(tuple(named))
    if not bounds:
        raise BadInput("tier strong attacks at the eps of the attacks, and none of these has one; add pgd(eps=…)")
    return [WorstCase(bound, "full", stages("full", bound, members, classes)) for bound in bounds]


def _check_images(images: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    images = images.detach() if isinstance(images, Tensor) else torch.from_numpy(np.array(images, order="C"))
    labels = labels.detach().cpu() if isinstance(labels, Tensor) else torch.from_numpy(np.array(labels, order="C"))
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
    return images.to(torch.float32).contiguous(), labels.to(torch.int64)  # APGD asks for a view of all pixels
