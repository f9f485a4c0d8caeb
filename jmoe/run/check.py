"""The fields of a config: what each may be, how they fit together, and what is left out of records. Plain Python.

Everything here is found before a device, a text or a workdir is touched, by the trainer and by whoever submits jobs.
"""

import json
import math

from jmoe.errors import UserError

# Fields that came later and change nothing at these values: a record or a job's name says nothing of them then, so that
# what was made before they came stays what it is.
NEUTRAL = {
    "data.max_epochs": 1.0,
    "data.on_bad_document": "fail",
    "microbatch_tokens": 0,
    "model.norm": "rms",
    "model.final_norm": True,
    "chip.flops": 0.0,
    "chip.capacity": 0.0,
    "chip.bandwidth": 0.0,
    "chip.network": 0.0,
}


def record_of(config) -> dict:
    """The config in JSON types, without the fields that are NEUTRAL."""
    fields = json.loads(config.to_json())
    for name, neutral in NEUTRAL.items():
        *path, last = name.split(".")
        section = fields
        for key in path:
            section = section.get(key, {})
        if section.get(last) == neutral:
            del section[last]
            if path and not section:
                del fields[path[0]]
    return fields


def neutral(config):
    """`config` with every field that is in no record at its NEUTRAL value: what a record that names none of them means."""
    config.update_from_flattened_dict(NEUTRAL)
    return config


def _whole(least: int, most: float = math.inf):
    words = f"a whole number, at least {least}" if most == math.inf else f"a whole number from {least} to {most}"
    return words, lambda x: type(x) is int and least <= x <= most


def _number(words: str, holds):
    """A finite number for which `holds`."""
    return f"a number{words}", lambda x: type(x) in (int, float) and math.isfinite(x) and holds(x)


def _one_of(*names: str):
    return " or ".join(map(repr, names)), lambda x: x in names


def _is_ramp(x) -> bool:
    return bool(x) and _is_sequence(x) and all(_is_sequence(pair) and len(pair) == 2 for pair in x)


def _is_sequence(x) -> bool:
    return isinstance(x, (tuple, list))


def _is_steps(x) -> bool:
    if not _is_sequence(x) or not all(type(step) is int for step in x):
        return False
    return len(x) == 0 or len(x) == 2 and 0 <= x[0] < x[1]


_POSITIVE = _number(" above 0", lambda x: x > 0)
_NOT_NEGATIVE = _number(", 0 or more", lambda x: x >= 0)
_BETA = _number(" from 0 to below 1", lambda x: 0 <= x < 1)
_BOOL = "True or False", lambda x: isinstance(x, bool)
_TEXT = "text", lambda x: isinstance(x, str)

# What each field may be: words for people, and the test. tests/test_jmoe_check.py sees to it that none is missing.
FIELDS = {
    "seed": _whole(0, 2**32 - 1),
    "n_tokens": (
        "whole numbers of tokens, ascending, none twice, as (1_000_000,)",
        lambda x: _is_sequence(x) and bool(x) and all(type(n) is int and n > 0 for n in x) and sorted({*x}) == [*x],
    ),
    "model.d_model": _whole(1),
    "model.n_blocks": _whole(1),
    "model.n_heads": _whole(1),
    "model.d_ff": _whole(1),
    "model.vocab_size": _whole(1),
    "model.n_experts": _whole(1),
    "model.capacity_factor": _POSITIVE,
    "model.group_tokens": _whole(1),
    "model.rope_base": _number(" above 1", lambda x: x > 1),
    "model.init_scale": _POSITIVE,
    "model.norm": _one_of("layer", "rms"),
    "model.final_norm": _BOOL,
    "model.dtype": _one_of("bfloat16", "float32"),
    "model.attention": _one_of("float32", "flash"),
    "loss.load_balance": _NOT_NEGATIVE,
    "loss.router_z": _NOT_NEGATIVE,
    "data.path": _TEXT,
    "data.validation_path": _TEXT,
    "data.text_field": _TEXT,
    "data.tokenizer": _TEXT,
    "data.end_of_text": _TEXT,
    "data.fingerprint": _TEXT,
    "data.seq_len": _whole(1),
    "data.validation_tokens": _whole(1),
    "data.max_epochs": _POSITIVE,
    "data.on_bad_document": _one_of("fail", "skip"),
    "batch_tokens": ("pairs (from token, tokens of a batch), as ((0, 65_536),)", _is_ramp),
    "microbatch_tokens": _whole(0),
    "optimizer.lr_law.constant": _number("", lambda x: True),
    "optimizer.lr_law.n_active": _number("", lambda x: True),
    "optimizer.lr_law.n_experts": _number("", lambda x: True),
    "optimizer.warmup_tokens": _NOT_NEGATIVE,
    "optimizer.decay_fraction": _number(" between 0 and 1", lambda x: 0 < x < 1),
    "optimizer.b1": _BETA,
    "optimizer.b2": _BETA,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.grad_clip": ("a number above 0; inf clips nothing", lambda x: type(x) in (int, float) and x > 0),
    "mesh.expert": _whole(1),
    "mesh.model": _whole(1),
    "remat": _one_of("none", "dots", "full"),
    "unroll": _BOOL,
    "chip.flops": _NOT_NEGATIVE,
    "chip.capacity": _NOT_NEGATIVE,
    "chip.bandwidth": _NOT_NEGATIVE,
    "chip.network": _NOT_NEGATIVE,
    "log_every": _whole(1),
    "profile_steps": ("() or (first, last), whole numbers with 0 <= first < last", _is_steps),
    "checkpoint_every": _whole(1),
}


def flat(config, prefix: str = "") -> dict:
    """The fields of a ConfigDict by their dotted names."""
    found = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if hasattr(value, "items") else {prefix + name: value}
    return found


def check_config(config) -> None:
    """Raises UserError for a field, or fields together, that no run can have: field, value and what is allowed."""
    fields = flat(config)
    for name, (allowed, holds) in FIELDS.items():
        if name not in fields:
            if name not in NEUTRAL:
                raise UserError(f"config.{name} is missing; it must be {allowed}")
        elif not holds(fields[name]):
            raise UserError(f"config.{name}={fields[name]!r} must be {allowed}")
    model = config.model
    if model.d_model % (2 * model.n_heads):
        raise UserError(f"config.model.d_model={model.d_model} must be an even multiple of n_heads={model.n_heads}")
    if model.n_experts > 1 and int(model.group_tokens * model.capacity_factor / model.n_experts) < 1:
        raise UserError(
            f"config.model.capacity_factor={model.capacity_factor} leaves no slot to each of "
            f"{model.n_experts} experts in groups of {model.group_tokens} tokens"
        )
    before = None
    for from_token, batch in config.batch_tokens:
        if not _whole(0)[1](from_token) or not _whole(1)[1](batch):
            raise UserError(f"config.batch_tokens: ({from_token!r}, {batch!r}) are no whole numbers of tokens")
        if before is None and from_token != 0:
            raise UserError(f"config.batch_tokens must start at token 0, not {from_token}")
        if before is not None and from_token <= before:
            raise UserError(f"config.batch_tokens: {from_token} does not come after {before}")
        before = from_token
        _divides("config.batch_tokens:", batch, config)
    if micro := microbatch_tokens(config):
        _divides("config.microbatch_tokens=", micro, config)
        if odd := [batch for _, batch in config.batch_tokens if batch % micro]:
            raise UserError(
                f"config.microbatch_tokens={micro} must divide each batch of config.batch_tokens, and {odd[0]} tokens "
                "are no multiple of it"
            )


def _divides(what: str, n_tokens: int, config) -> None:
    row, group = config.data.seq_len, config.model.group_tokens
    what = what + str(n_tokens) if what.endswith("=") else f"{what} {n_tokens}"
    if n_tokens % row:
        raise UserError(f"{what} is no multiple of config.data.seq_len={row}")
    if config.model.n_experts > 1 and n_tokens % group:
        raise UserError(f"{what} is no multiple of config.model.group_tokens={group}")


def microbatch_tokens(config) -> int:
    """config.microbatch_tokens, 0 where a config is older than the field."""
    return config.get("microbatch_tokens", 0)


def check_mesh(config, n_devices: int) -> tuple[int, int, int]:
    """The sizes of the mesh axes (data, expert, model) over `n_devices`.

    Raises:
      UserError: devices, experts, sizes, a batch or a microbatch that do not divide, naming both numbers.
    """
    model, expert, tensor = config.model, config.mesh.expert, config.mesh.model
    if expert < 1 or tensor < 1 or n_devices % (expert * tensor):
        raise UserError(
            f"config.mesh.expert={expert} times config.mesh.model={tensor} does not divide the {n_devices} devices"
        )
    n_rows = n_devices // tensor
    data = n_rows // expert
    for name, value, axis, size in (
        ("model.n_experts", model.n_experts, f"config.mesh.expert={expert}", expert if model.n_experts > 1 else 1),
        ("model.d_model", model.d_model, f"the {data} devices of the data axis", data),
        ("model.n_heads", model.n_heads, f"config.mesh.model={tensor}", tensor),
        ("model.d_ff", model.d_ff, f"config.mesh.model={tensor}", tensor),
        ("data.seq_len", config.data.seq_len, f"config.mesh.model={tensor}", tensor),
    ):
        if value % size:
            raise UserError(f"config.{name}={value} does not divide over {axis}")
    batches = [("batch_tokens", batch) for _, batch in config.batch_tokens]
    if micro := microbatch_tokens(config):
        batches.append(("microbatch_tokens", micro))
    for name, batch in batches:
        if batch // config.data.seq_len % n_rows:
            raise UserError(
                f"config.{name}: {batch} tokens are {batch // config.data.seq_len} rows of "
                f"config.data.seq_len={config.data.seq_len}, which do not divide over {n_rows} devices"
            )
        if model.n_experts > 1 and batch // model.group_tokens % n_rows:
            raise UserError(
                f"config.{name}: {batch} tokens are {batch // model.group_tokens} groups of "
                f"config.model.group_tokens={model.group_tokens}, which do not divide over "
                f"{n_rows} devices; smaller groups divide further but are another model"
            )
    return data, expert, tensor
