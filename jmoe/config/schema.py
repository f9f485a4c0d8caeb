"""The config schema in use: it checks values, writes records, names columns of results, and lists fields in --help.

The schema is the table FIELDS of configs/joint_moe.py. A run's record and a job's name hold the config without the
fields at their neutral value.
"""

import difflib
import importlib.util
import json
import os
import pathlib
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jmoe.config.schema_types import Field, default_config
from jmoe.errors import UserError

PACKAGE = pathlib.Path(__file__).parents[1]
# where configs/ lies: beside this package in a checkout, inside of it in a wheel, where it shadows nobody's own
ROOT = next(root for root in (PACKAGE.parent, PACKAGE / "shipped") if (root / "configs" / "joint_moe.py").exists())


def module_of(path: str | os.PathLike, name: str) -> types.ModuleType:
    """Loads the Python file `path` as a module called `name`, which no import finds.

    Raises:
      FileNotFoundError: There is no such file; and whatever the file itself raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{os.fspath(path)} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# from the recipe that came with this package, whatever module the user calls `configs`
FIELDS: dict[str, Field] = module_of(ROOT / "configs" / "joint_moe.py", "jmoe_recipe").FIELDS
FREE_SECTIONS = ("chip", "mesh")  # their fields are free even if only another version of FIELDS knows them
# column of results by field
COLUMNS = {name: name.removeprefix("model.").removesuffix(".name") for name, field in FIELDS.items() if field.column}
# the meaning of a 0 in these columns, computed from a config.model
STANDS_FOR: dict[str, Callable[[Mapping], int]] = {
    "n_kv_heads": lambda model: model["n_heads"],
    "head_dim": lambda model: model["d_model"] // model["n_heads"],
    "d_expert": lambda model: model["d_ff"],
}
# the recipe's rules, which the law's counts assume; a table has these columns if a model breaks one
BY_RULE: dict[str, Callable[[Mapping], int]] = {
    "n_heads": lambda model: model["n_blocks"],
    "d_ff": lambda model: 3 * model["d_model"],
}
# where one of these is set, the learning rate depends on n_tokens
BUDGET_EXPONENTS = ("optimizer.lr_law.n_tokens", "optimizer.lr_law.batch_tokens")
NEUTRAL = {name: field.neutral for name, field in FIELDS.items() if field.neutral is not None}
NEUTRAL_IN_RECORDS = json.loads(json.dumps(NEUTRAL))  # JSON has lists for tuples


def complete(config: ConfigDict) -> ConfigDict:
    """Gives a config that was read, in place, the fields that it is older than, with their neutral values.

    All else reads fields and knows no defaults.
    """
    missing = NEUTRAL.keys() - flat(config).keys()
    with config.unlocked():
        for dotted_name in missing:
            *sections, name = dotted_name.split(".")
            parent = config
            for section_name in sections:
                if section_name not in parent:
                    parent[section_name] = ConfigDict()
                parent = parent[section_name]
            parent[name] = NEUTRAL[dotted_name]
    return config


def config_of_record(record: Mapping) -> ConfigDict:
    """The config whose record_of is `record`, but for the mesh, which is the reader's own."""
    config = default_config(FIELDS)
    config.update_from_flattened_dict(NEUTRAL)  # what the fields are that the record leaves out
    config.update({name: value for name, value in record.items() if name != "mesh"})
    return config


def columns(config: ConfigDict) -> dict[str, Any]:
    """Values of COLUMNS in a run's result, without neutral ones, by column."""
    values = flat(config)
    return {column: values[name] for name, column in COLUMNS.items() if values[name] != NEUTRAL[name]}


def with_columns(rows: list[dict[str, Any]], configs: Sequence[Mapping]) -> None:
    """Gives every row the columns that any row has, in place.

    Args:
      rows: Results; they lack columns with neutral values.
      configs: The config of each row, which gives the missing values.
    """
    models = [config["model"] for config in configs]
    values_of_runs = [NEUTRAL | flat(config) for config in configs]
    for name, column in COLUMNS.items():
        if not any(column in row for row in rows):
            continue
        for row, model, values in zip(rows, models, values_of_runs, strict=True):
            stands_for_other = values[name] == 0 and column in STANDS_FOR
            row[column] = STANDS_FOR[column](model) if stands_for_other else values[name]
    for name, rule in BY_RULE.items():
        if any(model[name] != rule(model) for model in models):
            for row, model in zip(rows, models, strict=True):
                row[name] = model[name]


def flat(config: Mapping | ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Value by dotted name, of a ConfigDict or of a record's dictionary."""
    values = {}
    for name, value in config.items():
        if hasattr(value, "items"):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def section(name: str) -> str:
    """The section that a dotted name begins with: "model" of "model.norm"."""
    return name.partition(".")[0]


def check_fields(config: ConfigDict) -> None:
    """Checks each field of a complete config by itself.

    Raises:
      UserError: A field is unknown, missing, or has a value that it cannot have; the first such field.
    """
    values = flat(config)
    for name in values.keys() - FIELDS.keys():
        raise UserError(unknown(name, "config."))
    for name, field in FIELDS.items():
        constraint = field.constraint
        if name in values:
            if not constraint.accepts(values[name]):
                raise UserError(f"config.{name}={values[name]!r} must be {constraint.description}")
        else:
            raise UserError(f"config.{name} is missing; it must be {constraint.description}")


def unknown(name: str, prefix: str) -> str:
    """The error for a field that no config has, with the field that the user may mean.

    Args:
      name: Dotted name of the unknown field.
      prefix: What the user writes before names: "config." in a file, "--config." on the command line.
    """
    same_last_part = [known for known in FIELDS if known.rpartition(".")[2] == name.rpartition(".")[2]]
    if same_last_part:
        near = difflib.get_close_matches(name, same_last_part, 1, cutoff=0.0)
    else:
        near = difflib.get_close_matches(name, FIELDS, 1, cutoff=0.6)
    hint = f": did you mean {prefix}{near[0]}?" if near else ""
    return f"{prefix}{name} is no field of a config{hint}"


def record_of(config: ConfigDict) -> dict[str, Any]:
    """The config as nested dictionaries in JSON types, without the fields at their neutral value."""
    record: dict[str, Any] = {}
    for dotted_name, value in flat(json.loads(config.to_json())).items():
        if dotted_name in NEUTRAL and value == NEUTRAL_IN_RECORDS[dotted_name]:
            continue
        *sections, name = dotted_name.split(".")
        parent = record
        for part in sections:
            parent = parent.setdefault(part, {})
        parent[name] = value
    return record


def differences(old: Mapping, new: Mapping) -> list[str]:
    """Compares two records in the fields that a later start must not change.

    Returns:
      A text for each field that differs, with its old and new value, sorted by name.
    """
    old_values = flat(old)
    new_values = flat(new)
    rate_depends_on_budget = any(new_values.get(name) for name in BUDGET_EXPONENTS)
    changes = []
    for name in sorted(old_values.keys() | new_values.keys()):
        if _is_free(name) and not (name == "n_tokens" and rate_depends_on_budget):
            continue
        # a record leaves a field out where it has its neutral value
        neutral = NEUTRAL_IN_RECORDS.get(name)
        old_value = old_values.get(name, neutral)
        new_value = new_values.get(name, neutral)
        if old_value != new_value:
            changes.append(f"config.{name} was {old_value}, is {new_value}")
    return changes


def _is_free(name: str) -> bool:
    return FIELDS[name].free if name in FIELDS else section(name) in FREE_SECTIONS


def describe(path: str, config: ConfigDict, sections: Collection[str] = ()) -> str:
    """Lists fields of a config for --help: value, meaning, constraint.

    Args:
      path: The file that the config comes from.
      config: The config.
      sections: Sections to list; all if empty.
    """
    lines = [f"config fields, with their values in {path}:"]
    for name, value in flat(config).items():
        if sections and section(name) not in sections:
            continue
        shown = value if isinstance(value, str) else repr(value)
        lines.append(f"  --config.{name}={shown}")
        if name in FIELDS:
            field = FIELDS[name]
            text = f"{field.help} [{field.constraint.description}]".strip()
            lines += textwrap.wrap(text, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
