"""Whether a corpus has the tokens that a run asks for, checked before anything is trained or submitted. Without JAX.

Only whole rows of config.data.seq_len count; `tokens` is anything with a length, such as corpus.Tokens.
"""

import math

from jmoe.errors import UserError
from jmoe.text import mixture


def n_rows(tokens, seq_len: int) -> int:
    """Rows in `tokens`; a row's last target is the first input of the next one."""
    return max(0, len(tokens) - 1) // seq_len


def read(corpus, config, n_tokens: int) -> list[tuple[mixture.Part, int, int]]:
    """(source, tokens that a run of `n_tokens` reads of it, distinct training tokens of it) for each of the corpus."""
    seq_len = config.data.seq_len
    given = mixture.given(corpus.parts, n_tokens // seq_len)
    return [(part, n * seq_len, n_rows(part.corpus.train, seq_len) * seq_len) for part, n in zip(corpus.parts, given)]


def n_validation_tokens(corpus, config) -> int:
    """Held-out tokens that are evaluated: config.data.validation_tokens in whole rows, or all there are; of a mixture
    as many as leave each source its share."""
    seq_len = config.data.seq_len
    most = min(n_rows(p.corpus.validation, seq_len) * mixture.PERIOD // p.share for p in corpus.held_out)
    return min(most, max(1, config.data.validation_tokens // seq_len)) * seq_len


def check(corpus, config, schedule, segment) -> str:
    """Checks that each source suffices for all training up to the end of `segment`, and for an evaluation.

    A law counts fresh tokens: repeats are an error unless config.data.max_epochs permits them. Returns a warning,
    or "", about the held-out tokens; UserError names the tokens that the run asks for and those that the corpus has.
    """
    data, total = config.data, schedule.tokens_at(segment.stop)
    last = schedule.batch_at(segment.stop - 1)
    for part in corpus.parts:
        _check_row(part, part.corpus.train, data.seq_len, "training")
    for (part, asked, n_tokens), (_, before, _) in zip(read(corpus, config, total), read(corpus, config, total - last)):
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


def _of(part: mixture.Part) -> str:
    return f" of {part.name!r}" if part.name else ""


def _check_row(part: mixture.Part, tokens, seq_len: int, name: str) -> None:
    if not n_rows(tokens, seq_len):
        own = ", its own by config.data.validation_path," if name == "held-out" else ""
        raise UserError(
            f"the {name} text{_of(part)} has {len(tokens)} tokens, less than one row of config.data.seq_len={seq_len}: "
            f"give more text{own} or a shorter config.data.seq_len"
        )
