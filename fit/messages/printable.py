"""Text of somebody else's files, made safe for a terminal: it cannot move the cursor, colour or forge a line."""

import re

# control characters, line separators, marks that turn the direction of writing, and halves of pairs, which no
# terminal's encoding has
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_printable(text: str) -> bool:
    """Whether the text has no control characters, which a terminal would obey."""
    return CONTROL.search(text) is None


def printable(text: str) -> str:
    r"""The text with each control character escaped, such as \x1b for an escape."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable_lines(text: str) -> str:
    """As `printable`, of a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))
