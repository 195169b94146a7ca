"""Names for shell completion, looked up without loading torch."""

from __future__ import annotations

from pathlib import Path

KINDS = ("defenses", "attacks", "datasets", "networks", "presets", "checkpoints")
"""The kinds of entries of `adp-bench list`."""


def kinds(incomplete: str) -> list[str]:
    """Kinds of entries that `adp-bench list` accepts."""
    return [name for name in KINDS if name.startswith(incomplete)]


def defenses(incomplete: str) -> list[str]:
    """Registered defenses; the shell itself completes file names."""
    from defenses.catalogue import DEFENSES

    return [name for name in DEFENSES.names() if name.startswith(incomplete)]


def attacks(incomplete: str) -> list[str]:
    """Registered attacks."""
    from benchmark.attacks import ATTACKS

    return [name for name in ATTACKS.names() if name.startswith(incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Known datasets."""
    from benchmark.datasets.catalogue import DATASETS

    return [name for name in DATASETS.names() if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Presets that come with the project."""
    folder = Path(__file__).parents[1] / "plan" / "presets"
    return sorted(path.stem for path in folder.glob("*.toml") if path.name.startswith(incomplete))


def tiers(incomplete: str) -> list[str]:
    """The tiers of attacks."""
    return [name for name in ("paper", "strict", "strong") if name.startswith(incomplete)]
