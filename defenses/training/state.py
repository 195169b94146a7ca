"""The state of a training run after the last completed epoch, saved atomically; a run resumes from it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from defenses.checkpoints import Provenance
from defenses.errors import BadInput
from defenses.files import sealed, unsealed, write_bytes, write_text
from defenses.members.ensemble import Ensemble
from defenses.training.distributed import bytes_from_first, rank
from defenses.training.recipes import Recipe
from defenses.training.request import TrainingRequest

STATE_NAME = "training.pt"
HISTORY_NAME = "history.csv"


@dataclass
class TrainingState:
    """The progress of a run, without the weights and the optimiser."""

    stalled: list[int]
    """For each member, the epochs since its cross-entropy last improved."""
    lowest: list[float]
    """For each member, the lowest cross-entropy of all epochs."""
    frozen: list[int] = field(default_factory=list)
    """Members that are no longer trained."""
    epoch: int = 0
    """Number of completed epochs."""
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    """Accuracy, epoch and weights of the best epoch, if the recipe selects one."""

    @classmethod
    def at_start(cls, members: int) -> TrainingState:
        """The state before the first epoch."""
        return cls(stalled=[0] * members, lowest=[math.inf] * members)

    def freeze_converged(self, losses: Mapping[int, float], recipe: Recipe) -> None:
        """Algorithm 1: freeze each member that has not improved for ``freeze_patience`` epochs."""
        for member, loss in losses.items():
            improved = loss < self.lowest[member] * (1 - recipe.freeze_tolerance)
            self.stalled[member] = 0 if improved else self.stalled[member] + 1
            self.lowest[member] = min(self.lowest[member], loss)
            if self.stalled[member] >= recipe.freeze_patience and member not in self.frozen:
                self.frozen.append(member)

    def keep_best(self, accuracy: float, ensemble: Ensemble) -> None:
        """Keep the weights of this epoch if it is more accurate than all earlier epochs."""
        if not self.best or accuracy > self.best["accuracy"]:
            weights = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
            self.best = {"accuracy": accuracy, "epoch": self.epoch, "weights": weights}


def save_state(
    out: Path, asked: Provenance, state: TrainingState, ensemble: Ensemble, optimiser: torch.optim.Optimizer
) -> None:
    """Write the state, then the history."""
    stored = {
        "asked": json.dumps(asdict(asked)),
        "epoch": state.epoch,
        "weights": ensemble.state_dict(),
        "optimiser": optimiser.state_dict(),
        "history": state.history,
        "best": state.best,
        "frozen": state.frozen,
        "stalled": state.stalled,
        "lowest": state.lowest,
    }
    serialised = io.BytesIO()
    torch.save(stored, serialised)
    write_bytes(out / STATE_NAME, sealed(serialised.getvalue()))
    write_history(out, state.history)


def write_history(out: Path, history: list[dict[str, Any]]) -> None:
    """One row for each epoch."""
    columns = list(dict.fromkeys(name for row in history for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(c, "")) for c in columns) for row in history)]
    write_text(out / HISTORY_NAME, "\n".join(lines) + "\n")


def resume_state(
    out: Path, request: TrainingRequest, asked: Provenance, ensemble: Ensemble, optimiser: torch.optim.Optimizer
) -> tuple[TrainingState, Provenance]:
    """Load the state of the same request from the folder, with weights and optimiser; else the state at the start.

    Returns the state, and the origin that the checkpoint will have.
    """
    path = out / STATE_NAME
    try:
        found = bytes_from_first(path.read_bytes() if rank() == 0 and path.is_file() else None)
        if found is None:
            return TrainingState.at_start(len(ensemble)), asked
        stored = torch.load(io.BytesIO(unsealed(found)), weights_only=True, map_location="cpu")
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"{path} cannot be read ({reason}); delete it to start training again") from error
    names = ("epoch", "history", "best", "frozen", "stalled", "lowest")
    if not isinstance(stored, dict) or not {"asked", "weights", "optimiser", *names} <= stored.keys():
        raise BadInput(f"{path} is not the state of a training run; delete it to start training again")
    try:
        asked = request.continued(asked, json.loads(stored["asked"]), path)
        ensemble.load_state_dict(stored["weights"])
        optimiser.load_state_dict(stored["optimiser"])
        state = TrainingState(**{name: stored[name] for name in names})
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        reason = str(error).partition("\n")[0]
        raise BadInput(f"{path} is damaged ({reason}); delete it to start training again") from error
    if rank() == 0:
        write_history(out, state.history)  # a kill between the two writes leaves the history an epoch behind
    return state, asked
