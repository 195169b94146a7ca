"""Text stays text in every format, and what the program itself writes stays as it is."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from benchmark.machine.terminal import visible
from benchmark.reports import escaping


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("100 % of a_b & $x$ #1", "100 \\% of a\\_b \\& \\$x\\$ \\#1"),
        ("{a}^2~b\\c", "\\{a\\}\\textasciicircum{}2\\textasciitilde{}b\\textbackslash{}c"),
        ("fast\n\\input{/etc/passwd}", "fast\\textbackslash{}n\\textbackslash{}input\\{/etc/passwd\\}"),
        ("[2pt]*", "{[}2pt{]}{*}"),
        ("a<b|c>", "a\\textless{}b\\textbar{}c\\textgreater{}"),
        ("1 ± 2", "1 $\\pm$ 2"),
    ],
)
def test_latex_has_no_sign_with_a_meaning(text: str, escaped: str) -> None:
    assert escaping.latex(text) == escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("a\\|b\\", "a\\\\\\|b\\\\"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("&lt;b&gt; & c", "&amp;lt;b&amp;gt; & c"),
        ("one\ntwo", "one\\\\ntwo"),
        ("`code` **bold** ~~gone~~ $x$", "\\`code\\` \\*\\*bold\\*\\* \\~\\~gone\\~\\~ \\$x\\$"),
        ("_a_ b__c", "\\_a\\_ b\\_\\_c"),
        ("# heading #", "\\# heading \\#"),
        ("- item", "\\- item"),
        ("1234. item", "1234\\. item"),
        ("> quotation", "\\> quotation"),
        ("[click](javascript:alert(1))", "\\[click\\](javascript:alert(1))"),
        ("see ![x][y] and\u202e", "see ![x\\][y] and\\\\u202e"),
    ],
)
def test_markdown_has_no_sign_with_a_meaning(text: str, escaped: str) -> None:
    assert escaping.markdown(text) == escaped


@pytest.mark.parametrize(
    "text",
    [
        "adp-2-0.5",
        "0.5 of 12",
        "eps=0.1,step_size=0.02",
        "pgd@native(eps=0.1) · strict: pixels in [0, 1], 5 % – ±",
        "3 × resnet20",
    ],
)
def test_usual_names_are_the_same_in_markdown(text: str) -> None:
    assert escaping.markdown(text) == text


GFM = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SIGNS = st.characters(exclude_categories=("Cs",)) | st.sampled_from("\\`*_{}[]()#+-.!|<>&~$=:;1 \n\t")
BLOCKS = {
    "# {}": ["heading_open", "inline", "heading_close"],
    "{}": ["paragraph_open", "inline", "paragraph_close"],
}


def _texts(tokens: list[Token]) -> list[str]:
    """What the parts of a text say, if they are plain."""
    inline = [token.children or [] for token in tokens if token.type == "inline"]
    assert {child.type for children in inline for child in children} <= {"text", "text_special"}
    return ["".join(child.content for child in children).strip() for children in inline]


@settings(max_examples=500, deadline=None)
@given(st.text(SIGNS, max_size=12).filter(str.strip))
def test_a_reader_of_markdown_sees_the_text_itself(text: str) -> None:
    escaped, shown = escaping.markdown(text), visible(text).strip()
    table = GFM.parse(f"| a | {escaped} | b |\n| --- | --- | --- |\n| c | {escaped} | d |")
    assert _texts(table) == ["a", shown, "b", "c", shown, "d"]
    for form, blocks in BLOCKS.items():
        tokens = GFM.parse(form.format(escaped))
        assert [token.type for token in tokens] == blocks and _texts(tokens) == [shown]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@SUM(1+1)*cmd|' /C calc'!A0", "'@SUM(1+1)*cmd|' /C calc'!A0"),
        ("＝1+1", "'＝1+1"),
        ("x;=1+1", "x;'=1+1"),
        ("\t=1+1", "\\t=1+1"),
        ("\r=1+1", "\\r=1+1"),
        ("one\ntwo\x00", "one\\ntwo\\x00"),
    ],
)
def test_a_text_in_csv_is_no_formula(text: str, written: str) -> None:
    table = pd.DataFrame({"name": [text, "adp"], "number": [-0.5, 1.0]})
    read = pd.read_csv(io.StringIO(escaping.csv(table)))
    assert read["name"].tolist() == [written, "adp"] and read["number"].tolist() == [-0.5, 1.0]


def test_csv_of_usual_values_is_what_pandas_writes() -> None:
    table = pd.DataFrame(
        {
            "text": ["eps=0.1,steps=10", "-", "", None],
            "votes": ["-1/3/7", "0/0/0", "+1", "-0.5"],
            "counts": pd.Series([1, None, -2, 3], dtype="Int64"),
            "mixed": pd.Series([1, None, -2.5, "x"], dtype=object),
            "numbers": [-1.5, float("nan"), 1e-12, 3.0],
            "flags": [True, False, True, False],
        }
    )
    assert escaping.csv(table) == table.to_csv(index=False, lineterminator="\n")


def test_a_name_in_a_figure_is_one_line_of_readable_length() -> None:
    assert escaping.figure("adp-2-0.5") == "adp-2-0.5"
    assert escaping.figure("a\nb") == "a\\nb"
    assert escaping.figure("_mine") == " _mine" and escaping.figure("") == "–"
    one, two = (escaping.figure(name) for name in ("x" * 10**5 + "1", "x" * 10**5 + "2"))
    assert len(one) <= 101 and one != two


def test_a_page_keeps_lines_and_shows_other_control_characters() -> None:
    assert escaping.html("one\ntwo\x00\u202e") == "one\ntwo\\x00\\u202e"
    assert escaping.html(7) == 7
