"""Pages of the site that the program writes itself: the command line, the presets and the columns of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the figures of the committed results."""
    for picture in sorted((ROOT / "results").glob("*/figures/*.png")):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    for name, content in {
        "command-line.md": command_line(),
        "presets.md": presets(),
        "files.md": (ROOT / "docs" / "_files.md")
        .read_text(encoding="utf-8")
        .replace("{columns}", columns())
        .replace("{rows}", rows()),
    }.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Pages show figures by their place in the repository, one folder up; the site has a copy."""
    return markdown.replace("](../results/", "](results/")


def command_line() -> str:
    """Every command with its help, as the program prints it."""
    import click
    import typer

    from benchmark.cli import app

    def pages(command: click.Command, path: str, parent: click.Context | None) -> list[str]:
        context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
        parts = [f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"]
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            parts += pages(inner, f"{path} {name}", context)
        return parts

    return "# Command line\n\n" + "\n".join(pages(typer.main.get_command(app), "adp-bench", None))


def presets() -> str:
    """The presets as they are in the package."""
    folder = ROOT / "benchmark" / "plan" / "presets"
    parts = [
        f"## {path.stem}\n\n```toml\n{path.read_text(encoding='utf-8')}```\n" for path in sorted(folder.glob("*.toml"))
    ]
    words = "A preset is a TOML file. `adp-bench preset show NAME` prints one to start from."
    return f"# Presets\n\n{words}\n\n" + "\n".join(parts)


def columns() -> str:
    """The columns of the records: those of every evaluation, then those that one adds."""
    from benchmark.evaluations import EVALUATIONS
    from benchmark.harness.records import RECORDS, Column

    def table(found: Sequence[Column]) -> str:
        rows = [f"| `{column.name}` | {column.kind} | {column.meaning} |" for column in found]
        return "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *rows])

    parts = [f"### Every evaluation\n\n{table(RECORDS.columns)}\n"]
    for task, _ in EVALUATIONS:
        added = [column for column in task.records.columns if column not in RECORDS.columns]
        parts += [f"### {task.evaluation}\n\n{table(added)}\n"] if added else []
    return "\n".join(parts)


def rows() -> str:
    """The columns of table.csv."""
    from benchmark.findings.rows import COLUMNS

    return ", ".join(f"`{name}`" for name in COLUMNS)
