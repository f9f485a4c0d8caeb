"""The errors that end in one sentence, and what their exit codes are (jmoe/cli.py)."""


class UserError(Exception):
    """Something only the user can mend: the message says what, where, the value found and the values allowed."""


class Failure(Exception):
    """A failure that one sentence explains, and that another try may not meet: the exit code is 1."""


class Interrupted(Exception):
    """A signal asked for an orderly stop and the work is saved; `signum` gives the exit code 128 + signum."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


class Unavailable(Exception):
    """Waited for in vain: an object store that gave no answer for as long as storage.Patience lasts, or a workdir whose
    owner works on; the message says which and why."""


UNAVAILABLE = 75  # exit code; sysexits.h calls it a temporary failure


class Damaged(Exception):
    """What was written and read is not the same; the message is the reason."""
