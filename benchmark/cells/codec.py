"""Cells as JSON, and back; the keys are the same as in the first version.

Identities are hashes of this JSON, so old cells keep their files and their names.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, get_args

from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, Order, TestImages
from benchmark.evaluations import TASKS
from benchmark.evaluations.task import Written
from benchmark.evaluations.whitebox import WhiteBox
from defenses.errors import BadInput
from defenses.registry import did_you_mean

PROTOCOL = 1
"""Raised when the evaluation changes in a way that makes older cells wrong."""
HASHED = (
    "dataset", "data_checksum", "weights", "attack", "library", "library_version", "settings", "tier", "evaluation",
    "seed", "batch_size", "device",
)  # fmt: skip
"""The entries in a cell's identity, besides the number of images; `identity_of` adds three special cases."""


UNSAID = {"published": None, "evaluation": "whitebox", "acceleration": "folded"}
"""Entries that the first files did not have, with the values that they implied."""


def to_json(cell: Cell) -> dict[str, Any]:
    """The cell as plain values, for files."""
    task = cell.task.written()
    content: dict[str, Any] = {
        "dataset": cell.images.dataset,
        "data_checksum": cell.images.checksum,
        "defense": cell.ensemble.defense,
        "spec": cell.ensemble.spec,
        "members": cell.ensemble.members,
        "network": cell.ensemble.network,
        "training": cell.ensemble.training,
        "weights": cell.ensemble.weights,
        "attack": task.attack,
        "parameters": task.parameters,
        "library": task.library,
        "library_version": task.library_version,
        "settings": task.settings,
        "tier": task.tier,
        "samples": cell.images.samples,
        "seed": cell.conditions.seed,
        "batch_size": cell.conditions.batch_size,
        "device": cell.conditions.device,
        "published": cell.published,
        "evaluation": cell.task.evaluation,
        "acceleration": cell.conditions.acceleration,
    }
    if cell.ensemble.convergence is not None:
        content["convergence"] = cell.ensemble.convergence
    if cell.images.order != "file":
        content["order"] = cell.images.order
    if task.bound:
        content["bound"] = task.bound
    if task.shared_images is not None:
        content["shared_images"] = task.shared_images
    return content


def from_json(content: Any) -> Cell:
    """The cell that a file describes."""
    try:
        content = {**UNSAID, **content}
        if content["evaluation"] not in TASKS:
            raise BadInput(
                f"the run has cells of evaluation {content['evaluation']!r}; "
                f"{did_you_mean(str(content['evaluation']), TASKS)}"
            )
        written = Written(
            content["attack"],
            content["parameters"],
            content["library"],
            content["library_version"],
            content["settings"],
            content["tier"],
            content.get("bound", ""),
            content.get("shared_images"),
        )
        return Cell(
            EnsembleFacts(
                content["defense"],
                content["spec"],
                content["members"],
                content["network"],
                content["training"],
                content["weights"],
                content.get("convergence"),
            ),
            TASKS[content["evaluation"]].read(written),
            TestImages(content["dataset"], content["data_checksum"], content["samples"], _order(content)),
            Conditions(content["seed"], content["batch_size"], content["device"], content["acceleration"]),
            content["published"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        words = f"{type(error).__name__}: {error}"
        raise BadInput(f"another version of adp-bench wrote this run ({words}); choose another --out") from None


def _order(content: dict[str, Any]) -> Order:
    order: Order = content.get("order", "file")
    if order not in get_args(Order):
        raise ValueError(f"order is {order!r}")
    return order


def identity_of(cell: Cell, with_samples: bool) -> str:
    """Hash of everything that changes the records of a cell's images; ``with_samples`` adds their number."""
    content = to_json(cell)
    hashed = {name: content[name] for name in HASHED} | {"protocol": PROTOCOL}
    if cell.conditions.acceleration != "folded":
        hashed["acceleration"] = cell.conditions.acceleration
    if cell.images.order != "file":
        hashed["order"] = cell.images.order
    if isinstance(cell.task, WhiteBox) and cell.task.shared_images:
        hashed["images"] = "of tier paper"
    if with_samples:
        hashed["samples"] = cell.images.samples
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
