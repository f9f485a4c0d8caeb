"""Text by weights: the sources of config.data.mixture, and which row of which source is row r of a run.

A source's weight makes a whole number of each PERIOD rows, and the same turns come again in the next PERIOD: so any
PERIOD rows that follow each other hold exactly that many of it. Within them a row goes to the source that lags its
share most. A row's number alone says whose turn it is, and how many rows of that source came before.
"""

import dataclasses
import functools
import hashlib
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from jmoe.errors import UserError

PERIOD = 1000  # rows


class Part(NamedTuple):
    """A source: its path in config.data.mixture, "" for a corpus of one; how many of PERIOD rows it gives; its text."""

    name: str
    share: int
    corpus: Any  # corpus.Corpus, which imports this module


@dataclasses.dataclass(frozen=True)
class Mixture:
    """What `corpus.load` makes of config.data.mixture. `held_out`: the sources of the text that is evaluated."""

    fingerprint: str
    parts: tuple[Part, ...]
    held_out: tuple[Part, ...]


def combine(weights: dict[str, float], sources: dict[str, Any], held_out_alike: bool) -> Mixture:
    """The mixture of `sources`, {path: Corpus}, by `weights`, {path: weight}. `held_out_alike`: all hold
    out the same text, and it is taken once; else the held-out texts are mixed as the training texts are.

    UserError where a weight is too small for a row in PERIOD, two sources are the same text, or their tokens differ.
    """
    parts = tuple(Part(path, share, sources[path]) for path, share in zip(weights, shares([*weights.values()])))
    first, *others = parts
    for part in parts:
        if not part.share:
            raise UserError(
                f"config.data.mixture: the weight {weights[part.name]:g} of {part.name!r} makes less than one row in "
                f"{PERIOD}: give it a larger one or leave it out"
            )
    by_text = {part.corpus.fingerprint: part.name for part in parts}
    for part in parts:
        if (same := by_text[part.corpus.fingerprint]) != part.name:
            raise UserError(f"config.data.mixture: {part.name!r} and {same!r} are the same text: name it once")
    for part in others:
        one, other = (p.corpus.manifest["tokenizer"] for p in (first, part))
        if one | {"name": ""} != other | {"name": ""}:  # a file may have another name elsewhere
            raise UserError(
                f"config.data.mixture: {first.name!r} and {part.name!r} were prepared by different tokenizers, "
                f"{one['name']} of {one['vocab_size']} tokens and {other['name']} of {other['vocab_size']}, whose "
                f"vocabularies begin with {one['sha256'][:8] or 'bytes'} and {other['sha256'][:8] or 'bytes'}"
            )
    lines = "".join(f"{part.corpus.fingerprint} {part.share}\n" for part in parts)
    fingerprint = hashlib.sha256(f"mixture v1\n{lines}".encode()).hexdigest()[:16]
    return Mixture(fingerprint, parts, (first._replace(share=PERIOD),) if held_out_alike else parts)


def shares(weights: list[float]) -> list[int]:
    """Rows of each source in PERIOD rows: in proportion to the weights, rounded so that they sum to PERIOD."""
    total = sum(map(Fraction, weights))  # exact, so that every machine rounds alike
    wanted = [PERIOD * Fraction(weight) / total for weight in weights]
    rows = [int(x) for x in wanted]
    for i in sorted(range(len(rows)), key=lambda i: rows[i] - wanted[i])[: PERIOD - sum(rows)]:
        rows[i] += 1
    return rows


@functools.cache
def _turns(shares: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Whose turn each row of a period is, and how many rows of that source come before it; both [PERIOD]."""
    turns, before, given = np.zeros(PERIOD, int), np.zeros(PERIOD, int), np.zeros(len(shares), int)
    for row in range(PERIOD):
        turns[row] = i = np.argmax((row + 1) * np.array(shares) - PERIOD * given)
        before[row] = given[i]
        given[i] += 1
    return turns, before


def place(parts: tuple[Part, ...], row: int) -> tuple[int, int]:
    """(i, k): row `row` is the k-th row, from 0 on, that parts[i] gives."""
    turns, before = _turns(tuple(part.share for part in parts))
    periods, rest = divmod(row, PERIOD)
    i = int(turns[rest])
    return i, periods * parts[i].share + int(before[rest])


def given(parts: tuple[Part, ...], n_rows: int) -> list[int]:
    """How many of the first `n_rows` rows each part gives."""
    turns, _ = _turns(tuple(part.share for part in parts))
    periods, rest = divmod(n_rows, PERIOD)
    extra = np.bincount(turns[:rest], minlength=len(parts)).tolist()
    return [periods * part.share + more for part, more in zip(parts, extra)]
