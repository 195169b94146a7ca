"""Attacks from outside this project: a library's class under its own name, or a function or class of the user."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from benchmark.attacks.definitions import Attack
from benchmark.attacks.signatures import Value, value_text

STEPS = ("steps", "max_iter", "max_iterations", "num_iter_set", "nb_iter", "nb_steps", "n_queries", "queries")
RESTARTS = ("restarts", "n_restarts", "num_random_init", "nb_random_init", "nb_restarts")


@dataclass(frozen=True)
class ForeignAttack(Attack):
    """An attack known by its name and the values of all its parameters."""

    scaled: ClassVar[tuple[str, ...]] = ("alpha", "eps_step", "step_size", "abs_stepsize")
    work: ClassVar[tuple[str, ...]] = (*STEPS, *RESTARTS)

    callable_name: str
    values: tuple[tuple[str, Value], ...]
    """Every parameter with its value."""
    written: str
    """The parameters that a spec must give, as the text between its parentheses."""

    @property
    def parameters(self) -> str:
        return self.written

    def settings(self) -> dict[str, Any]:
        return dict(self.values)

    def full_name(self, name: str, library: str) -> str:
        return f"{library}:{name}"

    @property
    def named_in_full(self) -> bool:
        return True

    @property
    def cost_known(self) -> bool:
        return False

    def gradients(self, scalars: int, classes: int) -> float:
        """A guess from the number of its steps, used to distribute the work."""
        counts = [self.settings().get(key) for key in (*STEPS, *RESTARTS)]
        return math.prod(max(float(count), 1.0) for count in counts if isinstance(count, (int, float)))

    @property
    def can_aim(self) -> bool:
        return "targeted" in self.settings()

    def aimed(self, targeted: bool) -> ForeignAttack:
        others = [part for part in self.written.split(",") if part and not part.startswith("targeted=")]
        values = {**self.settings(), "targeted": targeted}
        shown = [*others, f"targeted={value_text(targeted)}"] if targeted else others
        return replace(self, values=tuple(values.items()), written=",".join(shown))
