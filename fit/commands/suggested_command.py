"""The command that a user typed, with the flags that make it work."""

import shlex
from collections.abc import Collection, Mapping, Sequence

from fit.errors import TableError

MARKS = {"columns": ":", "units": ":", "set": "="}  # between name and value of flags with pairs
LISTS = ("where",)  # flags with several values


def with_flags(name: str, flags: Collection[str], arguments: Sequence[str], error: TableError) -> str:
    """The line that an error about a table ends with: the command with the flags that settle it.

    Args:
      name: The command.
      flags: Those that the command has.
      arguments: What the user typed behind its name.
      error: The error.

    Returns:
      The line with a line break before it; "" where there are no such flags, or the command lacks one of them.
    """
    if not error.flags or not set(error.flags) <= set(flags):
        return ""
    words = list(arguments)
    for flag, values in error.flags.items():
        words = _merged(words, flag, values)
    return f"\n  {error.words}: {shlex.join(['python', '-m', 'fit', name, *words])}"


def _merged(words: Sequence[str], flag: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command with these values of a flag, beside those that it has.

    Args:
      words: What the user typed.
      flag: Its name.
      values: {name: value} of a flag with pairs, {value: ""} of one with several values, {"": value} of one with a
        single value.
    """
    start = f"--{flag}="
    pairs: dict[str, str] = {}
    others = []
    place = None  # among the others, of the flag where it was typed last
    for word in with_equals(words, {flag}):
        if word.startswith(start):
            place = len(others)
            pairs = _pairs_of(flag, word.removeprefix(start))
        else:
            others.append(word)
    pairs |= values
    mark = MARKS.get(flag, "")
    word = start + ",".join(f"{key}{mark}{value}" for key, value in pairs.items())
    if place is None:
        place = len(others)
    return [*others[:place], word, *others[place:]]


def with_equals(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """The words of a command, in which `--name value` of one of these flags is --name=value."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        if before.startswith("--") and before.removeprefix("--") in flags and not word.startswith("--"):
            joined[-1] = f"{before}={word}"
        else:
            joined.append(word)
    return joined


def _pairs_of(flag: str, typed: str) -> dict[str, str]:
    """The values of a flag as the user typed them, for _merged."""
    if flag in LISTS:
        return {text.strip(): "" for text in typed.split(",")}
    if flag not in MARKS:
        return {"": typed}
    pairs = {}
    for text in typed.split(","):
        key, _, value = text.partition(MARKS[flag])
        pairs[key.strip()] = value.strip()
    return pairs
