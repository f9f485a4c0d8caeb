"""The answer of a command: lines of a label, a value and details, and their renderers.

The terminal, HTML pages and notebooks show the same lines. In a terminal no line is wider than WIDTH.
"""

import dataclasses
import html as html_lib
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from fit.messages.printable import printable
from fit.messages.units import say

WIDTH = 120  # characters of a line
WARNING = "warning"  # label of a finding


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of an answer.

    Attributes:
      label: What it is about, such as "Price"; "" for none.
      value: In a sentence.
      detail: Lines below it as they are: rows of a table, or a command.
    """

    label: str
    value: str = ""
    detail: tuple[str, ...] = ()

    @classmethod
    def of(cls, label: str, template: str, /, **values: Any) -> "Line":
        """A line without detail, whose value is a template of units.say, filled in."""
        return cls(label, say(template, **values))

    def __str__(self) -> str:
        parts = [part for part in (self.label, self.value) if part]
        head = [": ".join(parts)] if parts or not self.detail else []
        return "\n".join([*head, *self.detail])


BLANK = Line("")  # between parts of an answer


def rows(detail: Iterable[str]) -> Line:
    """A table, or other lines without a head."""
    return Line("", detail=tuple(detail))


def warnings(findings: Iterable[object]) -> list[Line]:
    """A line for each finding."""
    return [Line(WARNING, printable(str(finding))) for finding in findings]


def joined(parts: Iterable[list[Line]]) -> Iterator[Line]:
    """The lines of several parts, with a blank one between them. A part without lines is left out."""
    filled = [part for part in parts if part]
    for i, part in enumerate(filled):
        if i:
            yield BLANK
        yield from part


def with_details(answer: Iterable[Line], details: Iterable[Line]) -> Iterator[Line]:
    """The lines of a command with --verbose: its answer, then all details that are not among its lines."""
    answer = list(answer)
    yield from [*answer, BLANK]
    for line in details:
        if line == BLANK or line not in answer:
            yield line


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


def text(lines: Iterable[Line]) -> str:
    """The lines for a terminal."""
    return "\n".join(wrapped(row for line in lines for row in str(line).split("\n")))


def html(lines: Iterable[Line]) -> Iterator[str]:
    """The lines for a page: labels are bold, details keep their columns."""
    for line in lines:
        value = html_lib.escape(line.value)
        if line.label == WARNING:
            yield f'<ul class="warnings"><li>{value}</li></ul>'
        elif line.label:
            yield f"<p><b>{html_lib.escape(line.label)}</b>: {value}</p>"
        elif value:
            yield f"<p>{value}</p>"
        if line.detail:
            yield f"<pre>{html_lib.escape(textwrap.dedent(chr(10).join(line.detail)))}</pre>"
