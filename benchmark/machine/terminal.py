"""Safe text for a terminal: control characters and invisible characters are shown as escapes."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Not escaped: they are parts of words and of emoji."""


def visible(text: object, keep: str = "") -> str:
    """The text with every invisible character written as an escape, such as ``\\x1b``; characters in ``keep`` stay.

    Invisible characters are control and format characters, marks that change the direction of text, line separators,
    halves of surrogate pairs (from file names that are not UTF-8) and codes that are not characters.
    """
    written = str(text)
    if written.isprintable():
        return written
    return "".join(sign if sign in keep or _shown(sign) else _escape(sign) for sign in written)


def _shown(sign: str) -> bool:
    noncharacter = ord(sign) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(sign) <= 0xFDEF
    return sign in JOINERS or not (noncharacter or unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp"))


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
