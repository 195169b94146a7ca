"""The ways a command can end badly; the command line turns them into exit codes."""

from __future__ import annotations

import traceback

USER_FILE = "_adp_bench_file_"
"""How the modules begin that are made from files of the user's."""


class BadInput(ValueError):
    """The user asked for something that cannot be done (exit code 2).

    The message is one line that names the thing and says what would be right.
    """


class RunFailed(RuntimeError):
    """A well-formed request failed while it ran (exit code 1): network, disk, numerics."""


class NotVerified(RuntimeError):
    """What was to be verified is not as it says (exit code 3)."""


def first_line(error: Exception) -> str:
    """The first line of an error, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def place_of(error: BaseException) -> str:
    """The line in a file of the user's where an error came from; empty where it came from elsewhere."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(USER_FILE)
    ]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
