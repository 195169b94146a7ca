"""Text of files and users on a terminal: what would steer it, or hide in it, is shown as an escape."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Parts of words and of emoji."""


def visible(text: object, keep: str = "") -> str:
    """The text with every character that is not shown written as an escape, such as ``\\x1b``, but for those to keep.

    Control and format characters, marks that turn the direction of text, line separators, halves of surrogate pairs
    (a file name that is not UTF-8 has them) and codes that are no characters.
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
