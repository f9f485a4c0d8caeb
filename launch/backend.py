"""A sweep that was started, and the backend that runs its jobs."""

import abc
import dataclasses
import functools
import importlib
import json
import os
import shlex
import types
from collections.abc import Iterable
from typing import Any

from absl import flags
from etils import epath

from jmoe import cli
from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage.files import write_whole
from launch import trust
from launch.jobs import Job, short_hash

SECONDS_TO_SUBMIT = 120.0  # how long a command for slurm or gke waits while another command submits
BACKENDS = ("local", "slurm", "gke")  # those of launch/; a user's backend is the path of a Python file


class Backend(abc.ABC):
    """Runs the jobs of sweeps: launch/NAME.py, or a user's Python file.

    The file holds one subclass, or functions that are named as these methods and take no `self`. It defines its flags
    when it is imported. Only the abstract methods are required. Each method raises UserError if it cannot do its work.

    Attributes:
      name: The value of --backend.
      ON_THIS_MACHINE: Whether `submit` trains and returns when all jobs have ended. If not, a scheduler trains.
      CALLS_ON_DONE: Whether the backend calls hooks.failed, and launch.collect --on_done after the last job.
    """

    name = ""
    ON_THIS_MACHINE = False
    CALLS_ON_DONE = False

    def options(self) -> dict:
        """The values of the backend's flags that sweep.json keeps."""
        return {}

    def check(self, sweep: "Sweep") -> None:  # noqa: B027  a backend may have nothing to check
        """Raises UserError if sweep.options cannot be used."""

    @abc.abstractmethod
    def devices(self, sweep: "Sweep", accelerator: str | None) -> tuple[int | None, float | None]:
        """The number of devices of a job with this --accelerator, and the bytes of memory of each.

        None means not known.
        """

    def ready(self, sweep: "Sweep") -> None:  # noqa: B027  a backend may have no scheduler to ask
        """Raises UserError if the scheduler would refuse the jobs. Called before anything is written."""

    @abc.abstractmethod
    def submit(self, sweep: "Sweep") -> str:
        """Starts every job that is neither done nor started; returns what it did, in words.

        A backend that is not ON_THIS_MACHINE returns at once. Its scheduler then starts `launch.task` for each of
        sweep.trained, with the flags of sweep.programs.
        """

    @abc.abstractmethod
    def states(self, sweep: "Sweep") -> dict[str, str]:
        """The state of each job that the backend has, by name: "running", "failed (why)" or another word."""

    @abc.abstractmethod
    def logs(self, sweep: "Sweep", job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        """The output of a job's trainer.

        Args:
          sweep: The sweep that the job belongs to.
          job: The job.
          rank: Only what this process printed. A backend of functions may lack this argument and the next.
          attempt: Only this try: 1 is the first, -1 the last.
        """

    @abc.abstractmethod
    def cancel(self, sweep: "Sweep", patience: float) -> str:
        """Stops all jobs, those on this machine within `patience` seconds; returns what it did, in words."""

    def cancel_job(self, sweep: "Sweep", job: Job, patience: float) -> str:
        """Stops one job for good; its failure.json has already been written."""
        raise self._unsupported("cannot cancel one job, only all of them")

    def follow(self, sweep: "Sweep", job: Job, rank: int | None) -> Iterable[bytes]:
        """Yields what the job prints, from its beginning until it has ended."""
        raise self._unsupported("knows no --follow")

    def preview(self, sweep: "Sweep") -> str:
        """The text of the jobs to submit, for --dry_run."""
        return ""

    def reason(self, sweep: "Sweep", job: Job) -> str:
        """Why a job did not run, if its own folder does not say so."""
        return ""

    def job_of_task(self, path: str) -> str:
        """The name of the job of the calling task, which runs `launch.task --array=path`."""
        raise self._unsupported("has no tasks that a scheduler starts: it defines no job_of_task")

    def run_task(self, sweep: "Sweep", job: Job) -> int:
        """Trains the job as the scheduler's task; returns the exit code."""
        raise self._unsupported("has no tasks that a scheduler starts: it defines no run_task")

    def _unsupported(self, what: str) -> UserError:
        return UserError(f"--backend={self.name} {what}")


def backend(name: str) -> Backend:
    """The backend `name`; UserError if there is none, or it lacks a method."""
    members = vars(module(name))
    classes = [c for c in members.values() if isinstance(c, type) and issubclass(c, Backend) and c is not Backend]
    kind = classes[-1] if classes else _class_of_functions(members)
    missing = [method for method in vars(Backend) if method in kind.__abstractmethods__]
    if missing:
        raise UserError(f"--backend={name} is no backend: it does not define {', '.join(missing)}")
    engine = kind()
    engine.name = name
    return engine


def _class_of_functions(members: dict[str, Any]) -> type[Backend]:
    """A backend whose methods are the functions of a module that are named as those of Backend."""
    attributes = {}
    for name, value in members.items():
        if hasattr(Backend, name) and not name.startswith("_"):
            attributes[name] = staticmethod(value) if callable(value) else value
    return type("Functions", (Backend,), attributes)


def module(name: str) -> types.ModuleType:
    """Imports the Python file of the backend `name`, which defines its flags; UserError if there is none."""
    if name.endswith(".py"):
        return _load(os.path.abspath(name), "--backend")
    if name not in BACKENDS:
        raise UserError(f"--backend={printable(name)}: choose {', '.join(BACKENDS)}, or the path of a Python file")
    return importlib.import_module(f"launch.{name}")


_load = functools.cache(cli.load_module)  # the flags of a Python file can be defined once


@dataclasses.dataclass
class Sweep:
    """A sweep that was started in `workdir`: what its sweep.json holds.

    Attributes:
      workdir: The sweep's directory.
      file: The sweep file that --sweep named.
      backend: The name of the backend, or the path of its Python file.
      retries: Further tries of a job that died for no known reason and made no progress.
      mix: Of MIXABLE, what runs.csv may hold two versions of.
      options: Those of the backend, those of every sweep (launch/sweep.py), and the "threads" of a local trainer.
      jobs: The jobs, those kept from an earlier form of the sweep included.
      stall_minutes: Minutes without a sign of life after which a trainer is stopped; 0: never.
    """

    workdir: epath.Path
    file: str
    backend: str
    retries: int
    mix: list[str]
    options: dict
    jobs: list[Job]
    stall_minutes: float = 60.0

    def __post_init__(self) -> None:
        if self.backend.endswith(".py"):
            self.backend = os.path.abspath(self.backend)

    @property
    def id(self) -> str:
        """The sweep's name for schedulers; the same for every spelling of the workdir (storage.absolute)."""
        return "jmoe-" + short_hash(os.fspath(self.workdir))

    @functools.cached_property
    def engine(self) -> Backend:
        """The sweep's backend; the same object each time, so that it may keep what its scheduler said.

        Raises:
          UserError: It is a file, perhaps a stranger's, that --backend does not name.
        """
        flag = flags.FLAGS["backend"].value if "backend" in flags.FLAGS else None
        if self.backend.endswith(".py") and os.path.abspath(flag or "") != self.backend:
            raise UserError(
                f"the sweep's backend is a program, which runs only if you name it: --backend={printable(self.backend)}"
            )
        return backend(self.backend)

    @property
    def lock(self) -> epath.Path:
        """The lock (ownership.hold) of whoever changes sweep.json, submits jobs or trains them."""
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
            more = ", ..." if len(jobs) > 10 else ""
            raise UserError(f"--job={beginning} names {len(jobs)} jobs; there are {names}{more}")
        return jobs[0]

    def job(self, name: str) -> Job:
        """The job of that name; UserError if the sweep has none."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise UserError(f"job {name} is not, or no longer, in {self.workdir}/sweep.json")

    def programs(self, job: Job) -> list[str]:
        """The flags by which launch.task gets the programs that the job runs.

        A scheduler keeps them, so that nobody who writes into the workdir can change them.
        """
        arguments = [f"--config={job.config_file}"]
        command = self.options.get("on_failure")
        if command:
            arguments.append(f"--on_failure={shlex.join(command)}")
        return arguments

    def write(self) -> None:
        """Writes sweep.json, and stores its hash outside of the workdir for launch.retry."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("workdir", "jobs")}
        text = json.dumps(fields | {"jobs": {job.name: job.fields() for job in self.jobs}}, indent=1)
        write_whole(self.workdir / "sweep.json", text)
        trust.keep(self.workdir, text)
