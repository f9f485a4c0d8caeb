"""The errors that end a command in one sentence; jmoe/cli.py gives each its exit code."""


class UserError(Exception):
    """A mistake that the user can mend. The message names the thing, its value and the values that are allowed."""


class Failure(Exception):
    """The run failed for a reason that one sentence explains, such as memory that ran out (exit code 1)."""


class Interrupted(Exception):
    """A signal asked for an orderly stop and the work is saved; `signum` gives the exit code 128 + signum."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


class Unavailable(Exception):
    """Waiting was in vain: an object store gave no answer for as long as files.Patience lasts, or another process kept
    the workdir; the message says which and why."""


UNAVAILABLE = 75  # exit code; sysexits.h calls it a temporary failure


class Damaged(Exception):
    """What was read is not what was written; the message is the reason."""
