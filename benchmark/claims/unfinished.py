"""The state of an unfinished audit, kept in a file so that the same command resumes it."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from defenses.files import sealed, unsealed, write_bytes

SECONDS = 5.0
"""Smallest time between two writes of the state."""


@dataclass
class Unfinished:
    """Everything that an audit has found so far. A place is a position in the audit's order of test images."""

    identity: str
    """The audit that this state belongs to; a state of another audit is not read."""
    claimed_right: list[bool] = field(default_factory=list)
    """For each place: correctly classified under the claimed attack, run as claimed."""
    dead: list[bool] = field(default_factory=list)
    """For each place: the claimed attack had no gradient, or never moved the image."""
    begun: dict[str, list[int]] = field(default_factory=dict)
    """Stage to the places that remained when the stage began."""
    batches: dict[str, int] = field(default_factory=dict)
    """Stage to its number of finished batches."""
    tried: dict[str, None] = field(default_factory=dict)
    """Attacks in the order they were tried."""
    broken_by: Counter[str] = field(default_factory=Counter)
    """Attack to the number of images that it fooled first."""
    moved: bool = False
    """Whether any attack changed any image."""
    adversarial: dict[int, torch.Tensor] = field(default_factory=dict)
    """Place to the image that fools the model."""


class UnfinishedFile:
    """Reads and writes the state of one audit; without a path, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.written = path, time.monotonic()

    def read(self, identity: str) -> Unfinished:
        """The state of this audit; a fresh one if it is missing, is damaged, or belongs to another audit."""
        fresh = Unfinished(identity)
        if self.path is None or not self.path.is_file():
            return fresh
        try:
            with np.load(io.BytesIO(unsealed(self.path.read_bytes())), allow_pickle=False) as arrays:
                state = json.loads(arrays["state"].tobytes())
                images = torch.from_numpy(arrays["images"].astype(np.float32))
                places = [int(place) for place in arrays["places"]]
            if state["identity"] != identity:
                return fresh
            state["tried"], state["broken_by"] = dict.fromkeys(state["tried"]), Counter(state["broken_by"])
            return Unfinished(**state, adversarial=dict(zip(places, images, strict=True)))
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return fresh

    def write(self, state: Unfinished, now: bool = False) -> None:
        """Write the state, unless it was written less than `SECONDS` ago; ``now`` always writes it."""
        if self.path is None or not (now or time.monotonic() - self.written > SECONDS):
            return
        plain = {name: value for name, value in vars(state).items() if name != "adversarial"}
        described = json.dumps(plain | {"tried": list(state.tried)}).encode()
        images = list(state.adversarial.values())
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            state=np.frombuffer(described, dtype=np.uint8),
            places=np.array(list(state.adversarial), dtype=np.int64),
            images=torch.stack(images).numpy() if images else np.empty(0, dtype=np.float32),
        )
        write_bytes(self.path, sealed(buffer.getvalue()))
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the audit is finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
