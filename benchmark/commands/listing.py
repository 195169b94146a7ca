"""``adp-bench list``: the names that commands accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING
from textwrap import fill
from typing import Annotated, Any

import typer

from benchmark.commands import names
from benchmark.machine.terminal import visible
from defenses.errors import BadInput
from defenses.registry import Registry, did_you_mean

Row = dict[str, Any]


def listing(
    what: Annotated[
        str,
        typer.Argument(
            metavar=f"[{'|'.join(names.KINDS)}]",
            help="Kind of entry to list.  [default: an overview]",
            autocompletion=names.kinds,
            show_default=False,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    library: Annotated[
        str | None,
        typer.Option(help="With `list attacks`: every attack class of torchattacks, art or foolbox."),
    ] = None,
) -> None:
    """List the names that commands accept. Kinds: defenses, attacks, datasets, networks, presets, checkpoints."""
    makers = (_defenses, _attacks, _datasets, _networks, _presets, _checkpoints)
    kinds: dict[str, Callable[[], list[Row]]] = dict(zip(names.KINDS, makers, strict=True))
    if not what and library is None:
        _overview(kinds, as_json)
        return
    what = what or "attacks"  # only attacks have libraries
    if what not in kinds:
        raise BadInput(f"cannot list {what!r}; {did_you_mean(what, kinds)}")
    if library is not None and what != "attacks":
        raise BadInput(f"--library works with `list attacks`, not with `list {what}`; omit it")
    rows = kinds[what]() if library is None else _classes(library)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(f"no {what} found")
        if what == "checkpoints":
            from benchmark.ensembles.folders import WHERE_REFERENCES

            typer.echo(WHERE_REFERENCES)
        return
    texts = [[visible(_text(value)) for value in row.values()] for row in rows]
    headings = list(rows[0])
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    for line in [headings, *texts]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if what == "attacks":
        typer.echo(_more(library, rows))


def _overview(kinds: dict[str, Callable[[], list[Row]]], as_json: bool) -> None:
    """One paragraph per kind: how many there are, and their names."""
    found = {kind: [str(row.get("name", row.get("folder"))) for row in rows()] for kind, rows in kinds.items()}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for kind, shown in found.items():
        words = "  ".join(visible(name) for name in shown) if kind != "checkpoints" else "trained ensembles"
        typer.echo(fill(f"{kind} ({len(shown)}): {words}", 100, subsequent_indent="    ", break_long_words=False))
    typer.echo("`adp-bench list KIND` shows the details; docs/your-own.md explains how to add your own")


def _defenses() -> list[Row]:
    from defenses.catalogue import DEFENSES

    return _registered(DEFENSES)


def _attacks() -> list[Row]:
    from benchmark.attacks import ATTACKS

    rows = _registered(ATTACKS)
    for row in rows:
        row["libraries"] = ", ".join(ATTACKS.get(row["name"]).backends)
    return [{key: row[key] for key in ("name", "spec", "libraries", "what")} for row in rows]


def _classes(library: str) -> list[Row]:
    """One row per attack class of a library; the row of an unusable class gives the reason."""
    from benchmark.attacks.library_attacks import library_classes

    return [
        {
            "name": one.name,
            "spec": "" if one.left_out else one.example,
            "bound": "" if one.left_out else one.bound_facts.words,
            "also": ", ".join(one.aliases),
            "left out": one.left_out and f"it {one.left_out}",
        }
        for one in library_classes(library).values()
    ]


def _more(library: str | None, rows: list[Row]) -> str:
    """Hints that follow the list."""
    if library is None:
        return (
            "\nEvery attack class of torchattacks, art or foolbox: adp-bench list attacks --library torchattacks"
            "\nYour own attack: file.py:name(parameter=value). In any spec, bound=l2:0.5 sets the bound to check"
        )
    usable = sum(not row["left out"] for row in rows)
    return f"\n{len(rows)} classes of {library}, {usable} usable; docs/library-attacks.md shows the result of each"


def _presets() -> list[Row]:
    from benchmark.plan.presets import load_preset, preset_names

    rows = []
    for name in preset_names():
        preset = load_preset(name)
        rows.append({"name": name, "datasets": ", ".join(grid.dataset for grid in preset.grids), "what": preset.title})
    return rows


def _checkpoints() -> list[Row]:
    """Trained ensembles: first the reference ensembles of the project, then the ensembles trained in this folder."""
    from benchmark.ensembles.folders import ENSEMBLES, references
    from benchmark.ensembles.provenance import others_of
    from defenses.checkpoints import FILE_NAME, read_provenance

    rows = []
    for root in (*references(), ENSEMBLES):
        for path in sorted(root.glob(f"*/*/{FILE_NAME}")):
            try:
                origin = read_provenance(path)
            except BadInput as error:  # the other checkpoints are still listed
                typer.echo(f"adp-bench: {error}", err=True)
                continue
            recipe = origin.recipe
            accuracy = origin.scores.get("test_accuracy")
            rows.append(
                {
                    "dataset": origin.dataset,
                    "defense": origin.defense,
                    "network": f"{origin.members} × {origin.network}",
                    "recipe": recipe.get("name", ""),
                    "epochs": origin.epoch,
                    "images": recipe.get("train_images") or "all",
                    "otherwise": ", ".join(others_of(origin)),
                    "accuracy": "" if accuracy is None else f"{100 * accuracy:.2f} %",
                    "seed": origin.seed,
                    "date": origin.written,
                    "version": origin.versions.get("adp-benchmark", ""),
                    "sha256": origin.weights_sha256[:16],
                    "folder": str(path.parent),
                }
            )
    return rows


def _networks() -> list[Row]:
    from defenses.members.networks import NETWORKS

    return _registered(NETWORKS)


def _datasets() -> list[Row]:
    from benchmark import datasets

    return datasets.describe()


def _registered(registry: Registry[Any]) -> list[Row]:
    """One row per name, with its description and its spec: parameters with defaults, or the target of an alias."""
    from defenses.specs import parameters, value_text

    rows = []
    aliases = registry.aliases()
    for name in registry.names():
        target = registry.get(aliases.get(name, name).partition("(")[0])
        fields = parameters(target).items()
        shown = [f"{key}={'…' if f.default is MISSING else value_text(f.default)}" for key, f in fields]
        stands_for = aliases.get(name) or (f"{name}({','.join(shown)})" if shown else name)
        rows.append({"name": name, "spec": stands_for, "what": _first_sentence(target)})
    return rows


def _first_sentence(target: Any) -> str:
    return " ".join((target.__doc__ or "").split("\n\n")[0].split()).rstrip(".")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)
