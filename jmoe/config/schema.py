"""All fields of a config (configs/joint_moe.py) at work: values checked, records, columns of results, --help.

The record of a run and the name of a job hold its config without the fields at their neutral value.
"""

import difflib
import functools
import importlib.util
import json
import pathlib
import textwrap

from jmoe.errors import UserError

PACKAGE = pathlib.Path(__file__).parents[1]
# where configs/ lies: beside this package in a checkout, inside of it in a wheel, where it shadows nobody's own
ROOT = next(root for root in (PACKAGE.parent, PACKAGE / "shipped") if (root / "configs" / "joint_moe.py").exists())


def module_of(path, name: str):
    """The Python file `path` as a module of that name, which no import finds."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# of the recipe that came with this package, whatever the name `configs` means to the user
FIELDS = module_of(ROOT / "configs" / "joint_moe.py", "jmoe_recipe").FIELDS
FREE_SECTIONS = ("chip", "mesh")  # their fields are free even if only another version of this table knows them
COLUMNS = {  # field: column of results
    name: name.removeprefix("model.").removesuffix(".name") for name, field in FIELDS.items() if field.column
}
STANDS_FOR = {  # what 0 means for these, computed from a config.model
    "n_kv_heads": lambda model: model["n_heads"],
    "head_dim": lambda model: model["d_model"] // model["n_heads"],
    "d_expert": lambda model: model["d_ff"],
}
BY_RULE = {  # the recipe's rules, which the law's counts assume; a table has these columns if a model breaks one
    "n_heads": lambda model: model["n_blocks"],
    "d_ff": lambda model: 3 * model["d_model"],
}
OF_BUDGETS = "optimizer.lr_law.n_tokens", "optimizer.lr_law.batch_tokens"  # by these the rate follows from n_tokens
NEUTRAL = {name: field.neutral for name, field in FIELDS.items() if field.neutral is not None}
NEUTRAL_IN_RECORDS = json.loads(json.dumps(NEUTRAL))  # where a tuple is a list


def setting(model, name: str):
    """The field `name` of config.model, or its neutral value if the config is older than the field."""
    return model.get(name, NEUTRAL[f"model.{name}"])


def columns(config) -> dict:
    """The COLUMNS of a run's result."""
    values = NEUTRAL | flat(config)
    return {column: values[name] for name, column in COLUMNS.items() if values[name] != NEUTRAL[name]}


def with_columns(rows: list[dict], configs: list) -> None:
    """Gives every row the columns that any row has. Rows lack neutral ones, which are filled in from `configs`."""
    models, values = [config["model"] for config in configs], [NEUTRAL | flat(config) for config in configs]
    for name, column in COLUMNS.items():
        if any(column in row for row in rows):
            for row, model, of_run in zip(rows, models, values):
                value = of_run[name]
                row[column] = STANDS_FOR[column](model) if value == 0 and column in STANDS_FOR else value
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
        raise UserError(unknown(name, "config."))
    for name, field in FIELDS.items():
        words, holds = field.allowed
        if name in values:
            if not holds(values[name]):
                raise UserError(f"config.{name}={values[name]!r} must be {words}")
        elif name not in NEUTRAL:
            raise UserError(f"config.{name} is missing; it must be {words}")


def unknown(name: str, prefix: str) -> str:
    """The sentence about a field `name` that no config has, and the field that may be meant; `prefix` is how the user
    names fields: "config." in a file, "--config." on the command line."""
    same_end = [known for known in FIELDS if known.rpartition(".")[2] == name.rpartition(".")[2]]
    near = difflib.get_close_matches(name, same_end or FIELDS, 1, cutoff=0.0 if same_end else 0.6)
    hint = f": did you mean {prefix}{near[0]}?" if near else ""
    return f"{prefix}{name} is no field of a config{hint}"


def record_of(config) -> dict:
    """The config in JSON types, without the fields at their neutral value."""
    record = {}
    for name, value in flat(json.loads(config.to_json())).items():
        if name not in NEUTRAL or value != NEUTRAL_IN_RECORDS[name]:
            *sections, last = name.split(".")
            functools.reduce(lambda part, section: part.setdefault(section, {}), sections, record)[last] = value
    return record


def differences(old: dict, new: dict) -> list[str]:
    """Where two records differ in fields that a later start must not change: the old and the new value of each."""
    old, new = flat(old), flat(new)
    free = lambda name: _is_free(name) and not (name == "n_tokens" and any(map(new.get, OF_BUDGETS)))
    names = sorted(name for name in old.keys() | new.keys() if not free(name))
    changed = []
    for name in names:
        # a record leaves a field out where it has its neutral value
        was, is_now = (record.get(name, NEUTRAL_IN_RECORDS.get(name)) for record in (old, new))
        if was != is_now:
            changed.append(f"config.{name} was {was}, is {is_now}")
    return changed


def _is_free(name: str) -> bool:
    return FIELDS[name].free if name in FIELDS else section(name) in FREE_SECTIONS


def describe(path: str, config, sections=()) -> str:
    """The fields of `config`, that of the file `path`, in `sections` or in all: value, meaning, what it may be."""
    lines = [f"config fields, with their values in {path}:"]
    for name, value in flat(config).items():
        if sections and section(name) not in sections:
            continue
        known = FIELDS.get(name)
        words = f"{known.help} [{known.allowed[0]}]".strip() if known else ""
        lines.append(f"  --config.{name}={value!r}" if not isinstance(value, str) else f"  --config.{name}={value}")
        lines += textwrap.wrap(words, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
