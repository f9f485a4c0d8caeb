"""Foreign text (of a scheduler, a pod, a file of the workdir) made safe to print on a terminal."""

import re

# what a terminal obeys instead of showing: control characters, line separators, marks that change the direction of
# writing, and lone surrogates, which its encoding lacks
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with an escape as \x1b, a newline as \n, ...: it neither moves the cursor nor forges a line."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable_lines(text: str) -> str:
    """As `printable`, of a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))
