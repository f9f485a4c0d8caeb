"""Makes the configs of a sweep's jobs, ten thousand of them in seconds.

Jobs are a family if they differ only in fields that the compiled step does not depend on: seed, budgets, learning rate
(`OWN` in configs/joint_moe.py). A family's config is made and counted once; a job's config is a copy of it with the
job's own fields. A field that the config file computes, or computes others from, is not own.
"""

import functools
import hashlib
import json

from ml_collections import ConfigDict, FieldReference

from jmoe import cli
from jmoe.config import counts
from jmoe.config.fields import FIELDS, record_of
from jmoe.run.schedule import Schedule


class Plain(dict):
    """A config as nested dicts whose entries are attributes too; it reads ten times as fast as a ConfigDict."""

    def __getattr__(self, name: str):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def replaced(self, name: str, value) -> "Plain":
        """A copy in which the field with that dotted name is `value`."""
        section, _, rest = name.partition(".")
        return Plain(self | {section: self[section].replaced(rest, value) if rest else value})


class Families:
    """Makes the config of each job from `base`, the module of the config file, and the job's overrides."""

    def __init__(self, base):
        self._base, self._families = base, {}

    def of(self, overrides: dict) -> tuple["Family", Plain, dict]:
        """(family, config, record) of a job. Raises what resolve(base, overrides) does."""
        own = {name: value for name, value in overrides.items() if name in FIELDS and FIELDS[name].own}
        shared = {name: value for name, value in overrides.items() if name not in own}
        family = self._family(shared)
        if any(family.computes_with(name) for name in own):
            family, own = self._family(overrides), {}
        config, record = family.config, family.record
        for name, value in own.items():
            value = family.taken(name, value)
            config, record = config.replaced(name, value), record.replaced(name, json.loads(json.dumps(value)))
        family.schedule(config)  # refuses an impossible config before parameters are counted
        return family, config, record

    def _family(self, overrides: dict) -> "Family":
        key = repr(sorted(overrides.items()))
        if key not in self._families:
            self._families[key] = Family(resolve(self._base, overrides))
        return self._families[key]


class Family:
    """What the jobs of a family share: config, record and parameter counts."""

    def __init__(self, config: ConfigDict):
        self._config, self._taken, self._schedules = config, {}, {}
        self.config, self.record = _plain(config.to_dict()), _plain(record_of(config))

    @functools.cached_property
    def n_active(self) -> int:
        return counts.n_active(self._config.model)

    @functools.cached_property
    def n_total(self) -> int:
        return counts.n_total(self._config.model)

    def computes_with(self, name: str) -> bool:
        """Whether other fields may follow from this one, or this one from others."""
        config, *path = self._config, *name.split(".")
        for part in path:
            value = dict(config.items(preserve_field_references=True)).get(part)
            if isinstance(value, FieldReference):
                return True
            config = value
        return False

    def taken(self, name: str, value):
        """The value that the config stores when the field is given `value`: in a float field, 1 becomes 1.0."""
        key = name, repr(value)
        if key not in self._taken:
            *sections, field = name.split(".")
            holder = self._config
            for section in sections:
                holder = holder[section]
            before = holder[field]
            self._config.update_from_flattened_dict({name: value})
            self._taken[key] = holder[field]
            holder[field] = before
        return self._taken[key]

    def schedule(self, config: Plain) -> Schedule:
        """The schedule of one job's config; jobs that differ only in their seed share it."""
        seed = "" if FIELDS["seed"].allowed[1](config.seed) else config.seed  # the schedule does not depend on it
        key = repr((config.n_tokens, config.optimizer, seed))
        if key not in self._schedules:
            self._schedules[key] = Schedule(config)
        return self._schedules[key]


def _plain(tree: dict) -> Plain:
    return Plain({name: _plain(value) if isinstance(value, dict) else value for name, value in tree.items()})


def resolve(base, overrides: dict):
    """The config of a module with get_config(), with the overrides of one job; UserError if that makes no config, and
    what ConfigDict raises for an override."""
    config = cli.config_of(base).lock()
    config.update_from_flattened_dict(overrides)
    return config


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
