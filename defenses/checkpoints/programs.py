"""Compiled models of others: TorchScript and torch.export programs."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from defenses.checkpoints.recognition import NORMALISES_ITSELF, Recognised, file_digest
from defenses.errors import BadInput, first_line
from defenses.members.ensemble import Ensemble


def from_torchscript(path: Path) -> Recognised:
    """An ensemble of one TorchScript program."""
    try:
        module = torch.jit.load(path, map_location="cpu")
    except Exception as error:
        raise BadInput(
            f"{path} is a TorchScript program that does not load: {first_line(error)}; save it again"
        ) from error
    name = str(getattr(module, "original_name", "network"))
    return Recognised("TorchScript program", name, Ensemble([module]), NORMALISES_ITSELF, code=file_digest(path))


class ExportedNetwork(nn.Module):
    """A torch.export program: its graph stays in the mode, training or evaluation, in which it was exported."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return self.graph(images)

    def train(self, mode: bool = True) -> ExportedNetwork:
        return self  # the graph's own train() raises an error


def from_exported(path: Path) -> Recognised:
    """An ensemble of one torch.export program."""
    try:
        with _no_pickles(path):
            module = torch.export.load(path).module()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{path} is a torch.export program that does not load: {first_line(error)}; export it again"
        ) from error
    ensemble = Ensemble([ExportedNetwork(module)])
    return Recognised("torch.export program", "exported graph", ensemble, NORMALISES_ITSELF, code=file_digest(path))


@contextmanager
def _no_pickles(path: Path) -> Iterator[None]:
    """Make torch.export.load, which unpickles some entries, refuse everything except tensors."""
    with zipfile.ZipFile(path) as archive:
        if any(Path(name).name.startswith("opaque_obj") for name in archive.namelist()):
            raise BadInput(f"{path} holds pickled Python objects, which are never loaded; export it without them")
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
