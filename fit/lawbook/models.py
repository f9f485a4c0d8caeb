"""Which models a law was fitted to: their shape, how they were trained and on which text, as the table of runs shows.

`from_table` makes the entry `models` of a law.json; a published law has its paper's. Any field may be None: not known.

  vocab_size, width_per_block  as most runs have them (width_per_block = d_model / n_blocks); None where none has most
  n_experts                    the numbers of experts that were fitted, ascending
  base_config, overrides       the config file of the runs, and the fields that all of them override in it alike, each
                               value as Python source
  seq_len                      tokens in a row of training text
  final_norm                   whether all of them have a norm before the head
  learning_rate                constant, n_active, n_experts of Eq. 10 where it gives every run's peak_learning_rate
  architecture                 where the models are not the paper's: the ratios of heads, experts and ends that NEUTRAL
                               lists, which a plan's models have too
  miscounted                   the share by which counts of that architecture miss the runs' n_active, where they do
  shares                       where experts' width changes with the size, as totals.shares_of gives it
  assumed                      sentences on what the table does not say of mixtures, and what is taken
  corpus, unique_tokens        fingerprint of the text and how many training tokens it has
  repeats                      [how many runs saw text more than once, the most epochs], where the table has epochs
  differing                    {column: its values} of columns that should have one value and have several

A table names a field of the trainer's config.model where some of its runs differ from the paper's recipe: in a column,
or in the column overrides.

Axes: n runs.
"""

import ast
import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit.aliases import Array, Json
from fit.data.table import Table
from fit.errors import UserError
from fit.lawbook import totals
from fit.shape.architecture import ROUNDED, Architecture

MOST_EXPERTS = 16  # numbers of experts that a plan compares by default
# What a plan chooses anew, or what does not belong to the models: never taken over from the runs.
CHOSEN = ("model.d_model", "model.n_blocks", "model.n_heads", "model.d_ff", "model.vocab_size", "model.n_experts")
CHOSEN += ("n_tokens", "seed", "data.fingerprint")
# and these where the table has a column of them
BUILT = ("n_kv_heads", "head_dim", "tied_embeddings", "top_k", "d_expert", "n_shared_experts", "n_dense_blocks")
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


def from_table(table: Table, rows: Array | slice = slice(None)) -> Json:
    """The entry `models` for a law fitted to the runs in `table`; n_experts are those of `rows`, the runs fitted."""
    differing = {}
    config = _only(table, "config", differing)
    sizes = {name: _most_common(table, name, differing) for name in ("vocab_size", "width_per_block")}
    if "width_per_block" not in table.columns:
        sizes["width_per_block"] = _width_per_block(table)
    known = sizes | _architecture(table, *sizes.values(), differing)
    return known | dict(
        seq_len=_most_common(table, "seq_len", differing),
        final_norm={str(v).lower() for v in table.columns.get("final_norm", [])} == {"true"},
        n_experts=_experts(table, rows),
        base_config=config,
        overrides=_overrides(table, differing) if config else {},
        learning_rate=_learning_rate(table),
        corpus=_only(table, "corpus_fingerprint", differing),
        **_text(table),
        differing=differing,
    )


def _only(table: Table, name: str, differing: dict[str, list]) -> str | None:
    """The one value of a column of text, None where there is no such column or it is empty."""
    values = sorted({str(v) for v in table.columns.get(name, []) if v not in (None, "")})
    if len(values) > 1:
        differing[name] = values
    return values[0] if len(values) == 1 else None


def _numbers(table: Table, name: str) -> Array | None:
    """A column as numbers, None where it is missing or not all positive numbers: no law needs it."""
    try:
        return table.numbers(name, (1e-12, 1e18)) if name in table.columns else None
    except UserError:
        return None


def _most_common(table: Table, name: str, differing: dict[str, list]) -> int | None:
    """The whole number that more than half of the runs have."""
    values = _numbers(table, name)
    if values is None:
        return None
    if len(distinct := np.unique(values)) > 1:
        differing[name] = distinct.tolist()
    value = round(majority(values) or 0)
    return value if value >= 1 else None


def _width_per_block(table: Table) -> int | None:
    """d_model / n_blocks as most runs have it, where it is a whole number."""
    d_model, n_blocks = _numbers(table, "d_model"), _numbers(table, "n_blocks")
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


def _architecture(
    table: Table, vocab_size: int | None, width_per_block: int | None, differing: dict[str, list]
) -> Json:
    """architecture, miscounted, shares and assumed, where there are any. Where the runs differ in a field, the value
    that most of them have is taken, else the median, and the field's values go to `differing`."""
    found, several, assumed, out = dict(NEUTRAL), {}, [], {}
    c, whole = _columns(table), bool(vocab_size and width_per_block)
    if c is not None:
        _ratios(c, whole, width_per_block, found, several)
        if width_per_block and not vocab_size and (vocab_size := _vocabulary(c, found, width_per_block)):
            whole, out = True, dict(vocab_size=vocab_size)
    elif loose := _loose(table, several):
        found |= loose
    if c is not None and whole:
        built = mixture_of(found, vocab_size or 1, width_per_block or 1)
        counted = built.n_active(c["d_model"], c["n_experts"], c["n_blocks"])
        off = float(np.median(np.abs(counted / c["n_active"] - 1)))
        out |= dict(miscounted=off) if off > OFF else {}
    if mixtures := _mixtures(table):
        out |= _with_totals(table, mixtures, c, found, totals.assumed_shape(vocab_size, width_per_block), assumed)
    differing |= several
    out |= dict(architecture=found) if several or found != NEUTRAL else {}
    return out | (dict(assumed=assumed) if assumed else {})


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
    experts, found = _numbers(table, "n_experts"), {}
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
    n_active, n_experts = _numbers(table, "n_active"), _numbers(table, "n_experts")
    if n_active is None or n_experts is None or not (mixed := n_experts > 1).any():
        return None
    n_total = _numbers(table, "n_total")
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
            f"by the other columns n_total over n_active would be {off:.0%} off the table's: they do not say all of how "
            "the mixtures are built, and a plan's may be others"
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
    fields = {name: value for name, value in found.items() if name != "top_k"}
    used = (found["top_k"] + found["shared"]) / found["split"]
    return Architecture(vocab_size, width_per_block, final_norm, used=used, trained=True, **fields)


def _text(table: Table) -> Json:
    """unique_tokens and repeats, from n_tokens and from epochs, the number of times that these read the text."""
    n_tokens, epochs = _numbers(table, "n_tokens"), _numbers(table, "epochs")
    if n_tokens is None or epochs is None:
        return dict(unique_tokens=None, repeats=None)
    repeated = epochs > 1 + 1e-9
    return dict(
        unique_tokens=max(1, int(round(np.median(n_tokens / epochs)))),
        repeats=[int(repeated.sum()), float(epochs.max())] if repeated.any() else None,
    )


def _experts(table: Table, rows: Array | slice) -> list[int] | None:
    values = _numbers(table, "n_experts")
    if values is None:
        return None
    fitted = [int(v) for v in np.unique(values[rows])]
    spread = np.linspace(0, len(fitted) - 1, min(len(fitted), MOST_EXPERTS)).round().astype(int)
    return [fitted[i] for i in spread]


def _overrides(table: Table, differing: dict[str, list]) -> dict[str, str]:
    """{field: value as Python source} that every run's overrides (field=value field=value ...) hold alike."""
    held = [dict(re.findall(r"([\w.]+)=(.*?)(?= [\w.]+=|$)", str(text))) for text in table.columns.get("overrides", [])]
    common = {}
    for field in dict.fromkeys(name for overrides in held for name in overrides):
        values = sorted({overrides.get(field, "") for overrides in held})
        if field in CHOSEN or (field.removeprefix("model.") in BUILT and field.removeprefix("model.") in table):
            continue
        if len(values) > 1:
            differing[field] = values
        elif is_literal(values[0]):
            common[field] = values[0]
    return common


def text_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """{field: value as Python source} by which the trainer takes only the runs' text; {} where that is unknown."""
    corpus = entry["corpus"] or ""
    return {"data.fingerprint": repr(corpus)} if re.fullmatch("[0-9a-f]{16}", corpus) else {}  # as jmoe names a text


def overrides(entry: Mapping[str, Any]) -> dict[str, str]:
    """{field: value as Python source} that a model for this law has as its runs had it."""
    return (entry["overrides"] or {}) | text_of(entry)


def is_literal(source: str) -> bool:
    """Whether `source` is a Python literal and nothing that could run."""
    try:
        ast.literal_eval(source)
        return True
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False


def _learning_rate(table: Table) -> dict[str, float] | None:
    """Eq. 10's three numbers where they give every run's peak_learning_rate to 6 digits; else None."""
    read = [_numbers(table, name) for name in ("peak_learning_rate", "n_active", "n_experts")]
    if len(columns := [values for values in read if values is not None]) < len(read):
        return None
    rate, n_active, n_experts = np.log(columns)
    if np.ptp(n_active) == 0:
        return None  # a single size has no slope
    design = np.stack([np.ones_like(rate), n_active, n_experts], axis=1)
    law = np.linalg.lstsq(design, rate, rcond=None)[0]
    if np.abs(design @ law - rate).max() > 1e-6:
        return None
    return {name: float(f"{v:.10g}") for name, v in zip(("constant", "n_active", "n_experts"), law)}


def notes(entry: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on text seen twice, and on the columns that should have one value for all runs and have several."""
    if entry.get("repeats"):
        count, most = entry["repeats"]
        yield (
            f"{count} runs saw text more than once (up to {most:.3g} epochs): a law of fresh tokens does not hold for "
            "them"
        )
    architecture = entry.get("architecture") or {}
    for name, values in (entry.get("differing") or {}).items():
        if name in architecture:
            continue
        taken = entry.get(name) or (entry.get("overrides") or {}).get(name)
        yield _several(name, values) + (f"most have {taken}, which is taken" if taken else "none is taken")
    yield from architecture_notes(entry)


def architecture_notes(entry: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on how the runs' models are built, where they differ in it or the table does not say all of it."""
    architecture = entry.get("architecture") or {}
    for name, values in (entry.get("differing") or {}).items():
        if name in architecture:
            shown = _several(NAMES.get(name, name), [f"{v:.4g}" for v in values])
            yield shown + f"a plan's have {architecture[name]:.4g}"
    if off := entry.get("miscounted"):
        yield (
            f"by the columns of the table the runs' n_active would be {off:.0%} off: they do not say all of how the "
            "models are built, and a plan's models may be others"
        )
    yield from entry.get("assumed") or ()


def _several(name: str, values: list) -> str:
    shown = ", ".join(map(str, values[:4])) + ", ..." * (len(values) > 4)
    return f"the runs have {len(values)} values of {name} ({shown}): "
