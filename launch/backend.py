"""A sweep that was begun, and the backend that runs its jobs."""

import abc
import dataclasses
import functools
import importlib
import json
import os
import shlex
import types
from collections.abc import Iterable

from absl import flags
from etils import epath

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage.files import write_whole
from launch import trust
from launch.jobs import Job, short_hash

SECONDS_TO_SUBMIT = 120.0  # how long a command for slurm or gke waits for another one that is submitting
BACKENDS = ("local", "slurm", "gke")  # those of launch/; a user's own is the path of a Python file


class Backend(abc.ABC):
    """What runs the jobs of sweeps: launch/NAME.py, or a user's Python file.

    The file holds one subclass, or functions that are named as these methods and take no `self`. It defines its flags
    when it is imported. Only the abstract methods must be there. Each raises UserError where it cannot do its work.
    """

    name = ""  # as --backend gives it
    ON_THIS_MACHINE = False  # whether `submit` trains, and returns when all is over; else its scheduler runs `run_task`
    CALLS_ON_DONE = False  # whether it calls hooks.failed, and launch.collect --on_done after the last job

    def options(self) -> dict:
        """What sweep.json keeps of its flags."""
        return {}

    def check(self, sweep: "Sweep") -> None:  # noqa: B027  not each has something to check
        """Raises UserError where sweep.options cannot be used."""

    @abc.abstractmethod
    def devices(self, sweep: "Sweep", accelerator: str | None) -> tuple[int | None, float | None]:
        """The devices of a job, and bytes of memory of each, with this --accelerator; None where that is not known."""

    def ready(self, sweep: "Sweep") -> None:  # noqa: B027  nor a scheduler to ask
        """Raises UserError where its scheduler would not take the jobs; asked before anything is written."""

    @abc.abstractmethod
    def submit(self, sweep: "Sweep") -> str:
        """Starts what is neither done nor started; returns what it did, in words. If not ON_THIS_MACHINE, it returns at
        once, and its scheduler starts `launch.task` for each of sweep.trained, with the flags of sweep.programs."""

    @abc.abstractmethod
    def states(self, sweep: "Sweep") -> dict[str, str]:
        """The jobs that it has by name: "running", "failed (why)" or another word."""

    @abc.abstractmethod
    def logs(self, sweep: "Sweep", job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        """What the trainer of a job printed: of one process, or of one try. A function may lack these two."""

    @abc.abstractmethod
    def cancel(self, sweep: "Sweep", patience: float) -> str:
        """Stops everything, within `patience` seconds where it runs here; returns what it did, in words."""

    def cancel_job(self, sweep: "Sweep", job: Job, patience: float) -> str:
        """Stops one job for good; its failure.json has already been written."""
        raise self._lacks("cannot cancel one job, only all of them")

    def follow(self, sweep: "Sweep", job: Job, rank: int | None) -> Iterable[bytes]:
        """What the job prints, from its beginning until it is over."""
        raise self._lacks("knows no --follow")

    def preview(self, sweep: "Sweep") -> str:
        """For --dry_run: what would be submitted."""
        return ""

    def reason(self, sweep: "Sweep", job: Job) -> str:
        """Why a job did not run, if its own folder does not say so."""
        return ""

    def job_of_task(self, path: str) -> str:
        """The name of the job of the task that asks, which runs `launch.task --array=path`."""
        raise self._lacks("has no tasks that a scheduler starts: it defines no job_of_task")

    def run_task(self, sweep: "Sweep", job: Job) -> int:
        """Trains the job, as the scheduler's task; returns the exit code."""
        raise self._lacks("has no tasks that a scheduler starts: it defines no run_task")

    def _lacks(self, what: str) -> UserError:
        return UserError(f"--backend={self.name} {what}")


def backend(name: str) -> Backend:
    """The backend `name`; UserError if there is none, or it lacks a method."""
    found = module(name)
    own = [c for c in vars(found).values() if isinstance(c, type) and issubclass(c, Backend) and c is not Backend]
    methods = {key: value for key, value in vars(found).items() if hasattr(Backend, key) and key[0] != "_"}
    functions = {key: staticmethod(value) if callable(value) else value for key, value in methods.items()}
    kind = own[-1] if own else type("Functions", (Backend,), functions)
    if missing := [method for method in vars(Backend) if method in kind.__abstractmethods__]:
        raise UserError(f"--backend={name} is no backend: it does not define {', '.join(missing)}")
    engine = kind()
    engine.name = name
    return engine


def module(name: str) -> types.ModuleType:
    """The Python file of the backend `name`; its flags are defined."""
    if name.endswith(".py"):
        return _load(os.path.abspath(name), "--backend")
    if name not in BACKENDS:
        raise UserError(f"--backend={name}: choose {', '.join(BACKENDS)}, or the path of a Python file")
    return importlib.import_module(f"launch.{name}")


_load = functools.cache(cli.load_module)  # the flags of a Python file can be defined once


@dataclasses.dataclass
class Sweep:
    """A sweep begun in `workdir`: what its sweep.json holds."""

    workdir: epath.Path
    file: str
    backend: str
    retries: int  # of a job that died for no known reason and got no further
    mix: list[str]  # of MIXABLE, what runs.csv may hold two versions of
    options: dict  # the backend's own, those that every sweep has (launch/sweep.py), "threads" of each local trainer
    jobs: list[Job]
    stall_minutes: float = 60.0  # without a sign of life, after which a trainer is stopped; 0: never

    def __post_init__(self) -> None:
        if self.backend.endswith(".py"):
            self.backend = os.path.abspath(self.backend)

    @property
    def id(self) -> str:
        """The sweep's name for schedulers; the same for every spelling of the workdir (storage.absolute)."""
        return "jmoe-" + short_hash(os.fspath(self.workdir))

    @property
    def engine(self) -> Backend:
        """Its backend; UserError if it is a file, perhaps a stranger's, that --backend does not name."""
        named = flags.FLAGS["backend"].value if "backend" in flags.FLAGS else None
        if self.backend.endswith(".py") and os.path.abspath(named or "") != self.backend:
            raise UserError(
                f"the sweep's backend is a program, which runs only if you name it: --backend={self.backend}"
            )
        return backend(self.backend)

    @property
    def lock(self) -> epath.Path:
        """The lock that whoever changes sweep.json, submits jobs or trains them holds (ownership.hold)."""
        return self.workdir / "sweep.lock"

    @property
    def trained(self) -> list[Job]:
        """The jobs of the sweep as it is now, without those kept from an earlier form of it."""
        return [job for job in self.jobs if not job.kept]

    def named(self, beginning: str) -> Job:
        """The job whose name begins with `beginning`; UserError if there is none, or several."""
        jobs = [job for job in self.jobs if job.name.startswith(beginning)]
        if len(jobs) != 1 and beginning not in (job.name for job in jobs):
            names = ", ".join(job.name for job in (jobs or self.jobs)[:10])
            raise UserError(f"--job={beginning} names {len(jobs)} jobs; there are {names}{', ...' * (len(jobs) > 10)}")
        return jobs[0]

    def job(self, name: str) -> Job:
        """The job of that name; UserError if the sweep has none."""
        if job := next((job for job in self.jobs if job.name == name), None):
            return job
        raise UserError(f"job {name} is not, or no longer, in {self.workdir}/sweep.json")

    def programs(self, job: Job) -> list[str]:
        """The flags by which launch.task gets the programs that the job runs; a scheduler keeps them, and nobody who
        writes into the workdir can change them."""
        named = [f"--config={job.config_file}"]
        if command := self.options.get("on_failure"):
            named.append(f"--on_failure={shlex.join(command)}")
        return named

    def write(self) -> None:
        """Writes sweep.json, and keeps its hash outside of the workdir for launch.retry."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("workdir", "jobs")}
        text = json.dumps(fields | {"jobs": {job.name: job.fields() for job in self.jobs}}, indent=1)
        write_whole(self.workdir / "sweep.json", text)
        trust.keep(self.workdir, text)
