"""What is printed is visible text: no character of a name steers the terminal or hides in a line."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.machine.terminal import visible

SIGNS = st.characters(codec=None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("adp-2-0.5 · pgd(eps=0.1) · 3 × resnet20, ±0.1 – L∞", "adp-2-0.5 · pgd(eps=0.1) · 3 × resnet20, ±0.1 – L∞"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("one\r\ntwo\x00", "one\\r\\ntwo\\x00"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("pay\u200bpal\ufeff", "pay\\u200bpal\\ufeff"),
        ("not UTF-8: \udcff", "not UTF-8: \\udcff"),
        ("no character: \uffff", "no character: \\uffff"),
        ("emoji 🙂, 👩\u200d💻 and Persian می\u200cخواهم", "emoji 🙂, 👩\u200d💻 and Persian می\u200cخواهم"),
    ],
)
def test_what_is_not_shown_becomes_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_lines_stay_where_they_are_meant() -> None:
    assert visible("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


@given(st.text(SIGNS))
def test_any_text_can_be_printed_in_one_line(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in shown)
    assert visible(shown) == shown
