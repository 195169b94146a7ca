"""``adp-bench leaderboard``: rank the defenses of all runs, audits and entries on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmark.machine.terminal import visible
from defenses.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmark.findings.entries import BoardEntry
    from benchmark.findings.results import Results

DEFAULT = Path("results")


def leaderboard(
    what: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR|ENTRY.json]...",
            help="Folders that contain runs and audits, or entry files from elsewhere.  [default: results]",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for leaderboard.html and leaderboard.csv.")] = Path(
        "results/leaderboard"
    ),
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model of a certificate, if the checkpoints here do not include it. May be repeated."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow TorchScript and torch.export models, which can run code when loaded.")
    ] = False,
) -> None:
    """Rank all measured defenses on one page. Only significant differences change a rank. No attack is run."""
    from benchmark.claims.proofs import Checker
    from benchmark.findings.board import boards_of
    from benchmark.reports.leaderboard import Leaderboard, write_leaderboard
    from defenses.errors import first_line
    from defenses.files import writable_folder

    damaged: list[str] = []

    def left_out(error: Exception) -> None:
        damaged.append(first_line(error))
        typer.echo(visible(f"left out: {damaged[-1]}"), err=True)

    found = _Found(what or [DEFAULT], out, left_out)
    checker, proofs = Checker(model or (), trust), []
    for path in found.certificates:
        try:
            proofs.append(checker.proof(path))
        except (BadInput, OSError) as error:
            left_out(error)
    boards = boards_of(found.runs, proofs, found.entries)
    if not boards:
        names = ", ".join(map(str, what or [DEFAULT]))
        raise BadInput(f"there is no valid run, audit or entry in {names}; run a preset first: adp-bench run demo")
    writable_folder(out)
    write_leaderboard(out, Leaderboard(boards, len(found.runs), len(proofs), len(found.entries), tuple(damaged)))
    typer.echo(visible(out / "leaderboard.html"))


class _Found:
    """Runs, certificates and entries of the given paths; damaged ones are reported and left out."""

    def __init__(self, what: list[Path], out: Path, left_out: Callable[[Exception], None]) -> None:
        self.runs: list[Results] = []
        self.entries: list[BoardEntry] = []
        self.certificates: list[Path] = []
        self.left_out, self.out = left_out, out.resolve()
        for path in what:
            if path.is_dir():
                self._folder(path)
            elif path.suffix == ".json" and path.is_file():
                self._entry(path)
            else:
                raise BadInput(f"{path} is neither a folder nor an entry (.json); give a folder of runs or an entry")
        self.certificates = list({path.resolve(): path for path in self.certificates}.values())

    def _folder(self, folder: Path) -> None:
        from benchmark.cells.store import MANIFEST, Store
        from benchmark.claims.proofs import AUDIT, certificates_in
        from benchmark.findings.results import read_results

        for path in self._files(folder, MANIFEST):
            try:
                self.runs.append(read_results(Store(path.parent)))
            except (BadInput, OSError) as error:
                self.left_out(error)
        for path in self._files(folder, AUDIT):
            try:
                self.certificates += certificates_in(path.parent)
            except (BadInput, OSError) as error:
                self.left_out(error)

    def _files(self, folder: Path, name: str) -> Iterator[Path]:
        for path in sorted(folder.rglob(name)):
            if path.is_file() and self.out not in path.resolve().parents:
                yield path

    def _entry(self, path: Path) -> None:
        from benchmark.findings.entries import read_entry

        entry = read_entry(path)  # named by the user, so an error in it is fatal
        self.entries.append(entry)
        self.certificates += entry.certificates
