"""Lines of a command's output, none wider than WIDTH: the answer first, tables on demand."""

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 120  # characters of a line


def wrapped(lines: Iterable[str]) -> Iterator[str]:
    """The lines, wrapped at WIDTH. Continuation lines are indented further. A command continues after a backslash."""
    for line in lines:
        if len(line) <= WIDTH:
            yield line
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        command = line.lstrip().startswith("python ")
        width = WIDTH - 2 if command else WIDTH
        parts = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        yield (" \\\n" if command else "\n").join(parts)


def text(lines: Iterable[str]) -> str:
    """The lines as one text, wrapped."""
    return "\n".join(wrapped(lines))


def with_details(answer: Iterable[str], details: Iterable[str]) -> str:
    """The text of a command with --verbose: its answer, then every further table and sentence, wrapped.

    Args:
      answer: Lines of the answer.
      details: All other lines; those of the answer are left out.
    """
    answer = list(answer)
    more = [line for line in details if not line or line not in answer]
    return text([*answer, "", *more])
