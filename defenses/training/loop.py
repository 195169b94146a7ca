"""The training loop of every defense; a killed run resumes after the last completed epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from defenses.checkpoints import FILE_NAME, Provenance, read_provenance, save_checkpoint
from defenses.errors import RunFailed
from defenses.files import writable_folder
from defenses.members.ensemble import Ensemble
from defenses.members.residual import ResidualNetwork
from defenses.members.subnormals import subnormals_as_zero
from defenses.objectives import Defense, Place, Result
from defenses.training.augmentation import augment, resize
from defenses.training.convergence import curve_scores
from defenses.training.data import TrainingData
from defenses.training.distributed import from_first, rank, share, share_batch_norm, world_size
from defenses.training.estimates import relative_costs
from defenses.training.optimisation import Pace, new_optimiser
from defenses.training.precision import require_bfloat16
from defenses.training.progress import Progress, Reporter, Totals
from defenses.training.request import TrainingRequest
from defenses.training.scoring import score
from defenses.training.sequential import sequential_step
from defenses.training.state import STATE_NAME, resume_state, save_state

Watch = Literal["test", "validation"]
WATCHED = 1000
"""Number of images for the accuracy of ``watch`` after each epoch; few, so that it costs little time."""


def train(
    request: TrainingRequest,
    data: TrainingData,
    out: Path,
    device: torch.device | str = "cpu",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda row: None,
    on_start: Callable[[int, int], None] = lambda done, epochs: None,
    watch: Watch | None = None,
) -> Path:
    """Train an ensemble into the folder ``out`` and return its checkpoint; an existing checkpoint is not changed.

    With several processes (`defenses.training.distributed`), each takes a share of every batch; the first one writes
    the files and reports. ``on_start`` receives the number of completed epochs and the number of all epochs. ``watch``
    adds the accuracy on a split to each row of the history; the weights do not depend on it.
    """
    request.check(data.classes)
    asked = request.provenance(data)
    checkpoint = out / FILE_NAME
    if from_first(torch.tensor(checkpoint.is_file())):
        if rank() == 0:
            request.continued(asked, asdict(read_provenance(checkpoint)), checkpoint)
        return checkpoint
    data = data.first(request.recipe.train_images)
    ensemble = request.initial_ensemble(data)
    if request.recipe.precision == "bfloat16":
        require_bfloat16(torch.device(device))
    if rank() == 0:
        writable_folder(out)  # after all checks, so that a refused request leaves no folder
    ensemble = ensemble.to(device)
    ensemble.members.to(memory_format=layout(ensemble))  # type: ignore[call-overload]
    if world_size() > 1:
        share_batch_norm(ensemble)
    run = _Run(request, data, ensemble, asked, out, watch)
    if rank() == 0:
        on_start(run.state.epoch, run.runs * run.recipe.epochs)
    with subnormals_as_zero():
        run.go(on_progress, on_epoch)
    if rank() == 0:
        run.finish(checkpoint)
    from_first(torch.tensor(0))  # all processes wait until the checkpoint is written
    return checkpoint


class _Run:
    """One training run: the ensemble, its optimiser and its progress."""

    def __init__(
        self,
        request: TrainingRequest,
        data: TrainingData,
        ensemble: Ensemble,
        asked: Provenance,
        out: Path,
        watch: Watch | None,
    ) -> None:
        self.watch = watch
        self.defense, self.recipe, self.seed = request.named.defense, request.recipe, request.seed
        self.data, self.ensemble, self.out = data, ensemble, out
        # independent training, and boosting, are K runs of one member each, one after the other
        one_by_one = self.recipe.strategy == "independent" or self.defense.boosts
        self.runs = len(ensemble) if one_by_one else 1
        self.batches = self.recipe.batch_count(len(data.train))
        self.pace = Pace(ensemble, self.recipe, self.batches)
        self.optimiser = new_optimiser(ensemble, self.recipe)
        self.state, self.asked = resume_state(out, request, asked, ensemble, self.optimiser)

    @property
    def from_checkpoint(self) -> bool:
        """True if training started from a trained ensemble."""
        return bool(self.asked.started_from)

    def go(self, on_progress: Callable[[Progress], None], on_epoch: Callable[[dict[str, Any]], None]) -> None:
        """Train to the end, or until every member is frozen, and put the selected weights in place."""
        state = self.state
        costs = relative_costs(self.defense, self.recipe, self.ensemble, self.from_checkpoint) * self.runs
        reporter = Reporter(costs, self.batches, self.recipe.batch_size, on_progress)
        while state.epoch < len(costs) and len(state.frozen) < len(self.ensemble):
            run, epoch = divmod(state.epoch, self.recipe.epochs)
            if self.runs > 1 and run in state.frozen:  # the rest of this member's epochs would change nothing
                state.epoch = (run + 1) * self.recipe.epochs
                continue
            if run > 0 and epoch == 0:
                self._next_member()
            reporter.begin(state.epoch)
            with _seeded(_epoch_seed(self.seed, state.epoch), self.ensemble.mean.device):
                totals = self._run_epoch(reporter).of_all_processes()
            state.epoch += 1
            row = self._close_epoch(totals, reporter.end())
            if rank() == 0:
                save_state(self.out, self.asked, state, self.ensemble, self.optimiser)
                on_epoch(row)
        self._select()

    def finish(self, checkpoint: Path) -> None:
        """Score the ensemble, write its checkpoint, and remove the files that only a resumed run needs."""
        self.ensemble.combination = self.defense.combine
        epoch = self.state.best["epoch"] if self.state.best else self.state.epoch
        save_checkpoint(checkpoint, self.ensemble, replace(self.asked, epoch=epoch, scores=self._scores()))
        (self.out / STATE_NAME).unlink(missing_ok=True)
        for leftover in self.out.glob(".*.tmp"):  # from a process that was killed while writing
            leftover.unlink(missing_ok=True)

    def _select(self) -> None:
        """Load the weights of the best epoch, if the recipe selects one."""
        if self.state.best:
            self.ensemble.load_state_dict(self.state.best["weights"])

    def _next_member(self) -> None:
        """Independent training: keep the selected weights of the last member, and reset the optimiser for the next."""
        self._select()
        self.state.best = {}
        self.optimiser = new_optimiser(self.ensemble, self.recipe)

    def _run_epoch(self, reporter: Reporter) -> Totals:
        run, epoch = divmod(self.state.epoch, self.recipe.epochs)
        generator = torch.Generator().manual_seed(_epoch_seed(self.seed, self.state.epoch))
        full_mean, scale = self.ensemble.mean, self.recipe.scale_at(epoch)
        self.ensemble.mean = resize(full_mean, scale)
        self.ensemble.precision = getattr(torch, self.recipe.precision)
        trained = self._trained(run)
        self._set_modes(trained)
        place = Place(epoch, self.recipe.epochs, self.from_checkpoint, self._finished(run))
        defense = self.defense.at(place, trained, generator)
        totals = Totals()
        try:
            order = torch.randperm(len(self.data.train), generator=generator)
            for batch in range(self.batches):
                rows = order[batch * self.recipe.batch_size : (batch + 1) * self.recipe.batch_size]
                self.pace.set(self.optimiser, epoch, batch)
                totals.add(self._step(defense, trained, share(rows), scale, generator))
                reporter.batch(batch + 1, totals)
        except RunFailed as error:
            advice = f"Try a lower learning rate than {self.recipe.learning_rate:g}"
            if self.state.epoch == batch == 0:
                advice = "No step had been taken: look for a logarithm of 0 or a division by 0 in the objective"
            raise RunFailed(
                f"{error} in epoch {self.state.epoch + 1}, batch {batch + 1}; "
                f"the last saved epoch is {self.state.epoch}. {advice}"
            ) from error
        finally:
            self.ensemble.mean, self.ensemble.precision = full_mean, torch.float32
        return totals

    def _trained(self, run: int) -> Ensemble:
        """The part that this run trains: the whole ensemble, or one member."""
        return self.ensemble if self.runs == 1 else self.ensemble.member(run)

    def _finished(self, run: int) -> Ensemble | None:
        """The members that earlier runs trained; None in the first run."""
        members = list(self.ensemble.members)[:run]
        if not members:
            return None
        finished = Ensemble(members, self.ensemble.mean, self.ensemble.std).eval()
        finished.precision = self.ensemble.precision
        return finished

    def _step(
        self, defense: Defense, trained: Ensemble, rows: Tensor, scale: float, generator: torch.Generator
    ) -> Result:
        device = self.ensemble.mean.device
        images = augment(self.data.train.images(rows).to(device), self.recipe, generator)
        images = resize(images, scale).contiguous(memory_format=layout(self.ensemble))
        labels = self.data.train.labels[rows].to(device)
        if self.recipe.strategy == "sequential":
            return sequential_step(defense, trained, self.optimiser, images, labels, generator)
        return defense.step(trained, self.optimiser, images, labels, generator)

    def _set_modes(self, trained: Ensemble) -> None:
        self.ensemble.eval()
        trained.train()
        for index in self.state.frozen:
            self.ensemble.members[index].eval().requires_grad_(False)

    def _close_epoch(self, totals: Totals, seconds: float) -> dict[str, Any]:
        """Freeze converged members, score and select, and add the epoch to the history."""
        state, recipe = self.state, self.recipe
        run, epoch = divmod(state.epoch - 1, recipe.epochs)
        active = range(len(self.ensemble)) if self.runs == 1 else [run]
        if recipe.freeze_patience:
            state.freeze_converged(dict(zip(active, totals.member_losses(), strict=True)), recipe)
        row: dict[str, Any] = {
            "epoch": state.epoch,
            "learning_rate": round(self.optimiser.param_groups[0]["lr"], 10),
            "scale": recipe.scale_at(epoch),
            **{name: round(value, 6) for name, value in totals.means().items()},
            "train_accuracy": round(totals.accuracy(), 6),
            "frozen": len(state.frozen),
        }
        watched = {"validation": self.data.validation, "test-accuracy": self.data.test}.get(recipe.select)
        if watched is not None:
            accuracy = score(self._trained(run), watched)["accuracy"] if rank() == 0 else 0.0
            row["watched_accuracy"] = round(float(from_first(torch.tensor(accuracy, dtype=torch.float64))), 6)
            state.keep_best(row["watched_accuracy"], self.ensemble)
        if self.watch:
            row[f"{self.watch}_accuracy"] = self._watched(run)
        row["images_per_second"] = round(totals.images / seconds, 1)
        row["seconds"] = round(seconds, 2)
        state.history.append(row)
        return row

    def _watched(self, run: int) -> float:
        """Accuracy on the first images of the split ``watch``; only the first process computes it."""
        images = self.data.test if self.watch == "test" else self.data.validation
        assert images is not None
        shown = images.subset(slice(0, WATCHED))
        return float(score(self._trained(run), shown)["accuracy"]) if rank() == 0 else 0.0

    def _scores(self) -> dict[str, Any]:
        """The scores of the finished ensemble: test set, training time and training curve."""
        found = score(self.ensemble, self.data.test)
        return {f"test_{name}": value for name, value in found.items()} | {
            "train_seconds": round(sum(row["seconds"] for row in self.state.history), 1),
            "frozen_members": sorted(self.state.frozen),
            **curve_scores(self.state.history, self.recipe.epochs),
        }


def layout(ensemble: Ensemble) -> torch.memory_format:
    """The memory format of images: channels last is faster, but a network from outside may flatten images by a view."""
    ours = all(isinstance(member, ResidualNetwork) for member in ensemble.members)
    return torch.channels_last if ours else torch.contiguous_format


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers that a network draws itself, such as dropout; they depend on seed and epoch only."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch; each epoch has its own, so that a resumed run gets the same batches."""
    return (seed * 1_000_003 + epoch) * 2_654_435_761 % 2**63
