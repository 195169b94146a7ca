"""The program ``adp-bench``: registers the commands, and turns an error into one line and an exit code.

Heavy imports happen inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from benchmark.commands import data, preset
from benchmark.commands.alpha import alpha
from benchmark.commands.audit import audit
from benchmark.commands.compare import compare
from benchmark.commands.crosscheck import crosscheck
from benchmark.commands.leaderboard import leaderboard
from benchmark.commands.listing import listing
from benchmark.commands.report import report
from benchmark.commands.run import run as run_preset
from benchmark.commands.train import train
from benchmark.commands.verify import verify
from benchmark.machine.terminal import visible
from defenses.errors import BadInput, NotVerified, RunFailed, place_of

INTERRUPTED = "interrupted; run the same command again to resume"


def say_version(asked: bool) -> None:
    """Print the version, and nothing else."""
    if asked:
        from benchmark import __version__

        typer.echo(f"adp-bench {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="Evaluate the adversarial robustness of ensembles: ADP and later defenses.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=say_version, help="Print the version.")
    ] = False,
) -> None:
    """Evaluate the adversarial robustness of ensembles: ADP and later defenses."""


app.command("list")(listing)
app.add_typer(data.app, name="data")
app.add_typer(preset.app, name="preset")
app.command()(train)
app.command("run")(run_preset)
app.command()(compare)
app.command()(audit)
app.command()(crosscheck)
app.command()(report)
app.command()(leaderboard)
app.command()(verify)
app.command()(alpha)


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 failed, 2 bad input, 3 refuted or not verified, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error is one line on standard error."""
    try:
        command = typer.main.get_command(app)
        result = command.main(arguments, prog_name="adp-bench", standalone_mode=False)
        if result == 130:  # newer typer turns Ctrl-C into this code and says nothing
            return _say(INTERRUPTED, 130)
        return result if isinstance(result, int) else 0
    except BadInput as error:
        return _say(error, 2)
    except RunFailed as error:
        return _say(error, 1)
    except NotVerified as error:
        return _say(error, 3)
    except (KeyboardInterrupt, typer.Abort):
        return _say(INTERRUPTED, 130)
    except OSError as error:  # a path that is too long, an unreadable file, a path that is not a folder
        where = f" {error.filename}" if error.filename else ""
        return _say(f"cannot use{where}: {error.strerror or error}", 2)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help: keep its line breaks
            typer.echo(str(error), err=True)
            return 2
        if hasattr(error, "format_message"):  # a usage error of the argument parser
            return _say(error.format_message(), 2)
        if place := place_of(error):
            return _say(f"{place}: {type(error).__name__}: {error}", 1)
        raise
    except BaseException as error:  # a user's file ends the program, or the reader closed the pipe
        if isinstance(error.__context__, BrokenPipeError):
            return 1
        return _say(f"your file stopped the program ({type(error).__name__}: {error}); remove the call that exits", 1)


def _say(message: object, code: int) -> int:
    line = " ".join(str(message).split())
    typer.echo(f"adp-bench: {visible(line)}", err=True)
    return code


if __name__ == "__main__":
    main()
