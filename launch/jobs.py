"""What a sweep is: a Python file whose get_sweep() returns a config file and what to vary in it.

What varies is either a grid, {field: values}, every combination of which is a job, or a list with a dict of overrides
for each job. A job is one trunk with its branches, run by one `jmoe.train` in DIR/jobs/NAME. NAME ends in a hash of the
resolved config, so the same sweep started twice starts nothing twice. All that is known of the jobs stands in
DIR/sweep.json; every other command reads it there and resolves no config again.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import pathlib
import sys

from etils import epath

from jmoe import counts
from jmoe.check import record_of
from jmoe.cli import UserError
from jmoe.schedule import Schedule, alike
from jmoe.storage import Damaged, is_remote, read_sealed, write_whole

MIXABLE = ("code", "corpus", "config")


@dataclasses.dataclass
class Job:
    name: str
    folder: epath.Path
    config_file: str
    overrides: dict
    d_model: int
    n_experts: int
    n_active: int
    n_total: int
    budgets: dict[str, int]  # branch: n_tokens as the config names them
    segments: dict[str, list[int]]  # trunk or branch: the tokens [first, last) that it trains on
    shape: str = ""  # equal for jobs that can be trained together
    corpus: str = ""  # fingerprint
    code: list[str] = dataclasses.field(default_factory=list)  # every version that trained it, in order

    @property
    def training_tokens(self) -> int:
        """Tokens that the job computes: the trunk once and every branch."""
        return sum(last - first for first, last in self.segments.values())

    @property
    def flops(self) -> int:
        return 6 * self.n_active * self.training_tokens

    @property
    def here(self) -> pathlib.Path:
        """Its folder on this machine, for lock and log: the job's own, or one in the cache when that is on gs://."""
        if not is_remote(self.folder):
            return pathlib.Path(self.folder)
        from jmoe.corpus import cache_dir

        return cache_dir() / "sweeps" / short_hash(os.fspath(self.folder.parent)) / self.name

    @property
    def log(self) -> pathlib.Path:
        return self.here / "log.txt"

    def results(self) -> dict[str, dict]:
        """Finished branches by name; one whose result.json is damaged is not finished: its trainer writes it anew."""
        found = {}
        for branch in self.budgets:
            with contextlib.suppress(Damaged):
                found[branch] = read_sealed(self.folder / branch / "result.json")
        return {branch: result for branch, result in found.items() if result is not None}

    def done(self) -> bool:
        return len(self.results()) == len(self.budgets)

    def progress(self) -> tuple[int, float | None]:
        """Tokens trained so far over trunk and branches, and the newest cross-entropy."""
        tokens, newest = 0, (0.0, None)
        for segment, (first, _) in self.segments.items():
            path = self.folder / segment / "metrics.jsonl"
            try:
                line = json.loads(_tail(path).split(b"\n")[-2])
                tokens += line["n_tokens"] - first
                newest = max(newest, (path.stat().mtime or 0, line["cross_entropy"]))
            except (OSError, IndexError, ValueError):
                continue
        return tokens, newest[1]

    def failure(self) -> dict:
        """{"cause", "tries", "tokens", "for_good"} of its last failure since the sweep was started; empty if none."""
        try:
            return json.loads((self.folder / "failure.json").read_text())
        except (OSError, ValueError):
            return {}

    def command(self) -> list[str]:
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
            f"--workdir={os.fspath(self.folder)}",
            f"--config.data.fingerprint={self.corpus}",
            *flags,
        ]


@dataclasses.dataclass
class Group:
    """Jobs that one trainer trains: a single one, or several of equal shape in one compiled step."""

    jobs: list[Job]

    @property
    def name(self) -> str:
        return self.jobs[0].name

    @property
    def log(self) -> pathlib.Path:
        return self.jobs[0].log

    @property
    def flops(self) -> int:
        return sum(job.flops for job in self.jobs)

    def done(self) -> bool:
        return all(job.done() for job in self.jobs)

    def command(self) -> list[str]:
        """The argument list of the trainer."""
        if len(self.jobs) == 1:
            return self.jobs[0].command()
        workdir = os.fspath(self.jobs[0].folder.parent.parent)
        names = [f"--job={job.name}" for job in self.jobs]
        return [sys.executable, "-m", "launch.together", f"--workdir={workdir}", *names]


def jobs_of(groups) -> list[Job]:
    return [job for group in groups for job in group.jobs]


@dataclasses.dataclass
class Sweep:
    """A sweep begun in `workdir`, as its sweep.json tells."""

    workdir: epath.Path
    file: str
    backend: str
    retries: int  # of a job that died without explaining itself
    mix: list[str]  # of MIXABLE, what runs.csv may hold two versions of
    options: dict  # the backend's own
    jobs: list[Job]

    @property
    def id(self) -> str:
        """What the schedulers know it by."""
        return "jmoe-" + short_hash(os.fspath(self.workdir))

    @property
    def engine(self):
        """The module that runs it: launch.local, launch.slurm or launch.gke."""
        return importlib.import_module(f"launch.{self.backend}")

    def groups(self) -> list[Group]:
        """The jobs, up to options["together"] of equal shape in a group, spread evenly; whatever of them is done."""
        together, shapes, found = self.options.get("together", 1), {}, []
        for job in self.jobs:
            shapes.setdefault((job.shape or job.name, job.corpus), []).append(job)
        for jobs in shapes.values():
            jobs.sort(key=lambda job: -job.training_tokens)  # those of one length side by side
            size = math.ceil(len(jobs) / math.ceil(len(jobs) / together))
            found += [Group(jobs[first : first + size]) for first in range(0, len(jobs), size)]
        return found

    def group(self, names) -> Group:
        """The jobs of these names.

        Raises:
          UserError: the sweep has no such job.
        """
        jobs = {job.name: job for job in self.jobs}
        if gone := [name for name in names if name not in jobs]:
            raise UserError(f"job {gone[0]} is not, or no longer, in {self.workdir}/sweep.json")
        return Group([jobs[name] for name in names])

    def write(self) -> None:
        jobs = {}
        for job in self.jobs:
            jobs[job.name] = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
            del jobs[job.name]["name"], jobs[job.name]["folder"]
        fields = {name: getattr(self, name) for name in ("file", "backend", "retries", "mix", "options")}
        write_whole(self.workdir / "sweep.json", json.dumps(fields | {"jobs": jobs}, indent=1))


def read(workdir: epath.Path) -> Sweep:
    """The sweep begun in `workdir`.

    Raises:
      UserError: none was, or its sweep.json is damaged.
    """
    path = workdir / "sweep.json"
    try:
        fields = json.loads(path.read_text())
        jobs = fields.pop("jobs")
        return Sweep(workdir, jobs=[_job_from(name, workdir, values) for name, values in jobs.items()], **fields)
    except FileNotFoundError:
        raise UserError(f"--workdir={os.fspath(workdir)} holds no sweep: there is no {path}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}); start the sweep again to write it anew") from None


def _job_from(name, workdir, values):
    values["overrides"] = {field: _tuples(value) for field, value in values["overrides"].items()}
    return Job(name, workdir / "jobs" / name, **values)


def _tuples(value):
    """JSON turned the tuples of a config into lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def load(path: str, workdir: epath.Path) -> tuple[list[Job], dict]:
    """The jobs of a sweep file with their configs by name, every one resolved and checked.

    Raises:
      UserError: the file, its config file or an override can't be used.
    """
    sweep = load_module(path, "--sweep")
    if not hasattr(sweep, "get_sweep"):
        raise UserError(f"--sweep={path} defines no get_sweep()")
    try:
        config_file, varied = sweep.get_sweep()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--sweep={path}: get_sweep() must return (config file, grid or list of dicts): {error}"
        ) from None
    if isinstance(varied, dict):
        varied = [dict(zip(varied, values)) for values in itertools.product(*varied.values())]
    base = load_module(config_file, f"the config of --sweep={path}")
    jobs, configs = {}, {}
    for overrides in varied:
        try:
            config = resolve(base, overrides)
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            message = " ".join(str(error.args[0] if error.args else error).split())
            raise UserError(f"--sweep={path}: job {overrides}: {message}") from None
        model, schedule = config.model, Schedule(config)
        segments = {}  # the trunk's pieces share a folder
        for s in schedule.segments:
            first = segments.get(s.name, [schedule.tokens_at(s.start)])[0]
            segments[s.name] = [first, schedule.tokens_at(s.stop)]
        name = f"d{model.d_model}-e{model.n_experts}-{digest(record_of(config))}"
        jobs[name] = Job(
            name,
            workdir / "jobs" / name,
            config_file,
            dict(overrides),
            model.d_model,
            model.n_experts,
            counts.n_active(model),
            counts.n_total(model),
            {f"branch-{budget}": budget for budget in config.n_tokens},
            segments,
            short_hash(json.dumps(alike(config), sort_keys=True)),
        )
        configs[name] = config
    if not jobs:
        raise UserError(f"--sweep={path} has no job")
    return list(jobs.values()), configs


def resolve(base, overrides: dict):
    """The config of a module with get_config(), with the overrides of one job."""
    config = base.get_config().lock()
    config.update_from_flattened_dict(overrides)
    return config


def config_of(job: Job):
    """The job's config as its command gives it to the trainer.

    Raises:
      UserError: the config file gives another config than the one the job was named after.
    """
    config = resolve(load_module(job.config_file, f"job {job.name}"), job.overrides)
    found = digest(record_of(config))
    if found != job.name[-8:]:
        raise UserError(
            f"{job.config_file} was edited since job {job.name} was made: its config is {found} now; undo that, "
            "or start the sweep again with --mix=config"
        )
    config.data.fingerprint = job.corpus
    return config


def digest(config: dict) -> str:
    """Eight hex digits that tell two configs apart, from a config in JSON types."""
    return short_hash(json.dumps(config, sort_keys=True))


def code_version() -> str:
    """What the trainer is: a hash of its source, and jax's version."""
    folder = pathlib.Path(counts.__file__).parent
    sources = "".join(f"{path.name}\n{path.read_text()}" for path in sorted(folder.rglob("*.py")))
    return f"{short_hash(sources)}-jax{importlib.metadata.version('jax')}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def load_module(path: str, what: str):
    """The Python file at `path` as a module; UserError, naming it as `what`, where it is none or fails."""
    spec = importlib.util.spec_from_file_location("sweep_" + short_hash(path), path)
    if not path.endswith(".py") or not pathlib.Path(path).is_file():
        raise UserError(f"{what}: {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{what}: {path} fails: {type(error).__name__}: {error}") from None
    return module


def _tail(path, n_bytes: int = 4096) -> bytes:
    """The file's end; the whole file where it is an object."""
    if is_remote(path):
        return path.read_bytes()
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - n_bytes))
        return file.read()
