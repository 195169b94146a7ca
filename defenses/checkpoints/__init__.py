"""Trained ensembles on disk: this project's own format, and models from outside."""

from defenses.checkpoints.loading import load_checkpoint
from defenses.checkpoints.outside import EXAMPLE_RESNET18, is_checkpoint, named_files, split_network
from defenses.checkpoints.own import (
    FILE_NAME,
    Provenance,
    digest,
    read_provenance,
    save_checkpoint,
    versions,
)

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
