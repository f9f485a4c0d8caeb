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
  corpus, unique_tokens        fingerprint of the text and how many training tokens it has
  repeats                      [how many runs saw text more than once, the most epochs], where the table has epochs
  differing                    {column: its values} of columns that should have one value and have several

A table names a field of the trainer's config.model where some of its runs differ from the paper's recipe: in a column,
or in the column overrides.

Axes: n runs.
"""

import ast
import collections
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit.aliases import Array, Json
from fit.data.table import Table
from fit.errors import UserError
from fit.lawbook.config_fields import FIELDS as CONFIG_FIELDS
from fit.shape.architecture import ROUNDED, Architecture
from fit.words.printable import printable

MOST_EXPERTS = 16  # numbers of experts that a plan compares by default
# What a plan chooses anew, or what does not belong to the models: never taken over from the runs.
CHOSEN = ("model.d_model", "model.n_blocks", "model.n_heads", "model.d_ff", "model.vocab_size", "model.n_experts")
CHOSEN += ("n_tokens", "seed", "data.fingerprint")
# and these where the table has a column of them
BUILT = ("n_kv_heads", "head_dim", "tied_embeddings", "top_k", "d_expert", "n_shared_experts", "n_dense_blocks")
LONGEST_VALUE = 10_000  # letters of a field's value as Python source; longer ones are none that a person chose
OFF = 0.02  # counts further off than this share are reported
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
    return dict(
        **sizes,
        **_architecture(table, *sizes.values(), differing),
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
    values = sorted({printable(str(v)) for v in table.columns.get(name, []) if v not in (None, "")})
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
    """architecture and miscounted, where there are any. Where the runs differ in a field, the value that most of them
    have is taken, else the median, and the field's values go to `differing`."""
    c = _columns(table)
    if c is None or not vocab_size or not width_per_block:
        return {}
    ratios = dict(kv_share=c["n_kv_heads"] / c["n_heads"], attention=c["n_heads"] * c["head_dim"] / c["d_model"])
    ratios |= dict(ff=c["d_ff"] / c["d_model"], tied=c["tied"])
    of_mixtures = dict(split=c["d_ff"] / c["d_expert"], top_k=c["top_k"])
    of_mixtures |= dict(shared=c["n_shared_experts"], n_dense=c["n_dense_blocks"])
    ratios |= {name: values[c["n_experts"] > 1] for name, values in of_mixtures.items()}
    found, several = dict(NEUTRAL), {}
    for name, values in ratios.items():
        if len(values):
            values = np.round(values, 6)
            if values.max() > (1 + ROUNDED) * values.min():
                several[name] = np.unique(values).tolist()
            value = majority(values)
            found[name] = float(np.percentile(values, 50, method="lower")) if value is None else value
    head_dim = majority(c["head_dim"])
    found["head_dim"] = 0 if head_dim in (None, width_per_block) else head_dim
    integers = {name: int(found[name]) for name in ("top_k", "shared", "n_dense", "head_dim")}
    found |= integers | dict(tied=bool(found["tied"]))
    differing |= several
    counted = mixture_of(found, vocab_size, width_per_block).n_active(c["d_model"], c["n_experts"], c["n_blocks"])
    off = float(np.median(np.abs(counted / c["n_active"] - 1)))
    out: Json = dict(architecture=found) if several or found != NEUTRAL else {}
    return out | (dict(miscounted=off) if off > OFF else {})


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
    """{field: value as Python source} of the config's fields that every run's overrides hold alike."""
    held = [split_overrides(printable(str(text))) for text in table.columns.get("overrides", [])]
    common = {}
    for field in dict.fromkeys(name for overrides in held for name in overrides):
        values = sorted({overrides.get(field, "") for overrides in held})
        if field in CHOSEN or (field.removeprefix("model.") in BUILT and field.removeprefix("model.") in table):
            continue
        if len(values) > 1:
            differing[field] = values
        elif field in CONFIG_FIELDS and is_literal(values[0]):
            common[field] = values[0]
    return common


def split_overrides(text: str) -> dict[str, str]:
    """{field: value} of a run's overrides, "field=value field=value ..."; a value may hold spaces.

    A field begins the text or follows a space, so that a long word is read once and not from each of its letters.
    """
    names = list(re.finditer(r"(?:^| )([\w.]+)=", text))
    ends = [name.start() for name in names[1:]] + [len(text)]
    return {name[1]: text[name.end() : end] for name, end in zip(names, ends)}


def text_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """{field: value as Python source} by which the trainer takes only the runs' text; {} where that is unknown."""
    corpus = entry["corpus"] or ""
    return {"data.fingerprint": repr(corpus)} if re.fullmatch("[0-9a-f]{16}", corpus) else {}  # as jmoe names a text


def overrides(entry: Mapping[str, Any]) -> dict[str, str]:
    """{field: value as Python source} that a model for this law has as its runs had it."""
    return (entry["overrides"] or {}) | text_of(entry)


def is_literal(source: object) -> bool:
    """Whether `source` is text of a Python literal, which nothing could run, and that Python can write out again."""
    if not isinstance(source, str) or len(source) > LONGEST_VALUE:
        return False
    try:
        value = ast.literal_eval(source)
        return bool(ast.literal_eval(repr(value)) == value)  # infinity and NaN are written as names
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


def _several(name: str, values: list) -> str:
    shown = ", ".join(map(str, values[:4])) + ", ..." * (len(values) > 4)
    return f"the runs have {len(values)} values of {name} ({shown}): "
