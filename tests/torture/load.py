"""Large and tiny: many cells, many images, many members and classes, one pixel and many."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.cells.store import Store
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject
from defenses.catalogue import parse_defense
from defenses.members.diversity import log_ensemble_diversity
from defenses.members.ensemble import Ensemble
from tests.torture.attempts import Setting, Tally, call

ATTACKS = ("fgsm", "bim", "pgd", "mim")


def attack(setting: Setting, tally: Tally) -> None:
    cells, images = setting.amount(100, 6), setting.amount(10_000, 50)
    _try(tally, f"{cells} cells of {images} images", lambda: _report(setting, "wide", cells, images, 240))
    cells = setting.amount(1000, 20)
    _try(tally, f"{cells} cells", lambda: _report(setting, "many", cells, 20, 300))
    _try(tally, "open work among many cells", lambda: _open_work(setting))
    for members, classes in ((20, 1000), (20, 21), (2, 1000), (1, 2)):
        _try(tally, f"{members} members, {classes} classes", lambda k=members, c=classes: _members(k, c))
    _try(tally, "diversity of 20 members, 1000 classes", lambda: _diversity(20, 1000))
    for size, classes in ((1, 2), (1, 10), (8, 2), (224, 10), (224, 1000)):
        _try(tally, f"{size} pixels, {classes} classes", lambda s=size, c=classes: _evaluate(s, c, setting))


def _try(tally: Tally, told: str, work: Callable[[], str]) -> None:
    """Do one thing; what it says is wrong, and whatever it raises, is told."""
    tally.tried += 1
    try:
        fault = work()
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        tally.wrong.append(f"{told}: {fault}")


def _cell(number: int, images: int, samples: int | None = None) -> Cell:
    task = WhiteBox(parse_attack(f"{ATTACKS[number % 4]}(eps={(number // 4 % 25 + 1) / 100})"), "strict")
    name = f"defense {number // 100}"
    facts = EnsembleFacts(name, name, 3, "mini-resnet", "by hand", f"weights of {name}")
    return Cell(facts, task, TestImages("digits", "0" * 64, samples or images), Conditions(0, images, "cpu"))


def _records(cell: Cell) -> Any:
    draws = np.random.default_rng(cell.images.samples)
    columns = {"label": 3, "clean_prediction": 3, "attacked": True, "correct": draws.random(cell.images.samples) < 0.5}
    columns |= {"forwards": 1.0, "backwards": 1.0, "seconds": 0.001, "batch_size": cell.conditions.batch_size}
    return cell.task.records.frame(Span(0, cell.images.samples), columns)


def _store(folder: Path, cells: list[Cell]) -> Store:
    store = Store(folder)
    store.open("torture")
    store.write_manifest(cells, {"preset": "torture", "title": "By hand", "commands": []})
    for cell in cells:
        store.write(cell, _records(cell))
    return store


def _report(setting: Setting, name: str, count: int, images: int, seconds: float) -> str:
    _store(setting.folder / name, [_cell(number, images) for number in range(count)])
    answer = call(["report", name], setting.folder, seconds)
    rows = (setting.folder / name / "table.csv").read_text().count("\n") - 1 if answer.code == 0 else 0
    return "" if rows == count else f"{rows} rows, exit code {answer.code} {answer.stopped}: {answer.last}"


def _open_work(setting: Setting) -> str:
    """Asking what is there of each of many open cells costs about the same for each, however many there are."""
    times = []
    for count in (setting.amount(125, 5), setting.amount(1000, 20)):
        store = _store(setting.folder / f"open{count}", [_cell(number, 5) for number in range(count)])
        store = Store(store.folder)
        began = time.process_time()
        for number in range(count):
            store.batches(_cell(number, 5, samples=10))
        times.append((time.process_time() - began) / count)
    return f"{times[0]:.4f} s a cell among few, {times[1]:.4f} s among many" if times[1] > 4 * times[0] else ""


def _members(members: int, classes: int) -> str:
    """Objective and diversity of random logits are finite, or refused with a reason."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(members, 8, classes, generator=generator, requires_grad=True)
    labels = torch.randint(classes, (8,), generator=generator)
    defense = parse_defense("adp-2-0.5").defense
    if members < 2 or members > classes - 1:
        return ""
    defense.check(members, classes)
    total = sum(term.sum() for term in defense.objective(logits, labels).values())
    assert isinstance(total, Tensor)
    (gradient,) = torch.autograd.grad(total, logits)
    led = log_ensemble_diversity(logits.detach(), labels)
    fine = torch.isfinite(total) and torch.isfinite(gradient).all() and not torch.isnan(led).any()
    return "" if fine else f"objective {total}, diversity {led}"


def _diversity(members: int, classes: int) -> str:
    """The evaluation ``diversity``: a finite number or minus infinity for every image, and no NaN."""
    torch.manual_seed(0)
    model, images = Ensemble([_Tiny(classes) for _ in range(members)], 0.0).eval(), torch.rand(40, 1, 8, 8)
    with torch.no_grad():
        logits, outputs = model.member_logits(images), model(images)
    labels = np.arange(40)
    subject = Subject(model, model, images, labels, logits, outputs, None)
    records = Diversity().batch(subject, Span(0, 40), 0)
    return "" if len(records) == 40 and not records["led"].isna().any() else str(records["led"].tolist())


class _Tiny(nn.Module):
    """One convolution and a linear layer, for images of any size."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.convolution(images).relu().mean((2, 3)))


def _evaluate(size: int, classes: int, setting: Setting) -> str:
    torch.manual_seed(0)
    members = [_Tiny(classes) for _ in range(setting.amount(20, 3))]
    images, labels = torch.rand(6, 1, size, size), torch.arange(6) % classes
    model = Ensemble(members, 0.0)
    table = evaluate(model, images, labels, ["fgsm(eps=0.1)", "pgd(eps=0.1,steps=3)"], batch_size=3)
    fine = len(table) == 2 and table["accuracy"].between(0, 100).all()
    return "" if fine else table.to_csv()
