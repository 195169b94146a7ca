"""Evaluate and train in worker processes of this machine: as many as its cores allow, or one per accelerator.

Workers only compute. They write no files except the checkpoints of ensembles that they train. They end when the process
that started them ends, for any reason.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import pandas as pd
import torch
from rich.console import Console

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import announce, training_seconds
from benchmark.ensembles.training import train_ensemble
from benchmark.harness.subject import Material
from benchmark.machine import devices
from benchmark.machine.hardware import room_for_workers
from benchmark.machine.waiting import saying
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Batch, Failure, Outcome, bundles
from benchmark.run.executors.local import Local
from benchmark.run.executors.parcels import Parcel, pack, records
from defenses.errors import BadInput, RunFailed

PATIENCE = 10.0
"""Seconds of work before workers start by default: a start takes seconds, and most runs that last longer are long."""
AHEAD = 2
"""Jobs that a worker has at once, so that it never waits for the next one."""
RETRIES = 3
"""Largest number of restarts of a job whose worker is lost."""


@dataclass(eq=False)
class Workers:
    """Several processes; ``count`` is None if the user did not set their number."""

    count: int | None = None
    crew: _Crew | None = None
    """Workers of the training. They are kept for the batches, because starting a worker takes seconds."""

    def close(self) -> None:
        """End the remaining workers."""
        if self.crew:
            self.crew.stop()
        self.crew = None

    def find_device(self, name: str) -> torch.device:
        """The named device of this machine; for a type without a number, each device of that type gets a worker."""
        return devices.find_device(name)

    def places(self, device: torch.device) -> list[torch.device]:
        """The device of each worker."""
        one = device.type == "cpu" or device != torch.device(device.type)  # the CPU, or a device named by its number
        kind = [device] if one else devices.accelerators()
        count = self.count or (room_for_workers(torch.get_num_threads()) if device.type == "cpu" else len(kind))
        return [kind[number % len(kind)] for number in range(count)]

    def train(self, missing: Sequence[EnsembleRequest], device: torch.device, display: RunDisplay) -> None:
        """Train different ensembles in parallel, each in one worker, the longest training first."""
        places = self.places(device)[: len(missing)]
        if len(places) < 2:
            return
        with saying("measuring how long the trainings take", display.say):
            seconds = {wanted: training_seconds(wanted, str(places[0])) for wanted in missing}
        if self.count is None and sum(seconds.values()) < 2 * PATIENCE:
            return  # each ensemble is announced and trained when it is needed
        for wanted in missing:
            announce(wanted, seconds[wanted], display.say)
        display.say(f"training {len(places)} ensembles at a time")
        self.crew = _Crew.of(places, display)
        longest_first = sorted(missing, key=seconds.__getitem__, reverse=True)
        jobs = (_Job(wanted.defense, _Training(wanted)) for wanted in longest_first)
        for job, result in self.crew.results(jobs, ahead=1):
            if isinstance(result, Failure):
                raise RunFailed(f"training {job.title}: {result.words}; run the same command again to resume")

    def run(self, batches: Iterable[Batch], display: RunDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they arrive; without a given number of workers, the first seconds of work run in this process."""
        waiting = iter(batches)
        if self.count is None and self.crew is None:
            yield from Local().run(_until(time.monotonic() + PATIENCE, waiting), display)
        first = next(waiting, None)
        if first is None:
            self.close()
            return
        places = self.places(first.material.device)
        left = _with_first(first, waiting)
        if len(places) < 2:
            yield from Local().run(left, display)
            return
        display.say(f"{len(places)} workers with {_share(places)} each")
        crew = self.crew = self.crew or _Crew([], display)
        crew.workers += [_Worker(device) for device in places[len(crew.workers) :]]
        try:
            jobs = (_Job(bundle[0].cell.title, _Evaluation(bundle)) for bundle in bundles(left))
            for job, result in crew.results(jobs):
                assert isinstance(job.work, _Evaluation)
                yield from job.work.outcomes(result, display)
        finally:
            self.close()


def _until(deadline: float, batches: Iterator[Batch]) -> Iterator[Batch]:
    while time.monotonic() < deadline:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _with_first(first: Batch, others: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from others


def _share(places: list[torch.device]) -> str:
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads != 1)}" if places[0].type == "cpu" else f"one device, {places[0].type}"


# --- jobs ---


class CannotTravel(Exception):
    """An object cannot be pickled for another process, such as a class from a user's file."""


@dataclass(frozen=True, eq=False)
class _Training:
    """An ensemble to train."""

    wanted: EnsembleRequest

    def give(self, worker: _Worker) -> Future[Any]:
        return worker.pool.submit(_train, self.wanted, str(worker.device))


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """Batches of one cell."""

    bundle: list[Batch]

    def give(self, worker: _Worker) -> Future[Any]:
        """Send the batches to a worker, and first the ensemble if the worker does not have it."""
        cell, material = self.bundle[0].cell, self.bundle[0].material
        try:
            parcel = None if worker.has is material else pickle.dumps(_parcel(material, self.bundle[0], worker.device))
            task = pickle.dumps((cell, [batch.span for batch in self.bundle]))
        except (AttributeError, ImportError, TypeError, pickle.PicklingError) as error:
            stays: Future[Any] = Future()
            stays.set_exception(CannotTravel(str(error)))
            return stays
        worker.has = material
        return worker.pool.submit(_evaluate, parcel, task)

    def outcomes(self, result: Any, display: RunDisplay) -> Iterator[Outcome]:
        """The outcomes from a worker; batches that cannot be sent to a worker are evaluated here."""
        if isinstance(result, CannotTravel):
            yield from Local().run(self.bundle, display)
        elif isinstance(result, Failure):
            yield Outcome(self.bundle[0], result)
        else:
            for batch, found in zip(self.bundle, result, strict=False):  # no more results after a failure
                yield Outcome(batch, found)


def _parcel(material: Material, batch: Batch, device: torch.device) -> Parcel:
    return pack(replace(material, device=device), batch.cell)


@dataclass(eq=False)
class _Job:
    """A training or an evaluation, and the number of workers that were lost during it."""

    title: str
    work: _Training | _Evaluation
    losses: int = 0


# --- the processes ---


@dataclass(eq=False)
class _Worker:
    """One process and its connection. It sends messages over the connection, and ends when the connection closes."""

    device: torch.device
    line: Connection = field(init=False)
    pool: ProcessPoolExecutor = field(init=False)
    has: Material | None = None
    """The material that the worker received last."""
    jobs: dict[Future[Any], _Job] = field(default_factory=dict)
    """In the order of submission, which is also the order of execution."""

    def __post_init__(self) -> None:
        self.line, theirs = multiprocessing.Pipe()
        self.pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(theirs, os.getcwd(), torch.get_num_threads()),
        )

    def say_what_it_says(self, display: RunDisplay) -> None:
        while self.line.poll():
            words, inside_a_batch = self.line.recv()
            if not inside_a_batch:
                display.say(words)
                continue
            for job in list(self.jobs.values())[:1]:
                if isinstance(job.work, _Evaluation):
                    display.report(words, job.work.bundle[0].cell)

    def stop(self) -> None:
        """End the process at once, even during a job, and wait until it has ended."""
        self.line.close()
        self.pool.shutdown(wait=True, cancel_futures=True)


@dataclass(eq=False)
class _Crew:
    """The workers of a run. A lost worker is replaced, and its jobs are assigned again."""

    workers: list[_Worker]
    display: RunDisplay

    @classmethod
    def of(cls, places: list[torch.device], display: RunDisplay) -> _Crew:
        return cls([_Worker(device) for device in places], display)

    def stop(self) -> None:
        for worker in self.workers:
            worker.line.close()
        for worker in self.workers:
            worker.stop()

    def results(self, jobs: Iterator[_Job], ahead: int = AHEAD) -> Iterator[tuple[_Job, Any]]:
        """Every job with its result, as it arrives: the worker's return value, a `Failure`, or `CannotTravel`."""
        again: deque[_Job] = deque()
        while True:
            while (worker := min(self.workers, key=lambda one: len(one.jobs))) and len(worker.jobs) < ahead:
                job = again.popleft() if again else next(jobs, None)
                if job is None:
                    break
                worker.jobs[job.work.give(worker)] = job
            under_way = [future for worker in self.workers for future in worker.jobs]
            if not under_way:
                return
            wait(under_way, timeout=0.5, return_when=FIRST_COMPLETED)
            for place, worker in enumerate(self.workers):
                worker.say_what_it_says(self.display)
                for future in [future for future in worker.jobs if future.done()]:
                    if isinstance(future.exception(), BrokenProcessPool):
                        self.workers[place] = _Worker(worker.device)
                        yield from self._lost(worker, again)
                        break
                    yield worker.jobs.pop(future), _result(future)

    def _lost(self, worker: _Worker, again: deque[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Assign the jobs of a lost worker again; its first job, which was running, fails after `RETRIES` retries."""
        worker.stop()
        first, *others = worker.jobs.values()
        first.losses += 1
        again.extendleft([*reversed(others)])
        words = f"its worker process ended {first.losses} times; if memory ran out, use fewer --workers"
        if first.losses > RETRIES:
            yield first, Failure("WorkerLost", words)
        else:
            self.display.say(f"a worker process ended during {first.title}; the batch runs again")
            again.appendleft(first)


def _result(future: Future[Any]) -> Any:
    error = future.exception()
    if error is None or isinstance(error, CannotTravel):
        return error or future.result()
    if isinstance(error, (BadInput, RunFailed)):
        raise error
    raise RunFailed(f"a worker process failed: {type(error).__name__}: {error}") from error


# --- in a worker ---

_line: Connection | None = None
_parcels: list[Parcel] = []
"""Only the last parcel."""


def _begin(line: Connection, folder: str, threads: int) -> None:
    """Set up a worker: it ignores interrupts, and ends with the process that started it."""
    global _line
    _line = line
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    os.chdir(folder)
    devices.set_threads(threads)


def _end_with(line: Connection) -> None:
    """End this process at once when the connection closes: after a stop, or when the other process ends."""
    try:
        line.recv()
    except (EOFError, OSError):
        pass
    finally:
        os._exit(1)


def _say(words: str) -> None:
    assert _line is not None
    _line.send((words, False))


def _report(words: str) -> None:
    assert _line is not None
    _line.send((words, True))


class _Lines:
    """A file object that sends its lines to the process with the display."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.begun = say, ""

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            self.say(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: complete lines are already sent."""


def _train(wanted: EnsembleRequest, device: str) -> None:
    console: Any = Console(file=_Lines(_say), highlight=False, emoji=False)  # type: ignore[arg-type]
    train_ensemble(wanted, device=device, console=console)


def _evaluate(parcel: bytes | None, task: bytes) -> list[pd.DataFrame | Failure]:
    """Records of batches of a cell, up to the first that fails."""
    try:
        if parcel is not None:
            _parcels[:] = [pickle.loads(parcel)]
        cell, spans = pickle.loads(task)
    except (AttributeError, ImportError) as error:
        raise CannotTravel(str(error)) from None
    return records(_parcels[0], None, cell, spans, _say, _report)
