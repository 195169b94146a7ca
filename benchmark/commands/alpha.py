"""``adp-bench alpha``: Theorem 2, from a wanted confidence to ADP's α."""

from __future__ import annotations

from typing import Annotated

import typer


def alpha(
    members: Annotated[int, typer.Option(help="Networks in the ensemble, K.")],
    classes: Annotated[int, typer.Option(help="Classes of the dataset, L.")],
    confidence: Annotated[float, typer.Option(help="Wanted mean probability of the true class.")],
) -> None:
    """Print the alpha whose optimal true-class probability is the given confidence (Theorem 2)."""
    from defenses.theory import alpha_from_confidence

    typer.echo(f"{alpha_from_confidence(members, classes, confidence):.2f}")
