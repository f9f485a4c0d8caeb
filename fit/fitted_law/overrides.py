"""Overrides: what runs set in the config of their trainer, {field: value as Python source}.

The column `overrides` of a table has those of each run, "model.d_model=512 seed=1". law.json has those that all runs
share. It may set these FIELDS and no others in an emitted config. configs/joint_moe.py defines them for the trainer,
which fit does not import; tests/fit/fitted_law/test_trust.py checks that the two lists agree.
"""

import ast
import re
from typing import Annotated

from fit.fitted_law.bounds import Rule
from fit.messages.printable import printable
from fit.table.table import Table

FIELDS = frozenset(
    """
    seed n_tokens batch_tokens microbatch_tokens parametrization remat unroll
    model.d_model model.n_blocks model.n_heads model.n_kv_heads model.head_dim model.qk_norm model.tied_embeddings
    model.d_ff model.vocab_size model.n_experts model.top_k model.normalize_gates model.d_expert
    model.n_shared_experts model.n_dense_blocks model.scores model.balance model.capacity_factor model.group_tokens
    model.rope_base model.init_scale model.norm model.final_norm model.dtype model.attention
    loss.load_balance loss.router_z loss.logit_z
    data.path data.mixture data.validation_path data.validation_sets data.text_field data.tokenizer data.end_of_text
    data.fingerprint data.seq_len data.document_mask data.validation_tokens data.max_epochs data.on_bad_document
    optimizer.lr_law.constant optimizer.lr_law.n_active optimizer.lr_law.n_experts optimizer.lr_law.n_tokens
    optimizer.lr_law.batch_tokens optimizer.warmup_tokens optimizer.decay_fraction optimizer.name optimizer.b1
    optimizer.b2 optimizer.weight_decay optimizer.bias_rate optimizer.grad_clip optimizer.skip_above
    mup_base.d_model mup_base.n_blocks mup_base.head_dim
    mesh.expert mesh.model
    chip.flops chip.capacity chip.bandwidth chip.network
    predicted.loss predicted.low predicted.high predicted.share predicted.law predicted.n_active predicted.n_tokens
    log_every profile_steps checkpoint_every checkpoint_minutes keep_newest keep_every eval_every snapshot_every
    router_health wandb
    """.split()
)
DECAY_FRACTION = "optimizer.decay_fraction"
LONGEST_VALUE = 10_000  # letters of a field's value as Python source; longer ones are none that a person chose


def of_run(text: str) -> dict[str, str]:
    """The overrides of one run, "field=value field=value ..."; a value may hold spaces.

    A field begins the text or follows a space, so that a long word is read once and not from each of its letters.
    """
    fields = list(re.finditer(r"(?:^|\s)([\w.]+)=", text))
    ends = [field.start() for field in fields[1:]] + [len(text)]
    return {field[1]: printable(text[field.end() : end].strip()) for field, end in zip(fields, ends, strict=False)}


def of_runs(table: Table) -> list[dict[str, str]]:
    """The overrides of each run of a table; {} where it has none."""
    return [of_run(str(text)) for text in table.column_or("overrides", "")]


def fields_of(runs: list[dict[str, str]]) -> list[str]:
    """The fields that any of these runs overrides, in the order in which they come."""
    return list(dict.fromkeys(field for overrides in runs for field in overrides))


def is_literal(source: str) -> bool:
    """Whether `source` is text of a Python literal, which nothing could run, and that Python can write out again."""
    if len(source) > LONGEST_VALUE:
        return False
    try:
        value = ast.literal_eval(source)
        return bool(ast.literal_eval(repr(value)) == value)  # infinity and NaN are written as names
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False


def can_be_set(field: str, source: str) -> bool:
    """Whether a config has this field, and the source is a literal that it may hold."""
    if field not in FIELDS or not is_literal(source):
        return False
    if field == DECAY_FRACTION:
        value = ast.literal_eval(source)
        return isinstance(value, float) and 0 < value < 1
    return True


def _can_all_be_set(overrides: dict[str, str]) -> bool:
    return all(can_be_set(field, source) for field, source in overrides.items())


Overrides = Annotated[
    dict[str, str],
    Rule(
        _can_all_be_set,
        f"names of a config's fields, such as model.norm, each with a literal as text; {DECAY_FRACTION} with a number "
        "between 0 and 1",
    ),
]
