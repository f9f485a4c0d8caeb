"""What is known of a sweep that was begun: DIR/sweep.json, which every command reads, so that none resolves a config.

Each job's folder holds the same of its job (job.json), written when its trainer is first started. A sweep.json that is
lost or damaged is made again from these: no run is forgotten, and none is taken for one of newer code.
"""

import dataclasses
import importlib
import json
import math
import os
import sys

from etils import epath

from jmoe.errors import UserError
from jmoe.storage.files import set_aside, write_whole
from launch.jobs import Group, Job, short_hash

UNKNOWN = "unknown"  # the code of a run of which nothing is recorded


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
    stall_minutes: float = 60.0  # without a sign of life, after which a trainer is stopped; 0: never

    @property
    def id(self) -> str:
        """What the schedulers know it by; the same for every spelling of the workdir (storage.absolute)."""
        return "jmoe-" + short_hash(os.fspath(self.workdir))

    @property
    def engine(self):
        """The module that runs it: launch.local, launch.slurm or launch.gke."""
        return importlib.import_module(f"launch.{self.backend}")

    @property
    def lock(self) -> epath.Path:
        """What ownership.hold is given by whoever changes sweep.json, submits jobs or trains them."""
        return self.workdir / "sweep.lock"

    @property
    def trained(self) -> list[Job]:
        """The jobs of the sweep as it is now, without those kept from an earlier form of it."""
        return [job for job in self.jobs if not job.kept]

    def groups(self) -> list[Group]:
        """`trained`, up to options["together"] of equal shape in a group, spread evenly; whatever of them is done."""
        together, shapes, found = self.options.get("together", 1), {}, []
        for job in self.trained:
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

    def text(self) -> str:
        """What sweep.json holds."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("workdir", "jobs")}
        return json.dumps(fields | {"jobs": {job.name: job.fields() for job in self.jobs}}, indent=1)

    def write(self) -> None:
        write_whole(self.workdir / "sweep.json", self.text())


def read(workdir: epath.Path) -> Sweep:
    """The sweep begun in `workdir`.

    Raises:
      UserError: none was, or its sweep.json is damaged.
    """
    path = workdir / "sweep.json"
    try:
        return _parse(workdir, path.read_text())
    except FileNotFoundError:
        raise UserError(f"--workdir={os.fspath(workdir)} holds no sweep: there is no {path}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); the command that started the sweep, given again, makes it anew from the "
            "jobs' folders and goes on"
        ) from None


def begun(workdir: epath.Path, backend: str) -> Sweep | None:
    """The sweep begun in `workdir`, or None; from the jobs' folders where sweep.json is lost, which is told.

    Called by the workdir's owner: a damaged sweep.json is moved aside. Lost with it are the flags of earlier starts, its
    backend among them, which is taken to be `backend`.
    """
    path = workdir / "sweep.json"
    try:
        return _parse(workdir, path.read_text())
    except FileNotFoundError:
        what = "is missing"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"is damaged ({error}) and kept as {os.fspath(set_aside(path, workdir))}"
    jobs = [job for folder in _folders(workdir / "jobs") if (job := _job_in(folder, workdir))]
    if jobs:
        print(f"{os.fspath(path)} {what}: {len(jobs)} jobs are known from their folders", file=sys.stderr)
    return Sweep(workdir, "", backend, 1, [], {}, jobs) if jobs else None


def write_job(job: Job) -> None:
    """Leaves in the job's folder what sweep.json says of it."""
    path, text = job.folder / "job.json", json.dumps(job.fields(), indent=1)
    if not path.exists() or path.read_text() != text:
        job.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def _folders(path: epath.Path) -> list[epath.Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.exists() else []


def _job_in(folder: epath.Path, workdir: epath.Path) -> Job | None:
    try:
        return Job.of(folder.name, workdir, json.loads((folder / "job.json").read_text()))
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"{os.fspath(folder)}/job.json is damaged ({error})", file=sys.stderr)
    segments = [entry.name for entry in _folders(folder) if (entry / "metrics.jsonl").exists()]
    branches = [name for name in segments if name.removeprefix("branch-").isdigit()]
    budgets = {name: int(name.removeprefix("branch-")) for name in branches}
    return Job(folder.name, folder, "", {}, 0, 0, 0, 0, budgets, {}, code=[UNKNOWN]) if segments else None


def _parse(workdir: epath.Path, text: str) -> Sweep:
    fields = json.loads(text)
    jobs = fields.pop("jobs")
    return Sweep(workdir, jobs=[Job.of(name, workdir, values) for name, values in jobs.items()], **fields)
