"""The error that a user's mistake raises."""

import re
from collections.abc import Mapping


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


# {flag: {name: value}}, such as {"columns": {"loss": "val_loss"}}; {flag: {value: ""}} of one with several values, such
# as {"where": {"loss=finite": ""}}; {flag: {"": value}} of one with a single value
Flags = Mapping[str, Mapping[str, str]]


class TableError(UserError):
    """All that keeps a table of runs from being read, and the flags that settle it.

    The command line prints the whole command with these flags; str() shows them as arguments of Python.
    """

    def __init__(self, sentence: str, flags: Flags, words: str = "this works") -> None:
        """Initialises the error.

        Args:
          sentence: what is wrong, with a line for each problem where there are several.
          flags: those that settle the problems; empty where none do.
          words: what stands before the command with these flags.
        """
        super().__init__(sentence, flags, words)

    @property
    def flags(self) -> Flags:
        """The flags that settle the problems."""
        return self.args[1]

    @property
    def words(self) -> str:
        """The words before the command with these flags."""
        return self.args[2]

    def __str__(self) -> str:
        text = super().__str__()
        if not self.flags:
            return text
        arguments = ", ".join(f"{name}={_as_argument(values)}" for name, values in self.flags.items())
        return f"{text}\n  {self.words}: {arguments}"


def _as_argument(values: Mapping[str, str]) -> object:
    """The values of a flag as the argument of a function."""
    if "" in values:
        return True if values[""] == "true" else repr(values[""])
    if not any(values.values()):
        return list(values)
    return dict(values)
