"""Load a trained ensemble from this project or from elsewhere, and check its origin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from defenses.checkpoints.names import split_network
from defenses.checkpoints.outside import load_foreign
from defenses.checkpoints.own import load_own
from defenses.checkpoints.provenance import FILE_NAME, is_own
from defenses.errors import BadInput
from defenses.members import user_networks
from defenses.members.combination import split_combination
from defenses.members.ensemble import Ensemble


def load_checkpoint(spec: str | Path, *, trust: bool = False, network_file: str = "", **expected: Any) -> Ensemble:
    """Load a trained ensemble in evaluation mode. ``ensemble.provenance`` describes its origin.

    Args:
        spec: a checkpoint of ``adp-bench train`` (the folder or the ``.safetensors`` file) or another trained model: a
            file in DVERGE's format, ``file.pt:network``, several files separated by commas, a TorchScript or
            torch.export program, ``file.py:function``, or ``pyautoattack:resnet18`` (docs/checkpoints.md). A suffix
            such as ``folder(combine=votes)`` changes the combination rule.
        trust: True allows TorchScript and torch.export programs, which can run code when loaded.
        network_file: network of the members, if it is defined in a Python file, such as ``mine.py:VGG(width=8)``.
            ``folder:mine.py:VGG(width=8)`` means the same.
        **expected: required values of fields of `Provenance`, such as ``dataset="cifar10"``. A plain state dict takes
            ``shape`` and ``classes`` from here. A model without a recorded dataset is accepted for every dataset.

    Returns:
        The ensemble.
    """
    spec, rule = split_combination(str(spec))
    weights, behind = split_network(spec)
    path = Path(weights) / FILE_NAME if Path(weights).is_dir() else Path(weights)
    if is_own(path):
        ensemble = load_own(path, behind or network_file)
    else:
        ensemble = load_foreign(spec, expected.get("shape"), expected.get("classes"), trust)
    if rule is not None:
        assert ensemble.provenance is not None
        rule.check(len(ensemble))
        ensemble.combination = rule
        ensemble.provenance = replace(ensemble.provenance, combine=rule.text)
    for name, value in expected.items():
        found = getattr(ensemble.provenance, name)
        if name == "network" and user_networks.same(found, value):
            continue
        if found != value and not (name == "dataset" and not found):
            raise BadInput(f"{spec} has {name} {found!r}, not {value!r}; give a matching checkpoint, or train one")
    return ensemble.eval()
