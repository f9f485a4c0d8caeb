"""Makes foreign text (of a scheduler, a pod, a file of the workdir) safe to print on a terminal."""

import re

# characters that a terminal obeys instead of showing: control characters, line separators, marks that change the
# direction of writing, and lone surrogates, which its encoding lacks
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with control characters escaped, such as \x1b and \n: it cannot move the cursor or forge a line."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable_lines(text: str) -> str:
    """As `printable`, of a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_output(text: str) -> str:
    """As `printable`, of what a program printed: lines and tabs stay."""
    parts = re.split("([\n\t])", text)
    return "".join(part if part in ("\n", "\t") else printable(part) for part in parts)
