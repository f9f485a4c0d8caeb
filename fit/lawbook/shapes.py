"""How the models of a table of runs are built: the ratios of heads, experts and ends that a plan's models have too.

A table names a field of the trainer's config.model where some of its runs differ from the paper's recipe: in a column,
or in the column overrides.

Axes: n runs.
"""

import collections
import re

import numpy as np

from fit.aliases import Array, Json
from fit.data.table import Table
from fit.errors import UserError
from fit.shape.architecture import ROUNDED, Architecture

OFF = 0.02  # counts further off than this share are reported
# how the paper's models are built
NEUTRAL = dict(kv_share=1, attention=1, ff=3, tied=False, split=1, top_k=1, shared=0, n_dense=0, head_dim=0)
# how each follows from the trainer's fields
NAMES = dict(kv_share="n_kv_heads / n_heads", attention="n_heads head_dim / d_model", ff="d_ff / d_model")
NAMES |= dict(tied="tied_embeddings", split="d_ff / d_expert", shared="n_shared_experts", n_dense="n_dense_blocks")
# field: its default, where a table has no value or 0, from the columns read so far
FIELDS = dict(
    n_heads=lambda c: c["n_blocks"],
    n_kv_heads=lambda c: c["n_heads"],
    head_dim=lambda c: c["d_model"] / c["n_heads"],
    d_ff=lambda c: 3 * c["d_model"],
    d_expert=lambda c: c["d_ff"],
    top_k=lambda c: 1.0,
    n_shared_experts=lambda c: 0.0,
    n_dense_blocks=lambda c: 0.0,
)


def held(table: Table) -> list[dict[str, str]]:
    """[{field: value as text}] of config.model in the column overrides of each run; {} where there is none."""
    texts = table.columns.get("overrides") or [""] * len(table)
    return [dict(re.findall(r"(?:^| )model\.(\w+)=(\S+)", str(text))) for text in texts]


def _columns(table: Table) -> dict[str, Array] | None:
    """{name: float64 [n]} of d_model, n_blocks, n_experts, n_active and FIELDS, and tied; None where the table lacks
    the first or a value is no number."""
    overrides, read = held(table), {}
    try:
        for name in ("d_model", "n_blocks", "n_experts", "n_active"):
            if name not in table:
                return None
            read[name] = table.numbers(name, (1, 1e18))
        for name, default in FIELDS.items():
            texts = table.columns.get(name) or [row.get(name) for row in overrides]
            values = np.array([float(v or 0) for v in texts])
            read[name] = np.where(values > 0, values, default(read))
    except (UserError, ValueError):
        return None
    texts = table.columns.get("tied_embeddings") or [row.get("tied_embeddings") for row in overrides]
    return read | dict(tied=np.array([str(v).lower() == "true" for v in texts], float))


def of_table(
    table: Table, vocab_size: int | None, width_per_block: int | None, differing: dict[str, list]
) -> tuple[Json | None, float | None]:
    """(fields of an Architecture, top_k in place of used, or None where the models are the paper's; the error of its
    count of the runs' n_active as a share, or None where there is none). Where the runs differ in a field, the value
    that most of them have is taken, else the median, and the field's values go to `differing`."""
    c = _columns(table)
    if c is None or not vocab_size or not width_per_block:
        return None, None
    mixtures = c["n_experts"] > 1
    several = {}

    def common(name: str, values: Array) -> float:
        if not len(values):
            return NEUTRAL[name]
        values = np.round(values, 6)
        if values.max() > (1 + ROUNDED) * values.min():
            several[name] = np.unique(values).tolist()
        value = majority(values)
        return float(np.percentile(values, 50, method="lower")) if value is None else value

    every = dict(kv_share=c["n_kv_heads"] / c["n_heads"], attention=c["n_heads"] * c["head_dim"] / c["d_model"])
    every |= dict(ff=c["d_ff"] / c["d_model"], tied=c["tied"])
    own = dict(split=c["d_ff"] / c["d_expert"], top_k=c["top_k"])
    own |= dict(shared=c["n_shared_experts"], n_dense=c["n_dense_blocks"])
    found = {name: common(name, values) for name, values in every.items()}
    found |= {name: common(name, values[mixtures]) for name, values in own.items()}
    head_dim = majority(c["head_dim"])
    found["head_dim"] = 0 if head_dim in (None, width_per_block) else head_dim
    integers = {name: int(found[name]) for name in ("top_k", "shared", "n_dense", "head_dim")}
    found |= integers | dict(tied=bool(found["tied"]))
    differing |= several
    counted = mixture_of(found, vocab_size, width_per_block).n_active(c["d_model"], c["n_experts"], c["n_blocks"])
    off = float(np.median(np.abs(counted / c["n_active"] - 1)))
    return (found if several or found != NEUTRAL else None), (off if off > OFF else None)


def majority(values: Array) -> float | None:
    """The value that more than half of them are; None where there is none."""
    value, count = collections.Counter(values.tolist()).most_common(1)[0]
    return value if 2 * count > len(values) else None


def words_of(found: Json) -> str:
    """The entries that are not the paper's: "n_kv_heads / n_heads 0.5, top_k 2"."""
    other = (f"{NAMES.get(name, name)} {value:.4g}" for name, value in found.items() if value != NEUTRAL[name])
    return ", ".join(other) or "in part"


def mixture_of(found: Json, vocab_size: int, width_per_block: int, final_norm: bool = False) -> Architecture:
    """The Architecture of what of_table found."""
    fields = {name: value for name, value in found.items() if name != "top_k"}
    used = (found["top_k"] + found["shared"]) / found["split"]
    return Architecture(vocab_size, width_per_block, final_norm, used=used, trained=True, **fields)
