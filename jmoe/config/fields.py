"""The fields of a config, one line each: its allowed values, whether a later start may change it, its neutral value.

The record of a run and the name of a job hold its config without the fields at their neutral value. Plain Python.
"""

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Callable

from jmoe.errors import UserError


@dataclasses.dataclass(frozen=True)
class Field:
    """One field. `allowed` is a pair: words for people, and the test of a value.

    free: a later start of the same run may change it: it sets where and how long to train, not what each step computes.
    neutral: the value at which the field changes nothing; None if it has none. Fields added after the first runs have
      one, so that older records and job names stay as they are.
    """

    allowed: tuple[str, Callable]
    free: bool = False
    neutral: object = None


def integer(least: int, most: float = math.inf):
    words = f"a whole number, at least {least}" if most == math.inf else f"a whole number from {least} to {most}"
    return words, lambda x: type(x) is int and least <= x <= most


def number(words: str, holds=lambda x: True):
    """A finite number for which `holds`."""
    return f"a number{words}", lambda x: type(x) in (int, float) and math.isfinite(x) and holds(x)


def one_of(*names: str):
    return " or ".join(map(repr, names)), lambda x: x in names


def _is_sequence(x) -> bool:
    return isinstance(x, (tuple, list))


def _is_budgets(x) -> bool:
    return _is_sequence(x) and bool(x) and all(type(n) is int and n > 0 for n in x) and sorted({*x}) == [*x]


def _is_ramp(x) -> bool:
    return _is_sequence(x) and bool(x) and all(_is_sequence(pair) and len(pair) == 2 for pair in x)


def named_paths(text: str) -> dict[str, str] | None:
    """{"a": "DIR/a.txt", "b": ...} of "a=DIR/a.txt;b=...", None for text of another form or a name given twice."""
    pairs = [part.partition("=")[::2] for part in text.split(";") if part]
    complete = all(re.fullmatch(r"\w+", name) and path for name, path in pairs)
    return dict(pairs) if complete and len(dict(pairs)) == len(pairs) else None


def _is_steps(x) -> bool:
    if not _is_sequence(x) or not all(type(step) is int for step in x):
        return False
    return len(x) == 0 or len(x) == 2 and 0 <= x[0] < x[1]


_POSITIVE = number(" above 0", lambda x: x > 0)
_NOT_NEGATIVE = number(", 0 or more", lambda x: x >= 0)
_BETA = number(" from 0 to below 1", lambda x: 0 <= x < 1)
_BOOL = "True or False", lambda x: isinstance(x, bool)
_TEXT = "text", lambda x: isinstance(x, str)

# A run's text is known by its fingerprint, so a later start may name it differently, by another path for example.
FIELDS = {
    "seed": Field(integer(0, 2**32 - 1)),
    "n_tokens": Field(("whole numbers of tokens, ascending, none twice, as (1_000_000,)", _is_budgets), free=True),
    "model.d_model": Field(integer(1)),
    "model.n_blocks": Field(integer(1)),
    "model.n_heads": Field(integer(1)),
    "model.n_kv_heads": Field(integer(0), neutral=0),
    "model.head_dim": Field(integer(0), neutral=0),
    "model.qk_norm": Field(one_of("none", "head", "projection"), neutral="none"),
    "model.d_ff": Field(integer(1)),
    "model.vocab_size": Field(integer(1)),
    "model.n_experts": Field(integer(1)),
    "model.top_k": Field(integer(1), neutral=1),
    "model.normalize_gates": Field(_BOOL, neutral=True),
    "model.d_expert": Field(integer(0), neutral=0),
    "model.n_shared_experts": Field(integer(0), neutral=0),
    "model.n_dense_blocks": Field(integer(0), neutral=0),
    "model.scores": Field(one_of("softmax", "sigmoid"), neutral="softmax"),
    "model.balance": Field(one_of("loss", "bias"), neutral="loss"),
    "model.capacity_factor": Field(
        ("a number above 0, or None: nothing is dropped", lambda x: x is None or _POSITIVE[1](x))
    ),
    "model.group_tokens": Field(integer(1)),
    "model.rope_base": Field(number(" above 1", lambda x: x > 1)),
    "model.init_scale": Field(_POSITIVE),
    "model.norm": Field(one_of("layer", "rms"), neutral="rms"),
    "model.final_norm": Field(_BOOL, neutral=True),
    "model.tied_embeddings": Field(_BOOL, neutral=False),
    "model.dtype": Field(one_of("bfloat16", "float32")),
    "model.attention": Field(one_of("float32", "flash")),
    "loss.load_balance": Field(_NOT_NEGATIVE),
    "loss.router_z": Field(_NOT_NEGATIVE),
    "data.path": Field(_TEXT, free=True),
    "data.validation_path": Field(_TEXT, free=True),
    "data.validation_sets": Field(
        ("empty, or NAME=PATH;NAME=PATH with other names", lambda x: isinstance(x, str) and named_paths(x) is not None),
        free=True,
        neutral="",
    ),
    "data.text_field": Field(_TEXT, free=True),
    "data.tokenizer": Field(_TEXT, free=True),
    "data.end_of_text": Field(_TEXT, free=True),
    "data.fingerprint": Field(_TEXT, free=True),
    "data.seq_len": Field(integer(1)),
    "data.validation_tokens": Field(integer(1)),
    "data.max_epochs": Field(_POSITIVE, free=True, neutral=1.0),
    "data.on_bad_document": Field(one_of("fail", "skip"), free=True, neutral="fail"),
    "batch_tokens": Field(("pairs (from token, tokens of a batch), as ((0, 65_536),)", _is_ramp)),
    "microbatch_tokens": Field(integer(0), free=True, neutral=0),
    "optimizer.lr_law.constant": Field(number("")),
    "optimizer.lr_law.n_active": Field(number("")),
    "optimizer.lr_law.n_experts": Field(number("")),
    "optimizer.warmup_tokens": Field(_NOT_NEGATIVE),
    "optimizer.decay_fraction": Field(number(" between 0 and 1", lambda x: 0 < x < 1)),
    "optimizer.b1": Field(_BETA),
    "optimizer.b2": Field(_BETA),
    "optimizer.weight_decay": Field(_NOT_NEGATIVE),
    "optimizer.bias_rate": Field(_NOT_NEGATIVE, neutral=0.001),
    "optimizer.grad_clip": Field(("a number above 0; inf clips nothing", lambda x: type(x) in (int, float) and x > 0)),
    "mesh.expert": Field(integer(1), free=True),
    "mesh.model": Field(integer(1), free=True),
    "remat": Field(one_of("none", "dots", "full"), free=True),
    "unroll": Field(_BOOL, free=True),
    "chip.flops": Field(_NOT_NEGATIVE, free=True, neutral=0.0),
    "chip.capacity": Field(_NOT_NEGATIVE, free=True, neutral=0.0),
    "chip.bandwidth": Field(_NOT_NEGATIVE, free=True, neutral=0.0),
    "chip.network": Field(_NOT_NEGATIVE, free=True, neutral=0.0),
    "log_every": Field(integer(1), free=True),
    "profile_steps": Field(("() or (first, last), whole numbers with 0 <= first < last", _is_steps), free=True),
    "checkpoint_every": Field(integer(1), free=True),
    "eval_every": Field(integer(0), free=True, neutral=0),
    "wandb": Field(_TEXT, free=True, neutral=""),
}
FREE_SECTIONS = ("chip", "mesh")  # their fields are free even if only another version of this table knows them
# fields of config.model that a run's result holds unless they are neutral
COLUMNS = ("n_kv_heads", "head_dim", "qk_norm", "tied_embeddings")
COLUMNS += ("top_k", "d_expert", "n_shared_experts", "n_dense_blocks", "scores", "balance")
STANDS_FOR = {  # what 0 means for these, computed from a config.model
    "n_kv_heads": lambda model: model["n_heads"],
    "head_dim": lambda model: model["d_model"] // model["n_heads"],
    "d_expert": lambda model: model["d_ff"],
}
BY_RULE = {  # the recipe's rules, which the law's counts assume; a table has these columns if a model breaks one
    "n_heads": lambda model: model["n_blocks"],
    "d_ff": lambda model: 3 * model["d_model"],
}
NEUTRAL = {name: field.neutral for name, field in FIELDS.items() if field.neutral is not None}


def setting(model, name: str):
    """The field `name` of config.model, or its neutral value if the config is older than the field."""
    return model.get(name, NEUTRAL[f"model.{name}"])


def columns(model) -> dict:
    """The COLUMNS of a run's result."""
    return {name: setting(model, name) for name in COLUMNS if setting(model, name) != NEUTRAL[f"model.{name}"]}


def with_columns(rows: list[dict], models: list) -> None:
    """Gives every row the columns that any row has. Rows lack neutral ones, which are filled in from `models`."""
    for name in [name for name in COLUMNS if any(name in row for row in rows)]:
        for row, model in zip(rows, models):
            value = setting(model, name)
            row[name] = STANDS_FOR[name](model) if value == 0 and name in STANDS_FOR else value
    for name, rule in BY_RULE.items():
        if any(model[name] != rule(model) for model in models):
            for row, model in zip(rows, models):
                row[name] = model[name]


def flat(config, prefix: str = "") -> dict:
    """The fields of a ConfigDict, or of a record's dict, by their dotted names."""
    fields = {}
    for name, value in config.items():
        fields |= flat(value, f"{prefix}{name}.") if hasattr(value, "items") else {prefix + name: value}
    return fields


def section(name: str) -> str:
    """The section that a dotted name begins with: "model" of "model.norm"."""
    return name.partition(".")[0]


def check_fields(config) -> None:
    """Raises UserError for a field that no config has, and for the first that is missing or has a value that it cannot
    have."""
    values = flat(config)
    for name in values.keys() - FIELDS.keys():
        near = difflib.get_close_matches(name, FIELDS, 1)
        raise UserError(f"config.{name} is no field of a config{f': did you mean config.{near[0]}?' if near else ''}")
    for name, field in FIELDS.items():
        words, holds = field.allowed
        if name in values:
            if not holds(values[name]):
                raise UserError(f"config.{name}={values[name]!r} must be {words}")
        elif name not in NEUTRAL:
            raise UserError(f"config.{name} is missing; it must be {words}")


def record_of(config) -> dict:
    """The config in JSON types, without the fields at their neutral value."""
    return _without(json.loads(config.to_json()), lambda name, value: name in NEUTRAL and value == NEUTRAL[name])


def neutral(config):
    """Sets each field that has a neutral value to that value, as a record that lacks it means; returns `config`."""
    config.update_from_flattened_dict(NEUTRAL)
    return config


def differences(old: dict, new: dict) -> list[str]:
    """Where two records differ in fields that a later start must not change: the old and the new value of each."""
    old, new = flat(old), flat(new)
    names = sorted(name for name in old.keys() | new.keys() if not _is_free(name))
    changed = (name for name in names if old.get(name) != new.get(name))
    return [f"config.{name} was {old.get(name)}, is {new.get(name)}" for name in changed]


def _is_free(name: str) -> bool:
    return FIELDS[name].free if name in FIELDS else section(name) in FREE_SECTIONS


def _without(tree: dict, leave_out, prefix: str = "") -> dict:
    """`tree` without the fields for which leave_out(dotted name, value), and without sections that become empty."""
    kept = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            section = _without(value, leave_out, f"{prefix}{key}.")
            if section or not value:
                kept[key] = section
        elif not leave_out(prefix + key, value):
            kept[key] = value
    return kept
