"""The digest of a user's Python file: of what the program does, not of how it is written down."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from defenses.errors import BadInput

OURS = ("benchmark", "defenses")
"""Packages of this project: a user's file imports them, and may lie beside them, but they are no part of it."""


def source_digest(path: Path) -> str:
    """sha256 of the syntax tree of a file and of the files it imports from its own folder.

    Comments, docstrings (any string that stands alone as a statement), ``pass`` and formatting do not count; names,
    numbers, annotations and the order of statements do. Imports are followed, from file to file, to modules and
    packages in the folder of the first file; installed packages and this project are not followed. The name and the
    folder of the first file do not count, the names of the imported ones do. The digest does not depend on the
    version of Python.
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
        raise BadInput(f"{path} cannot be read as Python: {error}") from error


def _written(node: object) -> Iterator[str]:
    """A tree as text; fields that are empty are left out, because each version of Python adds some."""
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
    """Files in the root folder that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(root, alias.name.split("."), root)
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
            for alias in node.names:  # a name may be a module of the package
                yield from _modules(start, [*(node.module or "").split("."), alias.name], root)


def _modules(start: Path, names: list[str], root: Path) -> Iterator[Path]:
    """The files of a dotted name that there are: of each package on the way, and of the module."""
    if start == root and names[0] in OURS:
        return
    place = start
    for name in filter(None, names):  # `from . import name` has no module
        place = place / name
        for file in (place.with_name(f"{name}.py"), place / "__init__.py"):
            if file.is_file() and file.resolve().is_relative_to(root):
                yield file.resolve()
