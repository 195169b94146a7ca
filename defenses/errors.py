"""The two ways a command can end badly; the command line turns them into exit codes."""


class BadInput(ValueError):
    """The user asked for something that cannot be done (exit code 2).

    The message is one line that names the thing and says what would be right.
    """


class RunFailed(RuntimeError):
    """A well-formed request failed while it ran (exit code 1): network, disk, numerics."""
