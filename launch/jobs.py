"""What a sweep is: a Python file whose get_sweep() returns a config file and a list of overrides, one for each job.

A job is one trunk with its branches, run by one `jmoe.train` in DIR/jobs/NAME. NAME ends in a hash of the resolved
config, so the same sweep started twice starts nothing twice.
"""

import dataclasses
import hashlib
import importlib.util
import json
import pathlib
import sys

from ml_collections import config_dict

from jmoe import counts
from jmoe.cli import UserError
from jmoe.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    config_file: str
    overrides: dict
    config: config_dict.ConfigDict
    schedule: Schedule
    folder: pathlib.Path

    @property
    def branches(self):
        return [segment for segment in self.schedule.segments if segment.decays]

    @property
    def training_tokens(self) -> int:
        """Tokens that the job computes: the trunk once and every branch."""
        return sum(self.schedule.tokens_at(s.stop) - self.schedule.tokens_at(s.start) for s in self.schedule.segments)

    @property
    def flops(self) -> int:
        return counts.training_flops(self.config.model, self.training_tokens)

    def results(self) -> dict[str, dict]:
        """Finished branches by name."""
        paths = {branch.name: self.folder / branch.name / "result.json" for branch in self.branches}
        return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}

    def command(self, fingerprint: str) -> list[str]:
        """The argument list of its trainer; no shell ever reads it."""
        flags = [
            f"--config.{field}={value!r}" if not isinstance(value, str) else f"--config.{field}={value}"
            for field, value in self.overrides.items()
        ]
        return [
            sys.executable,
            "-m",
            "jmoe.train",
            f"--config={self.config_file}",
            f"--workdir={self.folder}",
            f"--config.data.fingerprint={fingerprint}",
            *flags,
        ]


def load(path: str, workdir: pathlib.Path) -> list[Job]:
    """The jobs of a sweep file, every config resolved and checked.

    Raises:
      UserError: the file, its config file or an override can't be used.
    """
    sweep = load_module(path, "--sweep")
    if not hasattr(sweep, "get_sweep"):
        raise UserError(f"--sweep={path} defines no get_sweep()")
    config_file, overrides = sweep.get_sweep()
    base = load_module(config_file, f"the config of --sweep={path}")
    jobs = {}
    for override in overrides:
        config = base.get_config().lock()
        try:
            config.update_from_flattened_dict(override)
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            message = " ".join(str(error.args[0] if error.args else error).split())
            raise UserError(f"--sweep={path}: job {override}: {message}") from None
        digest = hashlib.sha256(config.to_json(sort_keys=True).encode()).hexdigest()[:8]
        name = f"d{config.model.d_model}-e{config.model.n_experts}-{digest}"
        jobs[name] = Job(name, config_file, override, config, Schedule(config), workdir / "jobs" / name)
    if not jobs:
        raise UserError(f"--sweep={path} has no job")
    return list(jobs.values())


def load_module(path: str, what: str):
    """The Python file at `path` as a module; UserError, naming it as `what`, where it is none or fails."""
    spec = importlib.util.spec_from_file_location("sweep_" + hashlib.sha256(path.encode()).hexdigest()[:8], path)
    if not path.endswith(".py") or not pathlib.Path(path).is_file():
        raise UserError(f"{what}: {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{what}: {path} fails: {type(error).__name__}: {error}") from None
    return module
