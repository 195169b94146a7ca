"""File names that are short enough for every file system."""

from __future__ import annotations

import hashlib

LONGEST = 180
"""Bytes. File systems allow 255: an ending, a hash and the marks of a temporary file must fit as well."""


def shortened(name: str, longest: int = LONGEST) -> str:
    """The name; a longer name is cut and ends with a hash of the full name."""
    encoded = name.encode("utf-8", "surrogatepass")
    if len(encoded) <= longest:
        return name
    ending = f"-{hashlib.sha256(encoded).hexdigest()[:12]}"
    return encoded[: longest - len(ending)].decode("utf-8", "ignore") + ending
