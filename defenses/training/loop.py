"""One training loop for every defense; killed at any moment, it goes on from the last completed epoch."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.catalogue import NamedDefense
from defenses.checkpoints import FILE_NAME, Provenance, load_checkpoint, read_provenance, save_checkpoint
from defenses.errors import BadInput, RunFailed
from defenses.files import writable_folder, write_bytes, write_text
from defenses.members.diversity import log_ensemble_diversity, log_mean_probability
from defenses.members.ensemble import Ensemble, batch_norm_mode, build_ensemble, predict_logits
from defenses.members.images import LabelledImages
from defenses.members.networks import canonical_network
from defenses.members.subnormals import subnormals_as_zero
from defenses.objectives import Defense, Place, Result, checked, cross_entropy, total
from defenses.training.augmentation import augment, resize
from defenses.training.distributed import (
    average_gradients,
    bytes_from_first,
    from_first,
    rank,
    share,
    share_batch_norm,
    summed,
    world_size,
)
from defenses.training.precision import require_bfloat16
from defenses.training.recipes import OLDER_RECIPES, Recipe

STATE_NAME = "training.pt"
HISTORY_NAME = "history.csv"
REMEMBERED = 0.1
"""Share of the steps made so far that batch norm's running averages reach back over, at most. With the paper's momentum
alone (0.01) a training of 190 steps ends with averages that are still 15 % what they began with. Weights are trained on
the statistics of batches and do not depend on this, unless the defense looks at the averages (``batch_norm=running``)
or the epoch to keep is chosen by them; after 1000 steps nothing does."""


@dataclass(frozen=True)
class TrainingData:
    """The splits a run may see; ``validation`` is empty unless the recipe holds images out."""

    name: str
    classes: int
    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None
    checksum: str = ""


@dataclass(frozen=True)
class Progress:
    """Where a run is, after each batch."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    terms: dict[str, float]
    accuracy: float
    images_per_second: float
    seconds_left: float


@dataclass
class _Totals:
    """Running sums of one epoch."""

    images: int = 0
    correct: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    member_loss: Tensor | float = 0.0

    def add(self, result: Result) -> None:
        logits = result.logits.detach()
        count = len(result.labels)
        self.images += count
        self.correct += int((log_mean_probability(logits).argmax(-1) == result.labels).sum())
        for name, values in result.terms.items():
            mean = values.detach().mean().item() if count else 0.0
            self.terms[name] = self.terms.get(name, 0.0) + mean * count
        self.member_loss = self.member_loss + cross_entropy(logits, result.labels).sum(-1).cpu()

    def of_all_processes(self) -> _Totals:
        """The sums over the whole batches, of which this process saw its share."""
        if world_size() == 1:
            return self
        loss = torch.as_tensor(self.member_loss).tolist()
        sums = summed(torch.tensor([self.images, self.correct, *self.terms.values(), *loss], dtype=torch.float64))
        terms = dict(zip(self.terms, sums[2:].tolist(), strict=False))
        return _Totals(int(sums[0]), int(sums[1]), terms, sums[2 + len(terms) :])

    def means(self) -> dict[str, float]:
        return {name: value / self.images for name, value in self.terms.items()}


def train(
    named: NamedDefense,
    data: TrainingData,
    network: str,
    members: int,
    recipe: Recipe,
    seed: int,
    out: Path,
    device: torch.device | str = "cpu",
    start_from: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Path:
    """Train an ensemble into the folder ``out`` and return its checkpoint; a finished one is returned as it is.

    Processes that were joined (`defenses.training.distributed`) each take a share of every batch; the first one writes
    the files and reports.
    """
    named.defense.check(members, data.classes)
    _check_recipe(named, recipe)
    shape = tuple(data.train.pixels.shape[1:])
    asked = Provenance(
        defense=named.text,
        dataset=data.name,
        network=canonical_network(network),
        members=members,
        shape=shape,  # type: ignore[arg-type]
        classes=data.classes,
        recipe=recipe.as_dict(),
        seed=seed,
        defense_digest=named.source_digest,
        data_checksum=data.checksum,
        started_from=read_provenance(_file(start_from)).weights_sha256 if start_from else "",
    )
    checkpoint = out / FILE_NAME
    if from_first(torch.tensor(checkpoint.is_file())):
        if rank() == 0:
            _require_same(asked, asdict(read_provenance(checkpoint)), checkpoint)
        return checkpoint
    train_set = data.train.subset(slice(0, recipe.train_images or None))
    if start_from:
        needed = {"network": asked.network, "members": members, "dataset": data.name}
        ensemble = load_checkpoint(start_from, **needed)
    else:
        ensemble = build_ensemble(network, members, asked.shape, data.classes, train_set.mean_image(), seed)
    if recipe.precision == "bfloat16":
        require_bfloat16(torch.device(device))
    if rank() == 0:
        writable_folder(out)  # only now: a request that is refused leaves no folder behind
    ensemble = ensemble.to(device)
    ensemble.members.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world_size() > 1:
        share_batch_norm(ensemble)
    run = _Run(named.defense, data, train_set, recipe, seed, ensemble, asked, out)
    run.resume()
    with subnormals_as_zero():
        run.go(on_progress, on_epoch)
    if rank() == 0:
        _finish(run, checkpoint)
    from_first(torch.tensor(0))  # whoever returns finds the checkpoint
    return checkpoint


def _finish(run: _Run, checkpoint: Path) -> None:
    final = replace(run.asked, epoch=run.best["epoch"] if run.best else run.epoch, scores=run.scores())
    save_checkpoint(checkpoint, run.ensemble, final)
    (run.out / STATE_NAME).unlink(missing_ok=True)
    for leftover in run.out.glob(".*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)


class _Run:
    """The state of one training run: everything in it is saved after each epoch."""

    def __init__(
        self,
        defense: Defense,
        data: TrainingData,
        train_set: LabelledImages,
        recipe: Recipe,
        seed: int,
        ensemble: Ensemble,
        asked: Provenance,
        out: Path,
    ) -> None:
        self.defense, self.data, self.train_set, self.recipe, self.seed = defense, data, train_set, recipe, seed
        self.ensemble, self.asked, self.out = ensemble, asked, out
        self.warm = bool(asked.started_from)
        self.epoch = 0
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.frozen: list[int] = []
        self.stalled = [0] * len(ensemble)
        self.lowest = [math.inf] * len(ensemble)
        # independent training is K runs of one member each, one after the other
        self.runs = len(ensemble) if recipe.strategy == "independent" else 1
        self.epochs = recipe.epochs * self.runs
        self.batches = _batch_count(len(train_set), recipe.batch_size)
        self.optimiser = self._new_optimiser()
        norms = [module for module in ensemble.modules() if isinstance(module, _BatchNorm)]
        self.norms = [(norm, norm.momentum) for norm in norms if norm.momentum is not None]
        self.costs = relative_costs(defense, recipe, ensemble, self.warm)

    def go(self, on_progress: Callable[[Progress], None], on_epoch: Callable[[dict[str, Any]], None]) -> None:
        """Train to the end, or until every member is frozen, and put the selected weights in place."""
        seconds = done = 0.0
        while self.epoch < self.epochs and len(self.frozen) < len(self.ensemble):
            run, epoch = divmod(self.epoch, self.recipe.epochs)
            if self.runs > 1 and run in self.frozen:  # the rest of this member's epochs would change nothing
                self.epoch = (run + 1) * self.recipe.epochs
                continue
            if run > 0 and epoch == 0:
                self._next_member()
            began = time.perf_counter()
            cost, left = self._cost(self.epoch), sum(map(self._cost, range(self.epoch, self.epochs)))

            def report(batch: int, totals: _Totals) -> None:
                if rank() > 0:
                    return
                elapsed = time.perf_counter() - began  # noqa: B023 - called within this epoch only
                share = cost * batch / self.batches  # noqa: B023
                on_progress(
                    Progress(
                        epoch=self.epoch + 1,
                        epochs=self.epochs,
                        batch=batch,
                        batches=self.batches,
                        terms=totals.means(),
                        accuracy=totals.correct / totals.images,
                        images_per_second=batch * self.recipe.batch_size / elapsed,
                        seconds_left=(seconds + elapsed) / (done + share) * (left - share),  # noqa: B023
                    )
                )

            totals = self._run_epoch(report).of_all_processes()
            self.epoch += 1
            elapsed = time.perf_counter() - began
            seconds, done = seconds + elapsed, done + cost
            row = self._close_epoch(totals, elapsed)
            if rank() == 0:
                self._save()
                on_epoch(row)
        if self.best:
            self.ensemble.load_state_dict(self.best["weights"])

    def _next_member(self) -> None:
        """Independent training: keep what was selected of the last member, and begin the next one afresh."""
        if self.best:
            self.ensemble.load_state_dict(self.best["weights"])
        self.best = {}
        self.optimiser = self._new_optimiser()

    def _cost(self, epoch: int) -> float:
        """Relative cost of an epoch."""
        return self.costs[epoch % self.recipe.epochs]

    def _run_epoch(self, report: Callable[[int, _Totals], None]) -> _Totals:
        run, epoch = divmod(self.epoch, self.recipe.epochs)
        generator = torch.Generator().manual_seed(_epoch_seed(self.seed, self.epoch))
        full_mean, scale = self.ensemble.mean, self.recipe.scale_at(epoch)
        self.ensemble.mean = resize(full_mean, scale)
        self.ensemble.precision = getattr(torch, self.recipe.precision)
        trained = self.ensemble if self.runs == 1 else self.ensemble.member(run)
        self._set_modes(trained)
        defense = self.defense.at(Place(epoch, self.recipe.epochs, self.warm), trained, generator)
        totals = _Totals()
        try:
            order = torch.randperm(len(self.train_set), generator=generator)
            for batch in range(self.batches):
                rows = order[batch * self.recipe.batch_size : (batch + 1) * self.recipe.batch_size]
                self._set_pace(epoch, batch)
                totals.add(self._step(defense, trained, share(rows), scale, generator))
                report(batch + 1, totals)
        except RunFailed as error:
            advice = f"Try a lower learning rate than {self.recipe.learning_rate:g}"
            if self.epoch == batch == 0:
                advice = "No step had been taken: look for a logarithm of 0 or a division by 0 in the objective"
            raise RunFailed(
                f"{error} in epoch {self.epoch + 1}, batch {batch + 1}; nothing after epoch {self.epoch} was kept. "
                f"{advice}"
            ) from error
        finally:
            self.ensemble.mean, self.ensemble.precision = full_mean, torch.float32
        return totals

    def _step(
        self, defense: Defense, trained: Ensemble, rows: Tensor, scale: float, generator: torch.Generator
    ) -> Result:
        device = self.ensemble.mean.device
        images = augment(self.train_set.images(rows).to(device), self.recipe, generator)
        images = resize(images, scale).contiguous(memory_format=torch.channels_last)
        labels = self.train_set.labels[rows].to(device)
        if self.recipe.strategy == "sequential":
            return sequential_step(defense, trained, self.optimiser, images, labels, generator)
        return defense.step(trained, self.optimiser, images, labels, generator)

    def _set_modes(self, trained: Ensemble) -> None:
        self.ensemble.eval()
        trained.train()
        for index in self.frozen:
            self.ensemble.members[index].eval().requires_grad_(False)

    def _set_pace(self, epoch: int, batch: int) -> None:
        """How fast weights change, and how fast batch norm's averages follow."""
        progress = (epoch + batch / self.batches) / self.recipe.epochs
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate_at(epoch, progress)
        steps = epoch * self.batches + batch
        for norm, momentum in self.norms:
            norm.momentum = max(momentum, 1 / (1 + REMEMBERED * steps))

    def _new_optimiser(self) -> torch.optim.Optimizer:
        """Adam with L2 on the convolution kernels only."""
        kernels = [p for p in self.ensemble.parameters() if p.ndim == 4]
        others = [p for p in self.ensemble.parameters() if p.ndim != 4]
        groups: list[dict[str, Any]] = [
            {"params": kernels, "weight_decay": self.recipe.weight_decay},
            {"params": others},
        ]
        betas = (0.9, self.recipe.adam_beta2)
        optimiser = torch.optim.Adam(groups, lr=self.recipe.learning_rate, betas=betas, eps=self.recipe.adam_eps)
        average_gradients(optimiser)
        return optimiser

    def _close_epoch(self, totals: _Totals, seconds: float) -> dict[str, Any]:
        """Freeze converged members, score and select, and add the epoch to the history."""
        run, epoch = divmod(self.epoch - 1, self.recipe.epochs)
        active = range(len(self.ensemble)) if self.runs == 1 else [run]
        losses = [float(value) / totals.images for value in torch.as_tensor(totals.member_loss)]
        if self.recipe.freeze_patience:
            for index, loss in zip(active, losses, strict=True):
                improved = loss < self.lowest[index] * (1 - self.recipe.freeze_tolerance)
                self.stalled[index] = 0 if improved else self.stalled[index] + 1
                self.lowest[index] = min(self.lowest[index], loss)
                if self.stalled[index] >= self.recipe.freeze_patience and index not in self.frozen:
                    self.frozen.append(index)
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "learning_rate": round(self.optimiser.param_groups[0]["lr"], 10),
            "scale": self.recipe.scale_at(epoch),
            **{name: round(value, 6) for name, value in totals.means().items()},
            "train_accuracy": round(totals.correct / totals.images, 6),
            "frozen": len(self.frozen),
        }
        watched = {"validation": self.data.validation, "test-accuracy": self.data.test}.get(self.recipe.select)
        if watched is not None:
            chosen = self.ensemble if self.runs == 1 else self.ensemble.member(run)
            accuracy = score(chosen, watched)["accuracy"] if rank() == 0 else 0.0
            row["watched_accuracy"] = round(float(from_first(torch.tensor(accuracy, dtype=torch.float64))), 6)
            if not self.best or row["watched_accuracy"] > self.best["accuracy"]:
                weights = {name: tensor.clone() for name, tensor in self.ensemble.state_dict().items()}
                self.best = {"accuracy": row["watched_accuracy"], "epoch": self.epoch, "weights": weights}
        row["images_per_second"] = round(totals.images / seconds, 1)
        row["seconds"] = round(seconds, 2)
        self.history.append(row)
        return row

    def scores(self) -> dict[str, Any]:
        """What the finished ensemble reaches on the test set."""
        found = score(self.ensemble, self.data.test)
        return {f"test_{name}": value for name, value in found.items()} | {
            "train_seconds": round(sum(row["seconds"] for row in self.history), 1),
            "frozen_members": sorted(self.frozen),
        }

    def _save(self) -> None:
        state = {
            "asked": json.dumps(asdict(self.asked)),
            "epoch": self.epoch,
            "weights": self.ensemble.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "history": self.history,
            "best": self.best,
            "frozen": self.frozen,
            "stalled": self.stalled,
            "lowest": self.lowest,
        }
        serialised = io.BytesIO()
        torch.save(state, serialised)
        write_bytes(self.out / STATE_NAME, serialised.getvalue())
        self._write_history()

    def _write_history(self) -> None:
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        lines = [",".join(columns), *(",".join(str(row.get(c, "")) for c in columns) for row in self.history)]
        write_text(self.out / HISTORY_NAME, "\n".join(lines) + "\n")

    def resume(self) -> None:
        """Go on from the last completed epoch when the folder holds one of the same request."""
        path = self.out / STATE_NAME
        try:
            found = bytes_from_first(path.read_bytes() if rank() == 0 and path.is_file() else None)
            if found is None:
                return
            state = torch.load(io.BytesIO(found), weights_only=True, map_location=self.ensemble.mean.device)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"{path} cannot be read ({reason}); delete it to start training afresh") from error
        if not isinstance(state, dict) or "asked" not in state:
            raise BadInput(f"{path} is not the state of a training run; delete it to start training afresh")
        _require_same(self.asked, json.loads(state["asked"]), path)
        self.ensemble.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.epoch, self.history, self.best = state["epoch"], state["history"], state["best"]
        self.frozen, self.stalled, self.lowest = state["frozen"], state["stalled"], state["lowest"]
        if rank() == 0:
            self._write_history()  # a kill between the two files leaves it an epoch behind


def sequential_step(
    defense: Defense,
    ensemble: Ensemble,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
) -> Result:
    """The update of `Defense.step` with one member's graph in memory at a time.

    The loss depends on the members through their logits alone, so its gradient with respect to the logits
    is computed first, from a pass without graphs, and then sent through one member after the other.
    """
    images, labels = defense.batch(ensemble, images, labels, generator)
    with torch.no_grad(), batch_norm_mode(ensemble, "as set"):
        logits = ensemble.member_logits(images)
    logits.requires_grad_()
    terms = checked(defense.objective(logits, labels), defense, len(labels))
    (gradient,) = torch.autograd.grad(total(terms), logits)
    optimiser.zero_grad()
    inputs = ensemble.normalise(images)
    for member, own in zip(ensemble.members, gradient, strict=True):
        output = ensemble.logits_of(member, inputs)
        if output.requires_grad:
            output.backward(own)
    optimiser.step()
    return Result(logits, labels, terms)


def score(ensemble: Ensemble, data: LabelledImages) -> dict[str, Any]:
    """Accuracy of the ensemble and of each member, and the median log ensemble diversity (true label removed)."""
    logits = predict_logits(ensemble, data)
    correct = log_mean_probability(logits).argmax(-1) == data.labels
    members = (logits.argmax(-1) == data.labels).float().mean(-1)
    return {
        "accuracy": round(correct.float().mean().item(), 6),
        "member_accuracy": [round(value, 6) for value in members.tolist()],
        "led_median": round(log_ensemble_diversity(logits, data.labels).median().item(), 4),
    }


def _check_recipe(named: NamedDefense, recipe: Recipe) -> None:
    if recipe.strategy == "independent" and not named.defense.separable:
        raise BadInput(
            f"{named.label} couples the members, so they cannot be trained independently; "
            "use the simultaneous or the sequential strategy"
        )
    inner = getattr(named.defense, "inner", named.defense)
    if type(inner).forward is Defense.forward and type(inner).step is Defense.step:
        return
    if recipe.strategy == "sequential":
        raise BadInput(f"{named.label} owns its forward pass, so it cannot be trained sequentially; use simultaneous")
    if recipe.precision != "float32":
        raise BadInput(f"{named.label} owns its forward pass, so it is trained in float32, not in {recipe.precision}")


def _require_same(asked: Provenance, found: dict[str, Any], path: Path) -> None:
    """Refuse to mix two different requests in one folder."""
    result_fields = {"scores", "versions", "weights_sha256", "epoch", "format", "written", "recognised"}
    for name, value in json.loads(json.dumps(asdict(asked))).items():
        there = json.loads(json.dumps(found.get(name)))
        if name == "recipe" and isinstance(there, dict):
            there = {**OLDER_RECIPES, **there}
        if name not in result_fields and there != value:
            if isinstance(value, dict) and isinstance(there, dict):
                key = next(key for key in {**value, **there} if value.get(key) != there.get(key))
                name, value, there = key, value.get(key), there.get(key)
            if name == "defense_digest":
                raise BadInput(
                    f"{path} was made with another version of the defense's file; delete it to train again, "
                    "or give another --out"
                )
            raise BadInput(f"{path} was made with {name} {there!r}, not {value!r}; give another --out or delete it")


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path


def _batch_count(images: int, batch_size: int) -> int:
    """Batches per epoch; a last batch of one image is left out, batch norm needs two."""
    full, rest = divmod(images, batch_size)
    return max(full + (rest > 1), 1)


def _epoch_seed(seed: int, epoch: int) -> int:
    """Every epoch draws from its own generator, so that a resumed run sees the same batches."""
    return (seed * 1_000_003 + epoch) * 2_654_435_761 % 2**63


def relative_costs(defense: Defense, recipe: Recipe, ensemble: Ensemble, from_checkpoint: bool) -> list[float]:
    """What each epoch costs, in units of each other: its pixels times what the defense does with them."""
    places = [Place(epoch, recipe.epochs, from_checkpoint) for epoch in range(recipe.epochs)]
    generator = torch.Generator()  # what is drawn does not matter here
    return [recipe.scale_at(place.epoch) ** 2 * defense.at(place, ensemble, generator).cost for place in places]


def estimate_seconds(
    named: NamedDefense, data: TrainingData, network: str, members: int, recipe: Recipe, device: torch.device | str
) -> float:
    """How long training will take, from two steps of it on a throw-away ensemble."""
    shape = tuple(data.train.pixels.shape[1:])
    ensemble = build_ensemble(network, members, shape, data.classes, data.train.mean_image()).to(device)  # type: ignore[arg-type]
    rows = slice(0, recipe.batch_size)
    images, labels = data.train.images(rows).to(device), data.train.labels[rows].to(device)
    optimiser = torch.optim.Adam(ensemble.train().parameters())
    generator = torch.Generator().manual_seed(0)
    defense = named.defense.at(Place(recipe.epochs - 1, recipe.epochs), ensemble, generator)
    for _ in range(2):  # the first step is slower: memory is laid out
        began = time.perf_counter()
        defense.step(ensemble, optimiser, images, labels, generator)
        seconds = time.perf_counter() - began
    batches = _batch_count(recipe.train_images or len(data.train), recipe.batch_size)
    return seconds * batches * sum(relative_costs(named.defense, recipe, ensemble, False)) / defense.cost
