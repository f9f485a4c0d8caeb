"""Which rows of which text a run reads, and whether there are enough, checked before anything is trained. Without JAX.

Only whole rows of config.data.seq_len count. The weight of a source of config.data.mixture makes a whole number of each
PERIOD rows, and the same turns come again in the next PERIOD: so any PERIOD rows that follow each other hold exactly
that many of it. Within them a row goes to the source that lags its share most. A row's number alone says whose turn it
is, and how many rows of that source came before.
"""

import dataclasses
import functools
import hashlib
import math
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
def _given(shares: tuple[int, ...]) -> np.ndarray:
    """How many of the first n rows of a period each source gives, [PERIOD + 1, sources]."""
    given = np.zeros((PERIOD + 1, len(shares)), int)
    for n in range(1, PERIOD + 1):
        given[n] = given[n - 1]
        given[n, np.argmax(n * np.array(shares) - PERIOD * given[n])] += 1
    return given


def given(parts: tuple[Part, ...], n_rows: int) -> list[int]:
    """How many of the first `n_rows` rows each part gives."""
    shares = tuple(part.share for part in parts)
    periods, rest = divmod(n_rows, PERIOD)
    return (periods * np.array(shares) + _given(shares)[rest]).tolist()


def place(parts: tuple[Part, ...], row: int) -> tuple[int, int]:
    """(i, k): row `row` is the k-th row, from 0 on, that parts[i] gives."""
    before, after = given(parts, row), given(parts, row + 1)
    return next((i, k) for i, k in enumerate(before) if after[i] > k)


def n_rows(tokens, seq_len: int) -> int:
    """Rows in `tokens`, which have a length; a row's last target is the first input of the next one."""
    return max(0, len(tokens) - 1) // seq_len


def read(corpus, config, n_tokens: int) -> list[tuple[Part, int, int]]:
    """(source, tokens that a run of `n_tokens` reads of it, distinct training tokens of it) for each of the corpus."""
    seq_len = config.data.seq_len
    asked = zip(corpus.parts, given(corpus.parts, n_tokens // seq_len))
    return [(part, n * seq_len, n_rows(part.corpus.train, seq_len) * seq_len) for part, n in asked]


def n_validation_tokens(corpus, config) -> int:
    """Held-out tokens that are evaluated: config.data.validation_tokens in whole rows, or all there are; of a mixture
    as many as leave each source its share."""
    seq_len = config.data.seq_len
    most = min(n_rows(p.corpus.validation, seq_len) * PERIOD // p.share for p in corpus.held_out)
    return min(most, max(1, config.data.validation_tokens // seq_len)) * seq_len


def check(corpus, config, schedule, segment) -> str:
    """Checks that each source suffices for all training up to the end of `segment`, and for an evaluation.

    A law counts fresh tokens: repeats are an error unless config.data.max_epochs permits them. Returns a warning,
    or "", about the held-out tokens; UserError names the tokens that the run asks for and those that the corpus has.
    """
    data, total = config.data, schedule.tokens_at(segment.stop)
    last = schedule.batch_at(segment.stop - 1)
    for (part, asked, n_tokens), (_, before, _) in zip(read(corpus, config, total), read(corpus, config, total - last)):
        _check_row(part, part.corpus.train, data.seq_len, "training")
        if (batch := asked - before) > n_tokens:
            raise UserError(
                f"the training text{_of(part)} has {n_tokens:,} tokens in whole rows, less than one batch of {batch:,} "
                "in config.batch_tokens: give more text or smaller batches"
            )
    part, asked, n_tokens = max(read(corpus, config, total), key=lambda one: one[1] / one[2])
    if asked > data.max_epochs * n_tokens:
        weight = " or weight in config.data.mixture" if part.name else ""
        raise UserError(
            f"the run asks for {asked:,} training tokens{_of(part)} and corpus {part.corpus.fingerprint} has "
            f"{n_tokens:,}: {asked / n_tokens:.4g} epochs, where config.data.max_epochs={data.max_epochs:g} permits "
            f"{data.max_epochs * n_tokens:,.0f}: give more text, a smaller budget in config.n_tokens{weight}, or "
            f"permit repeats by --config.data.max_epochs={math.ceil(asked / n_tokens)}"
        )
    return check_held_out(corpus, config)


def check_held_out(corpus, config) -> str:
    """`check` for the held-out text alone."""
    for part in corpus.held_out:
        _check_row(part, part.corpus.validation, config.data.seq_len, "held-out")
    return held_out_warning(n_validation_tokens(corpus, config), config.data)


def held_out_warning(n_tokens: int, data) -> str:
    """The warning where the `n_tokens` held out are fewer than `config.data` asks for, else ""."""
    if n_tokens >= data.validation_tokens // data.seq_len * data.seq_len:
        return ""
    return (
        f"WARNING: the held-out text has {n_tokens:,} tokens, fewer than config.data.validation_tokens="
        f"{data.validation_tokens:,}: the loss is measured on those"
    )


def _of(part: Part) -> str:
    return f" of {part.name!r}" if part.name else ""


def _check_row(part: Part, tokens, seq_len: int, name: str) -> None:
    if not n_rows(tokens, seq_len):
        own = ", its own by config.data.validation_path," if name == "held-out" else ""
        raise UserError(
            f"the {name} text{_of(part)} has {len(tokens)} tokens, less than one row of config.data.seq_len={seq_len}: "
            f"give more text{own} or a shorter config.data.seq_len"
        )
