"""The two ways a command can end badly; the command line turns them into exit codes."""


class BadInput(ValueError):
    """The user asked for something that cannot be done (exit code 2).

    The message is one line that names the thing and says what would be right.
    """


class RunFailed(RuntimeError):
    """A well-formed request failed while it ran (exit code 1): network, disk, numerics."""


def first_line(error: Exception) -> str:
    """The first line of an error, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
