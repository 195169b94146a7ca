"""Trained ensembles on disk: this project's own format, and models from outside. Only loading and saving need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defenses.checkpoints.names import EXAMPLE_RESNET18, is_checkpoint, named_files, split_network
from defenses.checkpoints.provenance import FILE_NAME, Provenance, read_provenance

if TYPE_CHECKING:
    from defenses.checkpoints.loading import load_checkpoint
    from defenses.checkpoints.own import digest, save_checkpoint, versions

_HOMES = {"load_checkpoint": "loading", "digest": "own", "save_checkpoint": "own", "versions": "own"}

__all__ = [
    "EXAMPLE_RESNET18",
    "FILE_NAME",
    "Provenance",
    "digest",
    "is_checkpoint",
    "load_checkpoint",
    "named_files",
    "read_provenance",
    "save_checkpoint",
    "split_network",
    "versions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'defenses.checkpoints' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"defenses.checkpoints.{_HOMES[name]}"), name)
