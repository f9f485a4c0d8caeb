"""Which rows of which text a run reads, and whether there are enough; checked before anything is trained. Without JAX.

Only whole rows of config.data.seq_len count. The weight of a source of config.data.mixture gives it a whole number of
each PERIOD rows. The same order comes again in the next PERIOD, so any PERIOD consecutive rows hold exactly that many
of it. Within a period a row goes to the source that lags its share most. So the number of a row alone says which source
it comes from, and how many rows of that source came before.

Axis legend: P sources of the mixture.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sized
from fractions import Fraction

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from jmoe.errors import UserError
from jmoe.run.schedule import Schedule, Segment
from jmoe.text.training_text import PERIOD, Corpus, Mixture, Part, TrainingText


@dataclasses.dataclass(frozen=True)
class Reading:
    """The tokens of a source that a run reads, in whole rows."""

    part: Part
    n_read: int  # tokens that the run reads, repeats included
    n_distinct: int  # training tokens that the source has


def combine(weights: dict[str, float], sources: Mapping[str, Corpus], share_held_out: bool) -> Mixture:
    """Mixes sources by their weights.

    Args:
      weights: Weight by path.
      sources: Corpus by path.
      share_held_out: Whether all sources hold out the same text, which is then evaluated once. Otherwise the held-out
        texts are mixed as the training texts are.

    Raises:
      UserError: A weight is too small for a row in PERIOD, two sources are the same text, or their tokens differ.
    """
    shares_of_paths = zip(names([*weights]), weights, shares([*weights.values()]), strict=True)
    parts = tuple(Part(name, share, sources[path], path) for name, path, share in shares_of_paths)
    for part in parts:
        if not part.share:
            raise UserError(
                f"config.data.mixture: the weight {weights[part.path]:g} of {part.path!r} makes less than one row in "
                f"{PERIOD}: give it a larger one or leave it out"
            )
    path_by_text = {part.corpus.fingerprint: part.path for part in parts}
    for part in parts:
        same = path_by_text[part.corpus.fingerprint]
        if same != part.path:
            raise UserError(f"config.data.mixture: {part.path!r} and {same!r} are the same text: name it once")
    _check_tokenizers(parts)
    lines = "".join(f"{part.corpus.fingerprint} {part.share}\n" for part in parts)
    fingerprint = hashlib.sha256(f"mixture v1\n{lines}".encode()).hexdigest()[:16]
    held_out = (parts[0]._replace(share=PERIOD),) if share_held_out else parts
    return Mixture(fingerprint, parts, held_out)


def _check_tokenizers(parts: tuple[Part, ...]) -> None:
    """UserError where two sources were prepared by different tokenizers."""
    first, *others = parts
    tokenizer = first.corpus.manifest["tokenizer"]
    for part in others:
        other = part.corpus.manifest["tokenizer"]
        if tokenizer | {"name": ""} != other | {"name": ""}:  # a file may have another name elsewhere
            raise UserError(
                f"config.data.mixture: {first.path!r} and {part.path!r} were prepared by different tokenizers, "
                f"{tokenizer['name']} of {tokenizer['vocab_size']} tokens and {other['name']} of "
                f"{other['vocab_size']}, whose vocabularies begin with {tokenizer['sha256'][:8] or 'bytes'} and "
                f"{other['sha256'][:8] or 'bytes'}"
            )


def names(paths: list[str]) -> list[str]:
    """The names of the sources at these paths in results: the last parts of each, as few as tell them apart.

    /data/web and /data/code are "web" and "code"; web/*.jsonl and code/*.jsonl are as they are. A dataset of TFDS keeps
    its name.
    """
    parts_of_paths = [[path] if path.startswith("tfds:") else path.rstrip("/").split("/") for path in paths]
    shortest = []
    for i, parts in enumerate(parts_of_paths):
        others = parts_of_paths[:i] + parts_of_paths[i + 1 :]
        n = 1
        while n < len(parts) and (_is_pattern(parts[-n:]) or parts[-n:] in [other[-n:] for other in others]):
            n += 1
        shortest.append("/".join(parts[-n:]))
    return shortest


def _is_pattern(parts: list[str]) -> bool:
    """Whether each of these parts of a path has a wildcard, so that they make no name."""
    return all(any(character in part for character in "*?[") for part in parts)


def shares(weights: list[float]) -> list[int]:
    """Rows of each source in PERIOD rows: in proportion to the weights, rounded so that they sum to PERIOD."""
    total = sum(map(Fraction, weights))  # exact, so that every machine rounds alike
    exact_shares = [PERIOD * Fraction(weight) / total for weight in weights]
    rows = [int(share) for share in exact_shares]
    by_remainder = sorted(range(len(rows)), key=lambda i: rows[i] - exact_shares[i])
    for i in by_remainder[: PERIOD - sum(rows)]:
        rows[i] += 1
    return rows


@functools.cache
def _rows_within_period(shares: tuple[int, ...]) -> Int[np.ndarray, "1+PERIOD P"]:
    """How many of the first n rows of a period each source gives, for n from 0 to PERIOD."""
    n_given = np.zeros((PERIOD + 1, len(shares)), int)
    for n in range(1, PERIOD + 1):
        n_given[n] = n_given[n - 1]
        lag = n * np.array(shares) - PERIOD * n_given[n]
        n_given[n, np.argmax(lag)] += 1
    return n_given


def rows_by_part(parts: tuple[Part, ...], n_rows: int) -> list[int]:
    """How many of the first `n_rows` rows of the mixture each part gives."""
    shares = tuple(part.share for part in parts)
    n_periods, rest = divmod(n_rows, PERIOD)
    return (n_periods * np.array(shares) + _rows_within_period(shares)[rest]).tolist()


def locate_row(parts: tuple[Part, ...], row: int) -> tuple[int, int]:
    """(i, k): row `row` of the mixture is the k-th row, from 0 on, that parts[i] gives."""
    before = rows_by_part(parts, row)
    after = rows_by_part(parts, row + 1)
    return next((i, k) for i, k in enumerate(before) if after[i] > k)


def n_rows(tokens: Sized, seq_len: int) -> int:
    """Rows of `seq_len` in a flat array of tokens; a row's last target is the first input of the next one."""
    return max(0, len(tokens) - 1) // seq_len


def readings(corpus: TrainingText, config: ConfigDict, n_tokens: int) -> list[Reading]:
    """How much a run of `n_tokens` reads of each source of its corpus."""
    seq_len = config.data.seq_len
    rows = rows_by_part(corpus.parts, n_tokens // seq_len)
    return [
        Reading(part, n * seq_len, n_rows(part.corpus.train, seq_len) * seq_len)
        for part, n in zip(corpus.parts, rows, strict=True)
    ]


def n_validation_tokens(corpus: TrainingText, config: ConfigDict) -> int:
    """Held-out tokens that are evaluated: config.data.validation_tokens in whole rows, or all that there are.

    Of a mixture, as many as leave each source its share.
    """
    seq_len = config.data.seq_len
    n_available = min(n_rows(part.corpus.validation, seq_len) * PERIOD // part.share for part in corpus.held_out)
    return min(n_available, max(1, config.data.validation_tokens // seq_len)) * seq_len


def check(corpus: TrainingText, config: ConfigDict, schedule: Schedule, segment: Segment) -> str:
    """Checks that each source suffices for all training up to the end of `segment`, and for an evaluation.

    A law counts fresh tokens: repeats are an error unless config.data.max_epochs permits them.

    Returns:
      A warning about the held-out tokens, or "".

    Raises:
      UserError: There is too little text; the error names the tokens that the run reads and those that there are.
    """
    data = config.data
    n_tokens = schedule.tokens_at(segment.stop)
    n_before_last = n_tokens - schedule.batch_at(segment.stop - 1)
    readings_at_end = readings(corpus, config, n_tokens)
    for reading, earlier in zip(readings_at_end, readings(corpus, config, n_before_last), strict=True):
        part = reading.part
        _check_row(part, part.corpus.train, data.seq_len, "training")
        batch = reading.n_read - earlier.n_read
        if batch > reading.n_distinct:
            raise UserError(
                f"the training text{_of_part(part)} has {reading.n_distinct:,} tokens in whole rows, less than one "
                f"batch of {batch:,} in config.batch_tokens: give more text or smaller batches"
            )
    scarcest = max(readings_at_end, key=lambda reading: reading.n_read / reading.n_distinct)
    if scarcest.n_read > data.max_epochs * scarcest.n_distinct:
        raise UserError(_too_many_epochs(scarcest, data))
    return check_held_out(corpus, config)


def _too_many_epochs(reading: Reading, data: ConfigDict) -> str:
    """The error for a source that a run reads more often than config.data.max_epochs permits."""
    part = reading.part
    n_epochs = reading.n_read / reading.n_distinct
    weight = " or weight in config.data.mixture" if part.path else ""
    return (
        f"the run asks for {reading.n_read:,} training tokens{_of_part(part)} and corpus {part.corpus.fingerprint} has "
        f"{reading.n_distinct:,}: {n_epochs:.4g} epochs, where config.data.max_epochs={data.max_epochs:g} permits "
        f"{data.max_epochs * reading.n_distinct:,.0f}: give more text, a smaller budget in config.n_tokens{weight}, or "
        f"permit repeats by --config.data.max_epochs={math.ceil(n_epochs)}"
    )


def check_held_out(corpus: TrainingText, config: ConfigDict) -> str:
    """`check` for the held-out text alone: returns a warning or "".

    Raises:
      UserError: A source has less than a row of held-out text.
    """
    for part in corpus.held_out:
        _check_row(part, part.corpus.validation, config.data.seq_len, "held-out")
    return held_out_warning(n_validation_tokens(corpus, config), config.data)


def held_out_warning(n_tokens: int, data: ConfigDict) -> str:
    """The warning where the `n_tokens` held out are fewer than `config.data` asks for, else ""."""
    if n_tokens >= data.validation_tokens // data.seq_len * data.seq_len:
        return ""
    return (
        f"WARNING: the held-out text has {n_tokens:,} tokens, fewer than config.data.validation_tokens="
        f"{data.validation_tokens:,}: the loss is measured on those"
    )


def _of_part(part: Part) -> str:
    return f" of {part.path!r}" if part.path else ""


def _check_row(part: Part, tokens: Sized, seq_len: int, kind: str) -> None:
    """UserError if `tokens`, the training or held-out text of a source, are too few for a row."""
    if n_rows(tokens, seq_len):
        return
    separate = ", its own by config.data.validation_path," if kind == "held-out" else ""
    raise UserError(
        f"the {kind} text{_of_part(part)} has {len(tokens)} tokens, less than one row of config.data.seq_len="
        f"{seq_len}: give more text{separate} or a shorter config.data.seq_len"
    )
