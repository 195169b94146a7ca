"""A typed registry of named objects: defenses, networks, datasets and attacks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, cast

from defenses.errors import BadInput

T = TypeVar("T")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A clause for an error message: the nearest known names, or all of them."""
    known = sorted(set(choices))
    spelled = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), spelled, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(spelled[name] for name in near)}?"
    return f"known: {', '.join(known)}" if known else "none are known"


class Registry(Generic[T]):
    """Named targets of one kind, with aliases; a target may be given lazily as ``module:attribute``.

    Third-party packages add to it through the entry-point group ``adp_benchmark.<kind>s``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._targets: dict[str, T | str] = {}
        self._imported: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._entry_points_read = False

    def register(self, name: str, target: T | str) -> None:
        """Add a target; a name that is already taken by another target is an error."""
        self._refuse_collision(name, target)
        self._targets[name] = target

    def alias(self, name: str, spec: str) -> None:
        """Let ``name`` stand for the spec text ``spec``."""
        self._refuse_collision(name, spec)
        self._aliases[name] = spec

    def _refuse_collision(self, name: str, target: object) -> None:
        present = self._targets.get(name, self._aliases.get(name))
        if present is not None and present != target:
            raise BadInput(f"{self.kind} name {name!r} is already taken by {present!r}; choose another name")

    def decorator(self, name: str) -> Callable[[T], T]:
        """Use as ``@registry.decorator("name")`` above a class or function."""

        def add(target: T) -> T:
            self.register(name, target)
            return target

        return add

    def get(self, name: str) -> T:
        """The target of a registered name, imported now if it was lazy."""
        if name not in self._targets:
            self._read_entry_points()
        if name not in self._targets:
            raise BadInput(f"unknown {self.kind} {name!r}; {did_you_mean(name, self.names())}")
        target = self._targets[name]
        if not isinstance(target, str):
            return target
        if name not in self._imported:
            self._imported[name] = self._import(name, target)
        return self._imported[name]

    def _import(self, name: str, lazy: str) -> T:
        from importlib.metadata import EntryPoint

        try:
            return cast(T, EntryPoint(name, lazy, self._group).load())
        except (ImportError, AttributeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(
                f"{self.kind} {name!r} comes from {lazy!r}, which cannot be imported: {reason}; "
                "install or update its package"
            ) from error

    def expand(self, name: str) -> str:
        """The spec of an alias; any other name is returned unchanged."""
        return self._aliases.get(name, name)

    def aliases(self) -> dict[str, str]:
        """Alias to spec text."""
        return dict(self._aliases)

    def names(self) -> list[str]:
        """Every name that a user can write, including aliases."""
        self._read_entry_points()
        return sorted({*self._targets, *self._aliases})

    def targets(self) -> list[str]:
        """Registered names without the aliases."""
        self._read_entry_points()
        return sorted(self._targets)

    @property
    def _group(self) -> str:
        return f"adp_benchmark.{self.kind}s"

    def _read_entry_points(self) -> None:
        if self._entry_points_read:
            return
        from importlib.metadata import entry_points  # slow to import, and not needed for `adp-bench --help`

        for point in entry_points(group=self._group):
            self.register(point.name, point.value)
        # Set last, so that every call reports a collision, not only the first one.
        self._entry_points_read = True
