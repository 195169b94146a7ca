"""A table of a preset's TOML, read with checks: every error names the file and the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from defenses.errors import BadInput
from defenses.registry import did_you_mean

KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
"""Names of the types of TOML values."""


class PresetTable:
    """One table of a preset and its place, such as ``mine.toml, grid 1``."""

    def __init__(self, content: Mapping[str, Any], place: str) -> None:
        self.content, self.place = content, place

    def only(self, *keys: str) -> None:
        """Refuse every other key."""
        for key in self.content:
            if key not in keys:
                raise BadInput(f"{self.place}: unknown key {key!r}; {did_you_mean(key, keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty; without a default, the key is required."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text in quotes", value)
        if not value.strip() and value != default:
            raise BadInput(f"{self.place}: {key} is empty; give it a value, or omit the key")
        return value

    def number(self, key: str, default: int, least: int = 0) -> int:
        """A whole number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._wrong(key, f"a whole number from {least}", value)
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts that is not empty."""
        value = self._value(key, default)
        if not isinstance(value, (list, tuple)):
            raise self._wrong(key, 'a list such as ["…", "…"]', value)
        if not value and default is None:
            raise BadInput(f"{self.place}: {key} is empty; list at least one entry")
        for number, item in enumerate(value, 1):
            if not isinstance(item, str):
                raise self._wrong(f"{key} {number}", "text in quotes", item)
        return tuple(value)

    def table(self, key: str) -> PresetTable:
        """The table of a key."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return PresetTable(value, f"{self.place}, {key}")

    def tables(self, key: str, plain: str = "") -> list[PresetTable]:
        """The tables of a list; a text stands for a table with the one key ``plain``."""
        value = self._value(key, None)
        form = f"{{ {plain} = … }} or text in quotes" if plain else f"a table: write [[{key}]] above its keys"
        if not isinstance(value, list):
            raise self._wrong(key, f"a list, each {form}" if plain else form, value)
        found = []
        for number, item in enumerate(value, 1):
            item = {plain: item} if plain and isinstance(item, str) else item
            if not isinstance(item, dict):
                raise self._wrong(f"{key} {number}", form, item)
            found.append(PresetTable(item, f"{self.place}, {key} {number}"))
        return found

    @contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Put the place and the key before the message of a BadInput inside the block."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"{self.place}, {key}: {error}") from error

    def _value(self, key: str, default: Any) -> Any:
        if key not in self.content and default is None:
            raise BadInput(f"{self.place}: the key {key!r} is missing; add it")
        return self.content.get(key, default)

    def _wrong(self, key: str, wanted: str, value: Any) -> BadInput:
        kind = KINDS.get(type(value), "a date or time")
        shown = f"{kind}, {str(value)[:40]!r}" if isinstance(value, (str, int, float)) else kind
        return BadInput(f"{self.place}, {key}: it must be {wanted}, but it is {shown}")
