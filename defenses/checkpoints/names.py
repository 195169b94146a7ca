"""Specs of trained models, and the files they name. Only a spec of a user's Python file needs torch."""

from __future__ import annotations

import re
from pathlib import Path

from defenses.checkpoints.provenance import FILE_NAME
from defenses.members.combination import split_combination
from defenses.user_functions import is_in_file

EXAMPLE_RESNET18 = "pyautoattack:resnet18"
"""The CIFAR-10 network in pyautoattack's examples; its robustness is not known before a run measures it."""

_FILES = re.compile(r"(?P<files>.+?\.(?:safetensors|ckpt|pth|pt2?))(?::(?P<network>.+))?")
FORMS = "file.pth, file.pt:NETWORK, a.pt,b.pt:NETWORK, file.py:function, or a folder with " + FILE_NAME


def is_checkpoint(spec: str) -> bool:
    """True if a spec names a trained model; otherwise it names a defense, which must be trained first."""
    spec = split_combination(spec)[0]
    if spec == EXAMPLE_RESNET18 or (Path(spec) / FILE_NAME).is_file() or split_network(spec)[1]:
        return True
    if ".py:" not in spec:
        return _FILES.fullmatch(spec) is not None
    from defenses.checkpoints.functions import find_model

    return find_model(spec) is not None


def split_network(spec: str) -> tuple[str, str]:
    """Split ``weights.pt:mine.py:VGG(width=8)`` into the weights and the network in a Python file.

    Without such a network, the spec is returned unchanged, with an empty text.
    """
    weights, _, network = spec.partition(":")
    known = (Path(weights) / FILE_NAME).is_file() or _FILES.fullmatch(weights) is not None
    return (weights, network) if known and is_in_file(network) else (spec, "")


def named_files(spec: str) -> tuple[list[Path], str | None]:
    """The files of ``a.pt,b.pt:network``, and the network; an existing path is not split."""
    spec = split_combination(spec)[0]
    match = _FILES.fullmatch(spec)
    if match is None or Path(spec).exists():
        return [Path(spec)], None
    names, network = match.group("files", "network")
    return [Path(names)] if Path(names).exists() else [Path(name.strip()) for name in names.split(",")], network
