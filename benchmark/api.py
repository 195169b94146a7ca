"""The harness as a library: `evaluate` a model that returns logits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmark.attacks import NamedAttack
from benchmark.attacks.objects import GivenAttack, as_attack
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.evaluations.task import Task
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import SUITES, WorstCase, bounds_of, remark, stages
from benchmark.findings.diagnostics import diagnose
from benchmark.findings.rows import COLUMNS, summarise, unfinished
from benchmark.harness.acceleration import accelerated, check_mode
from benchmark.harness.prepared import DRAWS, answers, is_random, prepared
from benchmark.harness.records import Span
from benchmark.harness.seeding import seeded
from benchmark.harness.soundness import batch_outputs, check_model
from benchmark.harness.subject import LOOKED_AT, Subject
from benchmark.harness.tiers import Tier, check_tier
from benchmark.machine.batch_bar import BatchBar
from benchmark.machine.devices import find_device
from benchmark.reports.tables.short import ResultTable
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble
from defenses.registry import did_you_mean
from defenses.training.convergence import doubts


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: Sequence[GivenAttack],
    tier: str = "strict",
    batch_size: int = 100,
    seed: int = 0,
    device: str | torch.device = "cpu",
    name: str = "model",
    records: dict[str, pd.DataFrame] | None = None,
    acceleration: str = "folded",
    suite: str | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Attack a model and measure its accuracy. Nothing is written to disk.

    Args:
        model: a `torch.nn.Module` that maps images (N, C, H, W) in [0, 1] to logits (N, classes), or a
            `defenses.Ensemble`. The model normalises the images itself. Its mode, its gradients and
            ``requires_grad`` are restored afterwards.
        images: float images in [0, 1].
        labels: true classes, (N,).
        attacks: a list. Each entry is a spec, an attack object or a function. Specs are, for example,
            ``"fgsm(eps=0.02)"``, ``"art:DeepFool(max_iter=50)"`` or ``"mine.py:attack(bound=l2:0.5)"``;
            ``adp-bench list attacks`` shows the names. Attack objects of torchattacks, ART and foolbox keep their
            parameters. A function ``(model, images, labels)`` needs a bound: ``(function, Bound("l2", 0.5))``.
        tier: ``strict`` (true labels, correct outputs), ``paper`` (the paper's protocol, including its errors) or
            ``strong`` (the worst case over a suite of strong attacks, one row for each bound in ``attacks``).
        batch_size: number of images in an attack batch. The result of some attacks depends on it.
        seed: seed of random starts and targets.
        device: device of the evaluation. The model is moved there, and back afterwards.
        name: name of the model in the column ``defense``.
        records: a dictionary. The call adds one data frame of per-image records for each attack spec.
        acceleration: ``folded`` and ``compiled`` attack a faster copy of the ensemble, after checking that it
            gives the same outputs and gradients. ``none`` attacks the ensemble itself. Models with batch norm have
            a faster copy. ``reduced`` is ``folded``, and tier ``strong`` begins with a short pass in bfloat16.
        suite: suite of tier ``strong``: ``full``, or ``quick`` with fewer and shorter attacks (docs/attacks.md). A
            suite implies tier ``strong``, which uses only the bounds of ``attacks``, as in ``["pgd(eps=8/255)"]``.
        progress: True shows a progress bar, False shows none. By default a terminal shows one after two seconds.

    Returns:
        A data frame with one row per attack and the columns of table.csv: accuracy in percent with a 95 % interval,
        numbers of unchanged, clipped and projected images, and cost. The column ``flags`` contains warnings: each
        attack is checked by itself and against the other attacks of the call (docs/diagnostics.md). An attack that
        fails has 0 samples and no accuracy; its flag gives the reason. Printing the data frame shows a short form.
    """
    rules = check_tier(tier) if suite is None else _strong(suite, tier)
    check_mode(acceleration)
    _check_kinds(model, images)
    if isinstance(attacks, str):
        raise BadInput(f"attacks is the text {attacks!r}; give a list of specs, such as [{attacks!r}]")
    named = [as_attack(given) for given in attacks]
    images, labels = _check_images(images, labels, batch_size)
    target = find_device(str(device))
    results: list[tuple[Cell, pd.DataFrame | str]] = []
    with BatchBar(progress) as bar, _on_device(model, target), prepared(model):
        bar.begin(f"{len(images)} clean images")
        images = images.to(target)
        classes = check_model(model, images[:batch_size], labels)
        draws = DRAWS if is_random(model, images[:batch_size][:LOOKED_AT]) else 1
        tasks = _tasks(named, rules, suite or "full", model, classes, acceleration == "reduced")
        clean = batch_outputs(model, images, batch_size)
        first = clean[:batch_size].to(target)
        outputs, right = clean, None
        if draws > 1 or _randomised(model):
            with seeded(0, "clean", 0):
                outputs, right = answers(model, images, labels.numpy(), batch_size, draws)
        subject = Subject(
            ensemble=cast(Ensemble, model),
            fast=accelerated(model, images[:batch_size], acceleration, warnings.warn, first),
            images=images,
            labels=labels.numpy(),
            logits=clean[None],  # as one member: no attack below uses the logits of single members
            outputs=outputs,
            surrogate=None,
            say=warnings.warn,
            report=bar.report,
            draws=draws,
            expected=right,
        )
        facts = EnsembleFacts(name, name, _members(model), type(model).__name__, "", "", _convergence(model))
        taken, conditions = TestImages("", "", len(labels)), Conditions(seed, batch_size, target.type)
        spans = [Span(start, min(start + batch_size, len(labels))) for start in range(0, len(labels), batch_size)]
        bar.expect(len(tasks) * len(spans))
        for task in tasks:
            bar.begin(task.title)
            found = _found(task, subject, spans, seed, bar)
            bar.end()
            if records is not None and not isinstance(found, str):
                records[task.attack.text if task.attack else task.attack_title] = found
            results.append((Cell(facts, task, taken, conditions), found))
    diagnosis = diagnose([(cell, found) for cell, found in results if not isinstance(found, str)])
    rows = [
        unfinished(cell, found) if isinstance(found, str) else summarise(cell, found, diagnosis)
        for cell, found in results
    ]
    return ResultTable(rows, columns=list(COLUMNS))


def _strong(suite: str, tier: str) -> Tier:
    """Check the suite, which implies tier strong."""
    if suite not in SUITES:
        raise BadInput(f"unknown suite {suite!r}; {did_you_mean(suite, SUITES)}")
    if tier == "paper":
        raise BadInput(f"suite {suite!r} belongs to tier strong, not to tier paper; omit one of them")
    return "strong"


def _check_kinds(model: object, images: object) -> None:
    """Refuse common wrong types of model and images; the error names the right type."""
    if isinstance(model, (list, tuple, nn.ModuleList)):
        raise BadInput("model is a list; to evaluate one ensemble of these models, give defenses.Ensemble(models)")
    if isinstance(model, str):
        raise BadInput(f"model is the text {model!r}; give defenses.load_checkpoint({model!r})")
    if isinstance(model, type):
        raise BadInput(f"model is the class {model.__name__}; give an object of it, such as {model.__name__}()")
    if not isinstance(model, nn.Module):
        what = "a function" if callable(model) else f"of type {type(model).__name__}"
        raise BadInput(f"model is {what}; give a torch.nn.Module whose forward(images) returns logits")
    if isinstance(images, DataLoader):
        raise BadInput("images are a DataLoader; give tensors: images, labels = map(torch.cat, zip(*loader))")
    if isinstance(images, Dataset):
        raise BadInput(
            "images are a Dataset; give tensors: images, labels = next(iter(DataLoader(dataset, len(dataset))))"
        )


def _found(task: Task, subject: Subject, spans: list[Span], seed: int, bar: BatchBar) -> pd.DataFrame | str:
    """The records of a task, or the reason for its failure. The other attacks keep their rows."""
    parts = []
    try:
        for span in spans:
            parts.append(task.batch(subject, span, seed))
            bar.step()
        return pd.concat(parts, ignore_index=True)
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit from an attack or a model
        words = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        warnings.warn(f"{task.title} {words}", stacklevel=3)
        return words


@contextmanager
def _on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Move the model to the device, and back afterwards."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        raise BadInput(
            "the model was made inside torch.inference_mode(), so its weights have no gradient; make it outside"
        )
    home = next((tensor.device for tensor in tensors), torch.device("cpu"))
    try:
        with torch.inference_mode(False):  # in inference mode, moved weights would give no gradient
            model.to(device)
    except (RuntimeError, NotImplementedError) as error:
        raise BadInput(f"the model on {home} cannot be moved to {device} ({error}); choose another device") from error
    try:
        yield
    finally:
        with torch.inference_mode(False):
            model.to(home)


def _convergence(model: nn.Module) -> str | None:
    """Warnings about the training, if the model was loaded from a checkpoint that records them."""
    origin = model.provenance if isinstance(model, Ensemble) else None
    return doubts(origin) if origin else None


def _members(model: nn.Module) -> int:
    return len(model) if isinstance(model, Ensemble) else 1


def _randomised(model: nn.Module) -> bool:
    return isinstance(model, Ensemble) and model.combination.randomised


def _tasks(
    named: list[NamedAttack], tier: Tier, suite: str, model: nn.Module, classes: int, reduced: bool
) -> list[Task]:
    """Tasks to run: every attack, or in tier ``strong`` the worst case at every bound of the attacks."""
    for words in [remark(suite, classes)] if tier == "strong" else [one.remark(classes) for one in named]:
        if words:
            warnings.warn(words, stacklevel=3)
    if tier != "strong":
        for one in named:
            one.check_classes(classes)
        return [WhiteBox(one, tier, tier == "strict" and one.attack.same_in_tiers) for one in named]
    bounds = bounds_of(tuple(named))
    if not bounds:
        raise BadInput("tier strong needs an attack with a bound, which sets the radius; add pgd(eps=…)")
    members, randomised = _members(model), _randomised(model)
    return [WorstCase(bound, suite, stages(suite, bound, members, classes, reduced, randomised)) for bound in bounds]


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
        raise BadInput("labels are floats; give integers, one class per image")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise BadInput(f"images range from {low:g} to {high:g}; give pixels in [0, 1] and normalise inside the model")
    return images.to(torch.float32).contiguous(), labels.to(torch.int64)  # APGD needs a view of all pixels
