"""What a sweep file says: the config file and the overrides of each job, with what --config flags add to all jobs."""

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
    """The config of a module with get_config(), with the overrides of one job; UserError if that makes no config, and
    what ConfigDict raises for an override."""
    config = cli.config_of(base).lock()
    for name in overrides.keys() - schema.flat(config).keys() - schema.FIELDS.keys():
        if name not in config:
            raise UserError(schema.unknown(name, "config."))
    config.update_from_flattened_dict(overrides)
    return config


def read(path: str, config_flags: Sequence[str] = ()) -> tuple[str, types.ModuleType, list[dict]]:
    """(config file, its module, a dict of overrides for each job) of the sweep file at `path`; a config file is a sweep
    of one job. `config_flags`: arguments such as --config.data.path=books/*.txt. Each counts as if the file said it in
    every job. UserError where the file or its config file can't be used, or a flag sets what it can't, or what the file
    sets too."""
    sweep = cli.load_module(path, "--sweep")
    name = f"--sweep={path}: get_sweep()"
    if hasattr(sweep, "get_sweep"):
        said = cli.call(sweep.get_sweep, name=name)
    elif hasattr(sweep, "get_config"):
        said = path, [{}]
    else:
        raise UserError(f"--sweep={path} defines no get_sweep(), and no get_config() of a single run")
    pair = isinstance(said, (tuple, list)) and len(said) == 2 and isinstance(said[0], (str, os.PathLike))
    jobs = cli.call(_jobs, path, said[1], name=name) if pair else None
    if jobs is None:
        raise UserError(f"{name} must return (config file, grid or list of dicts), not {said!r:.200}")
    config_file = os.fspath(said[0])
    base = cli.load_module(config_file, f"the config of --sweep={path}")
    given = _overrides(base, config_flags) if config_flags else {}
    for job in jobs:
        for field in given.keys() & job.keys():
            raise UserError(f"--config.{field}: the sweep file sets it too ({field}={job[field]!r}); change it there")
    return config_file, base, [given | job for job in jobs]


def _jobs(path: str, varied: Any) -> list[dict] | None:
    """The overrides of each job of a grid or a list; None for anything else."""
    if isinstance(varied, dict):
        for field, values in varied.items():
            if isinstance(values, str) or not isinstance(values, collections.abc.Iterable):
                raise UserError(f"--sweep={path}: in a grid, {field!r} must have a list of values, not {values!r}")
        varied = [dict(zip(varied, values)) for values in itertools.product(*varied.values())]
    if isinstance(varied, str) or not isinstance(varied, collections.abc.Iterable):
        return None
    varied = list(varied)
    if not all(isinstance(job, dict) and all(isinstance(field, str) for field in job) for job in varied):
        return None
    return [{field: plain(value) for field, value in job.items()} for job in varied]


def plain(value: Any) -> Any:
    """A value as configs hold it: lists, which JSON makes of tuples, as tuples, and numbers and arrays of numpy as
    Python's own."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value


def _overrides(base: types.ModuleType, arguments: Sequence[str]) -> dict:
    """{field: value} of --config flags, parsed as jmoe.train parses them."""
    nothing = {found[1]: None for found in map(cli.NONE.fullmatch, arguments) if found}
    cli.check_config_flags(arguments, cli.config_of(base))
    arguments = ["", *(argument for argument in arguments if not cli.NONE.fullmatch(argument))]
    values = flags.FlagValues()
    try:
        config = resolve(base, nothing)
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=arguments)
        if left := values(arguments)[1:]:
            raise UserError(f"unexpected argument {left[0]!r}: every option is a flag, --name=value")
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"--config has no such field or value: {cli.one_line(error)}") from None
    return nothing | values["config"].override_values  # ty: ignore[missing-attribute]  absl types flags as Flag


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's arguments in two: the others, and those that are --config.FIELD flags."""
    others, own, value_follows = [], [], False
    for argument in arguments:
        is_own = re.match(r"--?(no)?config\.", argument) is not None
        (own if is_own or value_follows and not argument.startswith("-") else others).append(argument)
        value_follows = is_own and "=" not in argument
    return others, own
