"""Evaluate batches on a Ray cluster: every node gets an ensemble and its images once, and returns records."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import ray
import torch
from torch import Tensor

from benchmark.attacks import library_version
from benchmark.cells.cell import Cell
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.machine.devices import accelerators
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Batch, Failure, Outcome, bundles
from benchmark.run.executors.parcels import Parcel, pack, records, unpack
from defenses.errors import USER_FILE, BadInput, RunFailed
from defenses.members.ensemble import predict_logits

RETRIES = 3
"""Largest number of restarts of a task whose process or node is lost."""


@contextmanager
def connected(address: str | None) -> Iterator[OnRay]:
    """Connect to the cluster at an address; by default to this machine's cluster, or to a new one for this run only."""
    before = ray.is_initialized()
    if not before:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            words = " ".join(str(error).split())
            raise BadInput(
                f"no Ray cluster at {address}: {words:.200}; start one with `ray start --head`, or omit --ray-address"
            ) from None
    try:
        yield OnRay()
    finally:
        if not before:
            ray.shutdown()


@dataclass(frozen=True)
class OnRay:
    """The cluster that this process is connected to."""

    def find_device(self, name: str) -> torch.device:
        """``auto`` uses GPUs if any node of the cluster has one."""
        gpus = ray.cluster_resources().get("GPU", 0)
        kind = next((device.type for device in accelerators()), "cuda")  # the driver may have no GPU
        if name not in ("auto", "cpu", kind):
            raise BadInput(f"unknown device {name!r}; with --executor ray write auto, cpu or {kind}")
        if name == kind and not gpus:
            raise BadInput(f"device {kind!r} was asked for, but no node of the Ray cluster has a GPU; use --device cpu")
        return torch.device(kind if gpus and name != "cpu" else "cpu")

    def train(self, missing: Sequence[EnsembleRequest], device: torch.device, display: RunDisplay) -> None:
        """Do nothing: the driver trains the ensembles, one after the other."""

    def run(self, batches: Iterable[Batch], display: RunDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they arrive. Twice as many tasks as fit are submitted at once, so that no node waits."""
        waiting = bundles(batches)
        bundle = next(waiting, None)
        if bundle is None:
            return
        share = _share(bundle[0].material.device)
        nodes, room = _room(share)
        if not room:
            raise BadInput(_too_large(share))
        display.say(f"ray: {room} tasks at a time on {nodes} nodes, {_words(share)} each")
        options = {**share, "max_retries": RETRIES}
        glance, attack = ray.remote(**options)(_look), ray.remote(**options)(_evaluate)
        material, parcel, clean = None, None, None
        pending: dict[Any, list[Batch]] = {}
        try:
            while bundle or pending:
                while bundle and len(pending) < max(2 * room, 1):
                    if bundle[0].material is not material:  # the previous parcel is kept until its tasks end
                        material = bundle[0].material
                        _send_code_of_files()
                        parcel = ray.put(pack(material, bundle[0].cell))
                        clean = glance.remote(parcel)
                    spans = [batch.span for batch in bundle]
                    pending[attack.remote(parcel, clean, bundle[0].cell, spans)] = bundle
                    bundle = next(waiting, None)
                done, _ = ray.wait(list(pending), timeout=1.0)
                for task in done:
                    yield from _outcomes(task, pending.pop(task), display)
                before, (nodes, room) = nodes, _room(share)
                if nodes < before:
                    display.say(f"ray: {before - nodes} of {before} nodes lost; their tasks run again on other nodes")
        finally:
            for task in pending:
                ray.cancel(task, force=True)


def _share(device: torch.device) -> dict[str, int]:
    """The resources of a task: a GPU, or as many CPUs as this process has threads."""
    return {"num_cpus": torch.get_num_threads()} if device.type == "cpu" else {"num_cpus": 1, "num_gpus": 1}


def _words(share: dict[str, int]) -> str:
    return " and ".join(
        f"{number} {name.removeprefix('num_').removesuffix('s').upper()}" for name, number in share.items()
    )


def _room(share: dict[str, int]) -> tuple[int, int]:
    """The number of live nodes, and how many tasks they can run at once."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return len(there), sum(min(int(has.get(names[name], 0) // need) for name, need in share.items()) for has in there)


def _too_large(share: dict[str, int]) -> str:
    largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    return f"a task needs {_words(share)}, but no node of the Ray cluster has that; use --threads {max(largest, 1)}"


def _outcomes(task: Any, bundle: list[Batch], display: RunDisplay) -> Iterator[Outcome]:
    """The outcomes of a task; a task that was lost too often is a failure of its cell."""
    try:
        results, remarks = ray.get(task)
    except ray.exceptions.RayTaskError as error:  # before any attack: the subject could not be built
        if isinstance(error.cause, BadInput):
            raise BadInput(str(error.cause)) from None
        raise RunFailed(f"a task of {bundle[0].cell.title} failed on its node: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        words = (str(error).strip() or "lost").splitlines()[0]
        yield Outcome(bundle[0], Failure(type(error).__name__, words))
        return
    for line in remarks:
        display.say(line)
    for batch, result in zip(bundle, results, strict=False):  # no more results after a failure
        yield Outcome(batch, result)


def _send_code_of_files() -> None:
    """Send the code of the user's files with the ensemble, because a node cannot import them."""
    for name, module in list(sys.modules.items()):
        if name.startswith(USER_FILE):
            ray.cloudpickle.register_pickle_by_value(module)


# --- on a node ---


def _look(parcel: Parcel) -> Tensor:
    """Member logits of the clean images, computed once per ensemble."""
    material = unpack(parcel)
    material.ensemble.to(material.device)
    with prepared(material.ensemble):
        return predict_logits(material.ensemble, material.test, material.batch_size)


def _evaluate(
    parcel: Parcel, logits: Tensor, cell: Cell, spans: list[Span]
) -> tuple[list[pd.DataFrame | Failure], list[str]]:
    """Records of batches of a cell, and the messages for the user."""
    _check_libraries(cell)
    remarks: list[str] = []
    return records(parcel, logits, cell, spans, remarks.append), remarks


def _check_libraries(cell: Cell) -> None:
    """Refuse the cell if this node has another version of an attack library than the cell names."""
    for named in cell.task.attacks:
        here = library_version(named.library)
        if here != named.version:
            raise BadInput(
                f"a node of the Ray cluster has {named.library} {here}, the driver {named.version}; "
                "install the same version"
            )
