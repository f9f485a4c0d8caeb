"""Reads a sweep file: the config file and the overrides of each job, with what --config flags add to all jobs."""

import collections.abc
import itertools
import os
import re
import types
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from jmoe import cli
from jmoe.config import schema
from jmoe.errors import UserError


def resolve(base: types.ModuleType, overrides: dict) -> ConfigDict:
    """The config of a module with get_config(), with the overrides of one job.

    Raises:
      UserError: That is no config. ConfigDict raises other errors for an override.
    """
    config = cli.config_of(base).lock()
    for name in overrides.keys() - schema.flat(config).keys() - schema.FIELDS.keys():
        if name not in config:
            raise UserError(schema.unknown(name, "config."))
    config.update_from_flattened_dict(overrides)
    return config


def read(path: str, config_flags: Sequence[str] = ()) -> tuple[str, types.ModuleType, list[dict]]:
    """Reads a sweep file. A config file counts as a sweep of one job.

    Args:
      path: The sweep file.
      config_flags: Arguments such as --config.data.path=books/*.txt. Each counts as if the file set it in every job.

    Returns:
      The path of the config file, its module, and a dict of overrides for each job.

    Raises:
      UserError: The file or its config file cannot be used, a flag sets no field, or the file sets the field too.
    """
    sweep = cli.load_module(path, "--sweep")
    name = f"--sweep={path}: get_sweep()"
    if hasattr(sweep, "get_sweep"):
        returned = cli.call(sweep.get_sweep, name=name)
    elif hasattr(sweep, "get_config"):
        returned = (path, [{}])
    else:
        raise UserError(f"--sweep={path} defines no get_sweep(), and no get_config() of a single run")
    is_pair = isinstance(returned, (tuple, list)) and len(returned) == 2 and isinstance(returned[0], (str, os.PathLike))
    jobs = cli.call(_jobs, path, returned[1], name=name) if is_pair else None
    if jobs is None:
        raise UserError(f"{name} must return (config file, grid or list of dicts), not {returned!r:.200}")
    config_file = os.fspath(returned[0])
    base = cli.load_module(config_file, f"the config of --sweep={path}")
    common = _overrides(base, config_flags) if config_flags else {}
    for job in jobs:
        for field in common.keys() & job.keys():
            raise UserError(f"--config.{field}: the sweep file sets it too ({field}={job[field]!r}); change it there")
    return config_file, base, [common | job for job in jobs]


def _jobs(path: str, varied: Any) -> list[dict] | None:
    """The overrides of each job of a grid or a list; None for anything else."""
    if isinstance(varied, dict):
        for field, values in varied.items():
            if isinstance(values, str) or not isinstance(values, collections.abc.Iterable):
                raise UserError(f"--sweep={path}: in a grid, {field!r} must have a list of values, not {values!r}")
        varied = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    if isinstance(varied, str) or not isinstance(varied, collections.abc.Iterable):
        return None
    varied = list(varied)
    if not all(isinstance(job, dict) and all(isinstance(field, str) for field in job) for job in varied):
        return None
    return [{field: plain(value) for field, value in job.items()} for job in varied]


def plain(value: Any) -> Any:
    """A value as configs hold it.

    Lists, which JSON makes of tuples, become tuples. Numbers and arrays of numpy become Python's numbers and tuples.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        return tuple(plain(item) for item in value)
    return value


def _overrides(base: types.ModuleType, arguments: Sequence[str]) -> dict:
    """{field: value} of --config flags, parsed as jmoe.train parses them."""
    matches = [cli.NONE.fullmatch(argument) for argument in arguments]
    none_fields = {match[1]: None for match in matches if match}
    cli.check_config_flags(arguments, cli.config_of(base))
    arguments = ["", *(argument for argument in arguments if not cli.NONE.fullmatch(argument))]
    values = flags.FlagValues()
    try:
        config = resolve(base, none_fields)
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=arguments)
        unparsed = values(arguments)[1:]
        if unparsed:
            raise UserError(f"unexpected argument {unparsed[0]!r}: every option is a flag, --name=value")
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"--config has no such field or value: {cli.one_line(error)}") from None
    return none_fields | values["config"].override_values  # ty: ignore[missing-attribute]  absl types flags as Flag


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits a command's arguments into --config.FIELD flags and all others; returns (others, config flags)."""
    others = []
    config_arguments = []
    value_follows = False
    for argument in arguments:
        is_config_flag = re.match(r"--?(no)?config\.", argument) is not None
        is_value = value_follows and not argument.startswith("-")
        if is_config_flag or is_value:
            config_arguments.append(argument)
        else:
            others.append(argument)
        value_follows = is_config_flag and "=" not in argument
    return others, config_arguments
