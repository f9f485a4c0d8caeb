"""The command that a user typed, with the flags that make it work."""

import shlex
from collections.abc import Collection, Mapping, Sequence

from fit.errors import TableError

MARKS = {"columns": ":", "units": ":", "set": "="}  # between name and value of flags with pairs
LISTS = ("where",)  # flags with several values


def with_flags(name: str, flags: Collection[str], arguments: Sequence[str], error: TableError) -> str:
    """The line that an error about a table ends with: the command with the flags that settle it.

    Args:
      name: the command.
      flags: those that the command has.
      arguments: what the user typed behind its name.
      error: the error.

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
      words: what the user typed.
      flag: its name.
      values: {name: value} of a flag with pairs, {value: ""} of one with several values, {"": value} of one with a
        single value.
    """
    start = f"--{flag}"
    pairs: dict[str, str] = {}
    others = []
    place = None
    i = 0
    while i < len(words):
        typed = None
        if words[i].startswith(f"{start}="):
            typed = words[i].removeprefix(f"{start}=")
        elif words[i] == start and i + 1 < len(words):
            i += 1
            typed = words[i]
        if typed is None:
            others.append(words[i])
        else:
            place = len(others)
            pairs = _pairs_of(flag, typed)
        i += 1
    pairs |= values
    mark = MARKS.get(flag, "")
    word = f"{start}=" + ",".join(f"{key}{mark}{value}" for key, value in pairs.items())
    if place is None:
        place = len(others)
    return [*others[:place], word, *others[place:]]


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
