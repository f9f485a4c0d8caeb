"""Whether a corpus has the tokens that a run asks for, checked before anything is trained or submitted. Plain Python.

Only whole rows of config.data.seq_len count; `tokens` is anything with a length, such as corpus.Tokens.
"""

import math

from jmoe.errors import UserError


def n_rows(tokens, seq_len: int) -> int:
    """Rows in `tokens`; a row's last target is the first input of the next one."""
    return max(0, len(tokens) - 1) // seq_len


def n_training_tokens(corpus, config) -> int:
    """Distinct training tokens."""
    return n_rows(corpus.train, config.data.seq_len) * config.data.seq_len


def n_validation_tokens(corpus, config) -> int:
    """Held-out tokens that are evaluated: config.data.validation_tokens in whole rows, or all there are."""
    seq_len = config.data.seq_len
    return min(n_rows(corpus.validation, seq_len), max(1, config.data.validation_tokens // seq_len)) * seq_len


def check(corpus, config, schedule, segment) -> str:
    """Checks that the corpus suffices for all training up to the end of `segment`, and for an evaluation.

    A law counts fresh tokens: repeats are an error unless config.data.max_epochs permits them. Returns a warning,
    or "", about the held-out tokens; UserError names the tokens that the run asks for and those that the corpus has.
    """
    data, n_tokens, asked = config.data, n_training_tokens(corpus, config), schedule.tokens_at(segment.stop)
    _check_row(corpus.train, data.seq_len, "training")
    batch = schedule.batch_at(segment.stop - 1)
    if batch > n_tokens:
        raise UserError(
            f"the training text has {n_tokens:,} tokens in whole rows, less than one batch of {batch:,} in "
            "config.batch_tokens: give more text or smaller batches"
        )
    if asked > data.max_epochs * n_tokens:
        raise UserError(
            f"the run asks for {asked:,} training tokens and corpus {corpus.fingerprint} has {n_tokens:,}: "
            f"{asked / n_tokens:.4g} epochs, where config.data.max_epochs={data.max_epochs:g} permits "
            f"{data.max_epochs * n_tokens:,.0f}: give more text, a smaller budget in config.n_tokens, or permit "
            f"repeats by --config.data.max_epochs={math.ceil(asked / n_tokens)}"
        )
    return check_held_out(corpus, config)


def check_held_out(corpus, config) -> str:
    """`check` for the held-out text alone."""
    seq_len = config.data.seq_len
    _check_row(corpus.validation, seq_len, "held-out")
    return held_out_warning(n_rows(corpus.validation, seq_len) * seq_len, config.data)


def held_out_warning(n_tokens: int, data) -> str:
    """The warning where the `n_tokens` held out are fewer than `config.data` asks for, else ""."""
    if n_tokens >= data.validation_tokens // data.seq_len * data.seq_len:
        return ""
    return (
        f"WARNING: the held-out text has {n_tokens:,} tokens, fewer than config.data.validation_tokens="
        f"{data.validation_tokens:,}: the loss is measured on those"
    )


def _check_row(tokens, seq_len: int, name: str) -> None:
    if not n_rows(tokens, seq_len):
        own = ", its own by config.data.validation_path," if name == "held-out" else ""
        raise UserError(
            f"the {name} text has {len(tokens)} tokens, less than one row of config.data.seq_len={seq_len}: give more "
            f"text{own} or a shorter config.data.seq_len"
        )
