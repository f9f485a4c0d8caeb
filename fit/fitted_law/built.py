"""How the models of a table of runs are built: the entries `architecture`, `shares` and `assumed` that models.py lists,
from the columns of shapes, the overrides, or top_k, n_total and the like.

Axes: n runs.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from fit.aliases import Array, Json
from fit.data.table import Table
from fit.errors import UserError
from fit.fitted_law import totals
from fit.shape.architecture import ROUNDED, Architecture

OFF = 0.02  # counts further off than this share are reported
SMALLEST_VOCABULARY = 64
OFF_TOTAL = 0.1  # ratios of n_total to n_active: those of whole models, whose embedding may not be known
_OF_SHAPE = ("kv_share", "attention", "ff", "tied", "n_dense", "head_dim")  # entries that dense models have too
# how the paper's models are built
NEUTRAL: Json = dict(kv_share=1, attention=1, ff=3, tied=False, split=1, top_k=1, shared=0, n_dense=0, head_dim=0)
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


def positive_numbers(table: Table, name: str) -> Array | None:
    """A column as numbers, None where it is missing or not all positive numbers: no law needs it."""
    try:
        return table.numbers(name, (1e-12, 1e18)) if name in table.columns else None
    except UserError:
        return None


def width_per_block_of(table: Table) -> int | None:
    """d_model / n_blocks as most runs have it, where it is a whole number."""
    d_model, n_blocks = positive_numbers(table, "d_model"), positive_numbers(table, "n_blocks")
    if d_model is None or n_blocks is None:
        return None
    value = majority(d_model / n_blocks) or 0
    return int(value) if value >= 1 and value == int(value) else None


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


def architecture_of(
    table: Table, vocab_size: int | None, width_per_block: int | None, differing: dict[str, list]
) -> Json:
    """architecture, miscounted, shares and assumed, where there are any. Where the runs differ in a field, the value
    that most of them have is taken, else the median, and the field's values go to `differing`."""
    found, several, assumed = dict(NEUTRAL), {}, []
    out: Json = {}
    c, whole = _columns(table), bool(vocab_size and width_per_block)
    if c is not None:
        _ratios(c, whole, width_per_block, found, several)
        if width_per_block and "vocab_size" not in table.columns:
            vocab_size = _vocabulary(c, found, width_per_block)
            out["vocab_size"], whole = vocab_size, vocab_size is not None
    elif loose := _loose(table, several):
        found |= loose
    if c is not None and whole:
        built = mixture_of(found, vocab_size or 1, width_per_block or 1)
        counted = built.n_active(c["d_model"], c["n_experts"], c["n_blocks"])
        off = float(np.median(np.abs(counted / c["n_active"] - 1)))
        if off > OFF:
            out["miscounted"] = off
    if mixtures := _mixtures(table):
        out |= _with_totals(table, mixtures, c, found, totals.assumed_shape(vocab_size, width_per_block), assumed)
    differing |= several
    if several or found != NEUTRAL:
        out["architecture"] = found
    if assumed:
        out["assumed"] = assumed
    return out


def _ratios(
    c: Mapping[str, Array], whole: bool, width_per_block: int | None, found: Json, several: dict[str, list]
) -> None:
    """The entries of `found` that follow from the columns of shapes, and of several values all of these."""
    ratios = dict(kv_share=c["n_kv_heads"] / c["n_heads"], attention=c["n_heads"] * c["head_dim"] / c["d_model"])
    ratios |= dict(ff=c["d_ff"] / c["d_model"], tied=c["tied"])
    of_mixtures = dict(split=c["d_ff"] / c["d_expert"], top_k=c["top_k"])
    of_mixtures |= dict(shared=c["n_shared_experts"], n_dense=c["n_dense_blocks"])
    ratios |= {name: values[c["n_experts"] > 1] for name, values in of_mixtures.items()}
    for name, values in ratios.items():
        if len(values):
            values = np.round(values, 6)
            if values.max() > (1 + ROUNDED) * values.min():
                several[name] = np.unique(values).tolist()
            value = majority(values)
            found[name] = float(np.percentile(values, 50, method="lower")) if value is None else value
    head_dim = majority(c["head_dim"]) if whole else None  # the width per block, where nothing is known of heads
    found["head_dim"] = 0 if head_dim in (None, width_per_block) else head_dim
    integers = {name: int(found[name]) for name in ("top_k", "shared", "n_dense", "head_dim")}
    found |= integers | dict(tied=bool(found["tied"]))


def _vocabulary(c: Mapping[str, Array], found: Json, width_per_block: int) -> int | None:
    """The size of the vocabulary, where all runs' n_active leave the same for embedding and head."""
    blocks = mixture_of(found, 0, width_per_block).n_active(c["d_model"], c["n_experts"], c["n_blocks"])
    sizes = (c["n_active"] - blocks) / c["d_model"] / (1 if found["tied"] else 2)
    size = round(float(np.median(sizes)))
    return size if size >= SMALLEST_VOCABULARY and np.abs(sizes - size).max() < 1 else None


def _loose(table: Table, several: dict[str, list]) -> Json:
    """{top_k, shared, split} of the mixtures of a table without columns of shapes, as far as it has their columns."""
    experts, found = positive_numbers(table, "n_experts"), {}
    if experts is None:
        return found
    for name, column in dict(top_k="top_k", shared="n_shared_experts", split="granularity").items():
        values = _column_or_none(table, column)
        if values is None or not (experts > 1).any():
            continue
        values = values[experts > 1]
        if len(np.unique(values)) > 1:
            several[name] = np.unique(values).tolist()
        value = majority(values)
        found[name] = float(np.percentile(values, 50, method="lower")) if value is None else value
    return found | {name: int(found[name]) for name in ("top_k", "shared") if name in found}


def _column_or_none(table: Table, name: str) -> Array | None:
    """A column as numbers from 0 up, None where it is missing or has other values."""
    try:
        return table.numbers(name, (0, 1e18)) if name in table.columns else None
    except UserError:
        return None


def _mixtures(table: Table) -> tuple[Array, Array, Array | None] | None:
    """(n_active, n_experts, n_total or None) of the mixtures of a table; None where it has none."""
    n_active, n_experts = positive_numbers(table, "n_active"), positive_numbers(table, "n_experts")
    if n_active is None or n_experts is None or not (mixed := n_experts > 1).any():
        return None
    n_total = positive_numbers(table, "n_total")
    return n_active[mixed], n_experts[mixed], None if n_total is None else n_total[mixed]


def _with_totals(
    table: Table,
    mixtures: tuple[Array, Array, Array | None],
    c: Mapping[str, Array] | None,
    found: Json,
    shape: Architecture,
    assumed: list[str],
) -> Json:
    """Completes the entries of `found` for mixtures by n_total, or by what is usual, and says so in `assumed`; returns
    `shares` where the widths of experts change with the size. shape: the Architecture with the size of the vocabulary
    and the width per block that are known, else the paper's."""
    n_active, n_experts, n_total = mixtures
    names = dict(table.columns) | {name: None for row in held(table) for name in row}
    says_top_k = "top_k" in names
    says_width = bool({"d_expert", "granularity"} & set(names)) and (c is not None or "granularity" in names)
    if "d_expert" in names and not says_width:
        assumed.append("the column d_expert is not used: without d_model it does not say how wide experts are")
    built = dataclasses.replace(shape, **{name: found[name] for name in _OF_SHAPE})
    if n_total is None or (n_total <= n_active).all():
        if not says_top_k and not says_width and c is None:
            assumed.append(
                "the table has neither top_k nor n_total: a token is taken to use 1 of the experts, each as wide as a "
                "dense layer; give these columns, or --used and --granularity to a plan"
            )
        elif c is None and says_top_k != says_width:
            _as_wide_as_dense(found, says_top_k, assumed)
        return {}
    off = _off(found, shape, mixtures)
    if c is not None and off <= OFF_TOTAL:  # the shapes say it all
        return {}
    if not says_top_k:
        found["top_k"] = totals.likely_top_k(built, n_active, n_experts, n_total, found["shared"])
        assumed.append(
            f"the table does not say top_k: by its n_total a token is taken to use {found['top_k']} of the experts"
        )
    runs = totals.Mixtures(n_active, n_experts, n_total, found["top_k"], found["shared"])
    if says_width and says_top_k and c is not None:
        assumed.append(
            f"by the other columns n_total over n_active would be {off:.0%} off the table's: they do not say all of "
            "how the mixtures are built, and a plan's may be others"
        )
        return {}
    larger = n_active >= np.median(n_active)  # nearer to what is planned
    split = totals.split_of(built, runs.part(larger))
    if split is None:
        assumed.append(
            f"the column n_total is not used: no experts of which a token uses {runs.top_k + runs.shared} of "
            f"{n_experts.max():g} make up {np.median(runs.ratio):.3g} times n_active"
        )
        if c is None and says_top_k != says_width:
            _as_wide_as_dense(found, says_top_k, assumed)
        return {}
    found["split"] = split
    ratio = totals.ratio_of(mixture_of(found, shape.vocab_size, shape.width_per_block), n_active, n_experts)
    changes = np.percentile(np.abs(ratio / runs.ratio - 1), 90) > OFF
    return dict(shares=totals.shares_of(runs)) if changes else {}


def _off(found: Json, shape: Architecture, mixtures: tuple[Array, Array, Array | None]) -> float:
    """By which share the ratios of n_total to n_active of these entries are off those of a table, at the median."""
    n_active, n_experts, n_total = mixtures
    built = mixture_of(found, shape.vocab_size, shape.width_per_block)
    ratio = totals.ratio_of(built, n_active, n_experts)
    return float(np.median(np.abs(ratio * n_active / n_total - 1)))


def _as_wide_as_dense(found: Json, says_top_k: bool, assumed: list[str]) -> None:
    """Of top_k and the width of experts, of which the table says one, takes the other such that the experts of a token
    are together as wide as the dense layer."""
    if says_top_k:
        found["split"] = float(found["top_k"] + found["shared"])
        assumed.append(
            f"no column says how wide experts are: the {found['split']:g} of a token are taken to be as wide as the "
            "dense layer together"
        )
    else:
        found["top_k"] = max(1, round(found["split"]) - found["shared"])
        assumed.append(
            f"no column says top_k: a token is taken to use {found['top_k']} of the experts, together as wide as the "
            "dense layer"
        )


def majority(values: Array) -> float | None:
    """The value that more than half of them are; None where there is none."""
    value, count = collections.Counter(values.tolist()).most_common(1)[0]
    return value if 2 * count > len(values) else None


def words_of(found: Json) -> str:
    """The entries that are not the paper's: "n_kv_heads / n_heads 0.5, top_k 2"."""
    other = (f"{NAMES.get(name, name)} {value:.4g}" for name, value in found.items() if value != NEUTRAL[name])
    return ", ".join(other) or "in part"


def mixture_of(found: Json, vocab_size: int, width_per_block: int, final_norm: bool = False) -> Architecture:
    """The Architecture of an entry's `architecture`."""
    fields = {name: value for name, value in found.items() if name not in ("top_k", "split")}
    return Architecture(
        vocab_size,
        width_per_block,
        final_norm,
        granularity=found["split"],
        active_width=(found["top_k"] + found["shared"]) / found["split"],
        counts_routed_experts=True,
        **fields,
    )
