"""Durations: seconds as text, and text as seconds."""

from __future__ import annotations

import re

from defenses.errors import BadInput

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}


def clock(seconds: float) -> str:
    """Seconds as text: 45 s, 3 min or 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_of(text: str) -> float:
    """The seconds of ``90s``, ``30m`` or ``1.5h``."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|min|h)\s*", text)
    if match is None:
        raise BadInput(f"cannot read the time {text!r}; write a number and a unit, such as 90s, 30m or 2h")
    return float(match[1]) * UNITS[match[2]]
