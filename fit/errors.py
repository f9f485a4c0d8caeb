"""What a user did wrong."""

import re


class UserError(Exception):
    """A mistake in what the user gave, in one sentence; the command line prints it and exits with 2.

    The sentence names a value as its flag, `--flops=-1: expected ...`; str() of the error, which is what Python shows,
    names it as the argument: `flops=-1: expected ...`.
    """

    @property
    def sentence(self) -> str:
        """As the command line says it."""
        return str(self.args[0])

    def __str__(self) -> str:
        return re.sub(r"(?<![\w-])--(?=[a-z])", "", self.sentence)
