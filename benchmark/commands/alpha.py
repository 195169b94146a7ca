"""``adp-bench alpha``: ADP's α for a desired confidence, by Theorem 2."""

from __future__ import annotations

from typing import Annotated

import typer


def alpha(
    members: Annotated[int, typer.Option(help="Number of networks in the ensemble, K.")],
    classes: Annotated[int, typer.Option(help="Number of classes, L.")],
    confidence: Annotated[float, typer.Option(help="Desired mean probability of the true class.")],
) -> None:
    """Print the alpha for a desired confidence. Theorem 2 gives the optimal true-class probability for each alpha."""
    from defenses.theory import alpha_from_confidence

    typer.echo(f"{alpha_from_confidence(members, classes, confidence):.2f}")
