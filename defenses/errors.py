"""The errors of a command: one class per exit code."""

from __future__ import annotations

import traceback

USER_FILE = "_adp_bench_file_"
"""Prefix of the module names of users' files."""


class BadInput(ValueError):
    """The request is invalid (exit code 2).

    The message is one line. It names the wrong value, its place and the remedy.
    """


class RunFailed(RuntimeError):
    """A well-formed request failed while it ran (exit code 1): network, disk, numerics."""


class NotVerified(RuntimeError):
    """Verification failed: a file or a result does not match its claim (exit code 3)."""


def first_line(error: Exception) -> str:
    """The first line of an error message; the type of the error if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def place_of(error: BaseException) -> str:
    """The line of a user's file that raised an error; empty if other code raised it."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(USER_FILE)
    ]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
