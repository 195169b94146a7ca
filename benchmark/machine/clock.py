"""Seconds as a reader says them."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """45 s, 3 min, 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
