"""Text from files and users in reports: special characters are escaped. One function per format."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from benchmark.machine.terminal import visible

# --- LaTeX ---

SYMBOLS = {
    **{
        letter: f"\\{name}"
        for letter, name in zip("αβγδκλτ", ["alpha", "beta", "gamma", "delta", "kappa", "lambda", "tau"], strict=True)
    },
    "ε": "\\varepsilon",
    "±": "\\pm",
    "−": "-",
    "·": "\\cdot",
    "×": "\\times",
    "≤": "\\leq",
    "∞": "\\infty",
    "†": "^{\\dagger}",
}
"""Characters that LaTeX needs in math mode."""
LATEX = {
    "\\": "\\textbackslash{}",
    "^": "\\textasciicircum{}",
    "~": "\\textasciitilde{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    **{sign: f"${command}$" for sign, command in SYMBOLS.items()},
    "–": "--",
    "…": "\\dots{}",
    **{sign: f"\\{sign}" for sign in "_%&#${}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # at the start of a row, they would be arguments of the previous \\
}


def latex(text: object) -> str:
    """Text for LaTeX, in one line: in a comment, a second line would not be commented out."""
    return "".join(LATEX.get(sign, sign) for sign in visible(text))


# --- Markdown ---

MARKDOWN = re.compile(
    r"""[\\`*|~$]               # escapes, code, emphasis, columns, deletions, formulas
    | (?<![^\W_])_ | _(?![^\W_])  # emphasis; inside a word it is a letter
    | \](?=[(\[:])              # links and their definitions
    | (?<!\S)\#                 # headings, and what closes one
    | ^[-+>=\[]                 # lists, quotations, underlined headings
    """,
    re.VERBOSE,
)
NUMBERED = re.compile(r"^(\d+)([.)])(?!\S)")
ENTITY = re.compile(r"&(?=\#?\w+;)")


def markdown(text: object) -> str:
    """Text for a field, a heading or a paragraph of Markdown, in one line."""
    plain = MARKDOWN.sub(r"\\\g<0>", visible(text).strip())
    return ENTITY.sub("&amp;", NUMBERED.sub(r"\1\\\2", plain)).replace("<", "&lt;")


# --- CSV ---

FORMULA = re.compile(r"(^|;)(?=[=+@＝＋－＠-])")  # some spreadsheets end a field at a semicolon
HARMLESS = re.compile(r"[-+]?[\d./]*")


def csv(table: pd.DataFrame) -> str:
    """The whole file. Text that a spreadsheet would read as a formula gets an apostrophe in front."""
    safe = {
        str(name): pd.Series([*map(_field, column)], column.index, column.dtype)  # map would change numbers to floats
        for name, column in table.items()
        if column.dtype == object or isinstance(column.dtype, pd.StringDtype)
    }
    return table.assign(**safe).to_csv(index=False, lineterminator="\n")


def _field(value: Any) -> Any:
    if not isinstance(value, str) or HARMLESS.fullmatch(value):
        return value
    return FORMULA.sub(r"\1'", visible(value))


# --- HTML ---


def html(value: Any) -> Any:
    """Text for a page; Jinja escapes it afterwards. Line breaks stay, because a command may have several lines."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return visible(value, keep="\n\t") if is_text else value


# --- figures ---

LONGEST = 100
"""Longest name in a figure, in letters; thousands of letters would make the figure too large to write."""


def figure(text: object) -> str:
    """A name in a figure, in one line; the middle of a long one is left out."""
    name = visible(text) or "–"
    if len(name) > LONGEST:
        name = f"{name[: 2 * LONGEST // 3]}…{name[-LONGEST // 3 :]}"
    return f" {name}" if name.startswith("_") else name  # legends leave out names that begin with _, and empty names
