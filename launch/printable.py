"""Text of others (a scheduler, a pod, a file of the workdir) for a line of ours."""

import re

# what a terminal obeys instead of showing it: control characters, line separators, marks that turn the direction of
# writing, and halves of pairs, which its encoding lacks
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with an escape as \x1b, a newline as \n, ...: it neither moves the cursor nor forges a line."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
