"""Ensembles, the defenses that train them, and the theory of ADP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defenses.catalogue import parse_defense, register
    from defenses.checkpoints import load_checkpoint
    from defenses.members.ensemble import Ensemble
    from defenses.objectives import Defense

_HOMES = {
    "Defense": "defenses.objectives",
    "Ensemble": "defenses.members.ensemble",
    "load_checkpoint": "defenses.checkpoints",
    "parse_defense": "defenses.catalogue",
    "register": "defenses.catalogue",
}

__all__ = ["Defense", "Ensemble", "load_checkpoint", "parse_defense", "register"]


def __getattr__(name: str) -> Any:  # lazy imports: `import defenses` does not load torch
    if name not in _HOMES:
        raise AttributeError(f"module 'defenses' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
