"""Flags that several commands share: a law, columns, numbers, a shape of model, a plan's constraints."""

import dataclasses
import math

from absl import flags

from fit.data.table import BOUNDS
from fit.errors import UserError
from fit.lawbook import lawfile as law_lib
from fit.planning import cost, optimum
from fit.words import sentences
from fit.words.units import LARGEST

# Columns that --columns may find under another name: those of runs.csv that fit reads.
NAMES = (*BOUNDS, "peak_learning_rate", "epochs", "corpus_fingerprint", "run", "seed", "config")


def define(f, rows):
    """Defines flags: rows of kind, name, default, what absl's DEFINE_kind takes next."""
    for kind, name, default, *rest in rows:
        getattr(flags, f"DEFINE_{kind}")(name, default, *rest, flag_values=f)


def define_law(f):
    define(f, [("string", "law", None, "A law.json, or the name of a published law.")])


def law_of(f):
    """The Law of --law."""
    if f.law is None:
        raise UserError("--law is missing: a law.json, or one of " + ", ".join(law_lib.NAMES))
    return law_lib.load(f.law)


def define_columns(f):
    what = "The table's names of columns, where they differ, as OURS:THEIRS: loss:val_loss,n_tokens:D."
    define(f, [("list", "columns", [], what)])


def columns_of(f):
    """{ours: theirs} of the flag --columns; UserError where it is not that."""
    names = {}
    for text in f.columns:
        ours, colon, theirs = (part.strip() for part in text.partition(":"))
        if not colon or not theirs or ours not in NAMES or ours in names:
            raise UserError(
                f"--columns={','.join(f.columns)}: found {text!r}, expected name:column once for each name, such as "
                f"loss:val_loss; names: {', '.join(NAMES)}"
            )
        names[ours] = theirs
    return names


def picture_ending(path):
    """png, pdf or svg of --out; UserError where its ending is none of them."""
    ending = path.rpartition(".")[2]
    if ending not in ("pdf", "png", "svg"):
        raise UserError(f"--out={path}: expected the ending .pdf, .png or .svg")
    return ending


def define_shape(f):
    for name, what in (
        ("vocab_size", "Tokens in the vocabulary; n_active includes embedding and head."),
        ("width_per_block", "d_model / n_blocks, which is also d_model / n_heads."),
    ):
        flags.DEFINE_integer(name, None, f"{what} Default: the law's own.", lower_bound=1, flag_values=f)


def shape_of(f, law):
    """The Architecture of the flags, and of the law where they say nothing."""
    return law.shaped(f.vocab_size, f.width_per_block)


def define_architecture(f):
    """The flags of models that are not as the law's, or not as the paper's."""
    less = "Key-value heads per query head; below 1 saves cache and attention. Default: the law's own, else 1."
    dense = "Number of dense blocks before a mixture's other blocks. Default: the law's own, else 0."
    used = (
        "Expert width that a token uses, in widths of the dense layer. Laws that read sparsity or top_k choose among "
        "several values. Default: the law's own, else 1."
    )
    rows = ("float", "kv_share", None, less, 1e-3, 1), ("integer", "dense_blocks", None, dense, 0)
    define(f, [*rows, ("list", "used", None, used)])


def used_of(f):
    """The numbers of --used; None where it is not given."""
    if f.used is None:
        return None
    if not f.used:
        raise UserError(sentences.NOT_NUMBERS.format(flag="used", text="''"))
    return positive_list(f, "used")


def architectures_of(f, law):
    """The Architectures that the flags ask for, the law's own where they say nothing; several where --used names
    several. UserError where the law cannot choose between them, or one cannot be built."""
    own, used, value = shape_of(f, law), used_of(f), ",".join(f.used or ())
    if used is not None and not law.knows_experts:
        raise UserError(sentences.USED_OF_MIXTURES.format(value=value, law=law.name))
    if used is not None and len(used) > 1 and not law.reads_used:
        raise UserError(sentences.ONE_USED.format(value=value, form=law.form.name))
    given = dict(kv_share=f.kv_share, n_dense=f.dense_blocks)
    given = {name: value for name, value in given.items() if value is not None}
    if used is None and not given:
        return [own]
    from fit.shape.mixture import Mixture

    mixture = own if isinstance(own, Mixture) else Mixture(**vars(own))
    mixture = dataclasses.replace(mixture, **given)
    asked = []
    for u in used or [mixture.used]:
        narrow = round(u * mixture.split)  # widths of experts are rounded to whole ones
        if narrow <= mixture.shared or abs(narrow / mixture.split - u) > 0.1 * u:
            raise UserError(
                sentences.NO_WHOLE_CHOICE.format(value=value, split=mixture.split, shared=mixture.shared, used=u)
            )
        one = dataclasses.replace(mixture, used=narrow / mixture.split)
        asked.append(own if one == Mixture(**vars(own)) else one)
    return asked


def positive(f, name, zero=False):
    """The flag's value, None as it is; UserError unless it is a positive finite number (or 0 where zero)."""
    value = f[name].value
    if value is not None and not (1e-12 <= value <= LARGEST or (zero and value == 0)):
        kind = "non-negative" if zero else "positive"
        raise UserError(sentences.NOT_POSITIVE.format(flag=name, value=value, kind=kind, largest=LARGEST))
    return value


def positive_list(f, name):
    """The flag's values as numbers, which must be positive; UserError otherwise."""
    numbers = []
    for text in f[name].value:
        try:
            numbers.append(float(text))
        except ValueError:
            numbers.append(math.nan)
        if not 1e-12 <= numbers[-1] <= LARGEST:
            raise UserError(sentences.NOT_NUMBERS.format(flag=name, text=repr(text)))
    return numbers


def parse_experts(f):
    """The numbers of experts of --experts, sorted; UserError unless integers from 1 up."""
    numbers = positive_list(f, "experts")
    if not numbers or any(e != int(e) or e > 1e6 for e in numbers):
        raise UserError(sentences.NOT_EXPERTS.format(value=",".join(f.experts)))
    return sorted({int(e) for e in numbers})


def experts_of(f, law):
    """The numbers of experts of --experts, else those that the law was fitted to.

    UserError unless integers from 1 up, and 1 alone for a law of dense models.
    """
    if f.experts is None:
        return law.experts
    asked = parse_experts(f)
    if not law.knows_experts and asked != [1]:
        raise UserError(sentences.ONLY_DENSE.format(value=",".join(f.experts), law=law.name))
    return asked


def define_constraints(f):
    """The flags of a plan."""
    for name, default, what in (
        ("flops", None, "FLOPs of training (6 n_active n_tokens) and of serving --inference_tokens."),
        ("memory_gb", None, "Memory of one device in GB (1e9 bytes), for weights and cache."),
        ("bytes_per_parameter", 2, "Bytes of a weight; 2 is bfloat16."),
        ("kv_tokens", 0, "Tokens in the key-value cache, over all sequences."),
        ("bytes_per_kv_element", 2, "Bytes of an element of the cache; 2 is bfloat16."),
        ("inference_tokens", 0, "Tokens to serve over the model's life, at 2 n_active FLOPs each, out of --flops."),
        ("max_tokens", None, "Training tokens available."),
    ):
        flags.DEFINE_float(name, default, what, flag_values=f)
    flags.DEFINE_integer("devices", 1, "Devices that share weights and cache.", lower_bound=1, flag_values=f)
    flags.DEFINE_list("experts", None, "Numbers of experts allowed. Default: those fitted.", flag_values=f)


def define_chips(f):
    """The flags of what training costs, and of text that is read several times: those of `plan` alone."""
    mfu = (
        "Model FLOPs utilisation that training reaches: a number, or a JSON file with one for each number of experts, "
        f'{{"1": 0.45, "8": 0.38}}. Default: {cost.MFU}.'
    )
    define(
        f,
        [
            ("float", "epochs", None, "How many times the --max_tokens may be read. Default: once."),
            ("string", "chips", None, "Chips to train on, such as H100:8, for costs in hours."),
            ("float", "hours", None, "Budget in hours on --chips, instead of --flops."),
            ("float", "dollars_per_hour", None, "Price of one chip for an hour."),
            ("string", "mfu", None, mfu),
        ],
    )


def chips_of(f, experts):
    """The cost.Chips of --chips and the flags that go with it, None without; UserError where one is out of range."""
    if f.chips is None:
        for name in ("hours", "dollars_per_hour", "mfu"):
            if f[name].value is not None:
                raise UserError(sentences.NEEDS_CHIPS.format(flag=name))
        return None
    kind, count = cost.parse_chips(f.chips)
    mfu = cost.MFU if f.mfu is None else cost.parse_mfu(f.mfu, experts)
    return cost.Chips(kind, count, mfu, positive(f, "dollars_per_hour", zero=True), f.devices)


def constraints_of(f, chips=None):
    """The Constraints that the flags ask for, --hours as FLOPs of the Chips; UserError where one is out of range."""
    memory, flops = positive(f, "memory_gb"), positive(f, "flops")
    hours, epochs = (positive(f, "hours"), f.epochs) if "hours" in f else (None, None)
    if hours is not None and flops is not None:
        raise UserError(sentences.HOURS_OR_FLOPS)
    if epochs is not None and not 1 <= epochs <= LARGEST:
        raise UserError(sentences.TOO_FEW_EPOCHS.format(value=epochs))
    if epochs is not None and f.max_tokens is None:
        raise UserError(sentences.EPOCHS_OF)
    if f.max_tokens is not None and f.max_tokens < 1:
        raise UserError(sentences.LESS_THAN_A_TOKEN.format(value=f.max_tokens))
    return optimum.Constraints(
        flops=flops if hours is None else chips.flops(hours),
        memory_bytes=None if memory is None else memory * 1e9 * f.devices,
        bytes_per_parameter=positive(f, "bytes_per_parameter"),
        kv_tokens=positive(f, "kv_tokens", zero=True),
        bytes_per_kv_element=positive(f, "bytes_per_kv_element"),
        inference_tokens=positive(f, "inference_tokens", zero=True),
        max_tokens=positive(f, "max_tokens"),
        epochs=epochs,
        chips=chips,
    )
