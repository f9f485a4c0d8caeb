"""The error that a user's mistake raises."""

import re


class UserError(Exception):
    """A user's mistake, in one sentence. The command line prints the sentence and exits with 2.

    The sentence names a value as its flag: `--flops=-1: expected ...`. str() of the error, which is what Python shows,
    names it as the argument: `flops=-1: expected ...`.
    """

    @property
    def sentence(self) -> str:
        """The sentence as the command line prints it."""
        return str(self.args[0])

    def __str__(self) -> str:
        return re.sub(r"(?<![\w-])--(?=[a-z])", "", self.sentence)
