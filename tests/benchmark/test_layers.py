"""The packages are layers: each imports only from those below it, and no two modules or classes share a name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    "machine",
    "datasets",
    "attacks",
    "harness",
    "evaluations",
    "cells",
    "ensembles",
    "findings",
    "reports",
    "plan",
    "run",
    "claims",
    "api",
    "commands",
    "cli",
)
"""Parts of ``benchmark`` from the bottom to the top."""
MODULES = sorted((ROOT / "benchmark").rglob("*.py"))
ALL = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("benchmark", "defenses")
    for path in (ROOT / package).rglob("*.py")
}


def _imports(path: Path, everywhere: bool) -> Iterator[str]:
    """Modules that a file imports, at import time or anywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else _at_import_time(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner if inner <= ALL else inner | {node.module}
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _at_import_time(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield from _at_import_time(getattr(node, part, []))


def _layer(module: str) -> int | None:
    words = module.split(".")
    return LAYERS.index(words[1]) if words[0] == "benchmark" and len(words) > 1 and words[1] in LAYERS else None


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {path.relative_to(ROOT / "benchmark").parts[0].removesuffix(".py") for path in MODULES}
    assert parts - {"__init__", "__main__"} == set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=_module)
def test_no_module_imports_from_a_layer_above_its_own(path: Path) -> None:
    own = _layer(_module(path))
    if own is None:
        pytest.skip("the package itself")
    above = {name for name in _imports(path, everywhere=True) if (layer := _layer(name)) is not None and layer > own}
    assert above == set()


def test_defenses_never_import_the_benchmark() -> None:
    found = {
        (_module(path), name)
        for path in sorted((ROOT / "defenses").rglob("*.py"))
        for name in _imports(path, everywhere=True)
        if name.partition(".")[0] == "benchmark"
    }
    assert found == set()


@pytest.mark.parametrize("package", ["benchmark", "defenses"])
def test_there_is_no_cycle_at_import_time(package: str) -> None:
    files = {_module(path): path for path in sorted((ROOT / package).rglob("*.py"))}
    graph = {
        name: {other for other in _imports(path, everywhere=False) if other in files} for name, path in files.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name] - {name}):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("package", ["benchmark", "defenses"])
def test_no_two_modules_of_a_package_share_a_name(package: str) -> None:
    """Commands aside, which are named after what the user types."""
    paths = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    paths = [path for path in paths if "commands" not in path.parts]
    assert [name for name, count in Counter(path.name for path in paths).items() if count > 1] == []


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in (*MODULES, *(ROOT / "defenses").rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("modules", ["benchmark.findings.results, benchmark.findings.crosscheck", "benchmark.reports"])
def test_findings_and_reports_load_no_torch(modules: str) -> None:
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_listing_what_there_is_loads_no_torch() -> None:
    code = "import sys, benchmark.cli; status = benchmark.cli.run(['list']); sys.exit(status or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, cwd=ROOT).returncode == 0
