"""The digest of a user's Python file: it depends on the code, not on comments or formatting."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from defenses.errors import BadInput

OURS = ("benchmark", "defenses")
"""Packages of this project. They are not part of a user's code, even if they lie in the same folder."""


def source_digest(path: Path) -> str:
    """sha256 of the syntax tree of a file and of the files it imports from its own folder.

    The digest ignores comments, docstrings (any string that stands alone as a statement), ``pass`` and formatting. It
    depends on names, numbers, annotations and the order of statements. Imports of modules and packages in the folder of
    the first file are followed, also from imported files; imports of installed packages and of this project are not.
    The digest ignores the name and the folder of the first file, but depends on the names of imported files. It does
    not depend on the version of Python.
    """
    root = path.resolve().parent
    waiting, seen = [path.resolve()], {path.resolve()}
    parts: list[str] = []
    while waiting:
        file = waiting.pop()
        tree = _parsed(file)
        name = "" if not parts else file.relative_to(root).as_posix()
        parts.append(f"{name}\n{''.join(_written(tree))}")
        for imported in _imported(tree, file, root):
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return hashlib.sha256("\n".join(sorted(parts)).encode("utf-8", "surrogatepass")).hexdigest()


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as Python: {error}; correct the file") from error


def _written(node: object) -> Iterator[str]:
    """A syntax tree as text, without empty fields, because each version of Python adds some."""
    if not isinstance(node, ast.AST):
        yield repr(node)
        return
    yield f"{type(node).__name__}("
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [part for part in value if not _does_nothing(part)]
        if value is None or value == [] or name in ("kind", "type_ignores"):  # kind: the u of u"text"
            continue
        yield f"{name}="
        for part in value if isinstance(value, list) else [value]:
            yield from _written(part)
            yield ","
    yield ")"


def _does_nothing(statement: object) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return isinstance(statement.value.value, str)
    return isinstance(statement, ast.Pass)


def _imported(tree: ast.Module, file: Path, root: Path) -> Iterator[Path]:
    """The files in the root folder that ``file`` imports, at any place of its code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(root, alias.name.split("."), root)
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
            for alias in node.names:  # an imported name can be a module
                yield from _modules(start, [*(node.module or "").split("."), alias.name], root)


def _modules(start: Path, names: list[str], root: Path) -> Iterator[Path]:
    """The existing files of a dotted name: those of each package in it, and of the module."""
    if start == root and names[0] in OURS:
        return
    place = start
    for name in filter(None, names):  # `from . import name` has no module
        place = place / name
        for file in (place.with_name(f"{name}.py"), place / "__init__.py"):
            if file.is_file() and file.resolve().is_relative_to(root):
                yield file.resolve()
