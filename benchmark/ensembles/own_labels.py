"""The default labels of trained ensembles in tables."""

from __future__ import annotations

import os
from pathlib import Path

from benchmark.machine.terminal import visible
from defenses.catalogue import parse_defense
from defenses.checkpoints import EXAMPLE_RESNET18, FILE_NAME, is_checkpoint, named_files, split_network
from defenses.members.combination import split_combination


def own_label(spec: str) -> str:
    """The default label of a defense in tables."""
    return visible(_label(spec)) if is_checkpoint(spec) else parse_defense(spec).label  # a file's name may be anything


def _label(spec: str) -> str:
    """The label of a trained model: its file, folder or function, and the combination rule if the spec names one."""
    spec, rule = split_combination(spec)
    if rule is not None:
        return f"{_label(spec)} ({rule.text})"
    weights, _ = split_network(spec)
    if ".py:" in weights:
        return spec.rpartition(":")[2]
    if spec == EXAMPLE_RESNET18:
        return spec
    path, *others = (Path(os.path.realpath(path)) for path in named_files(weights)[0])  # also names a loop of links
    label = path.parent.name if path.name == FILE_NAME else path.name if path.is_dir() else path.stem
    return f"{label} and {len(others)} more" if others else label
