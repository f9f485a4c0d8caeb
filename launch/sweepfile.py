"""DIR/sweep.json: what is known of a sweep that was begun, and what becomes of it when it is started again.

The other commands read sweep.json, so that they need not resolve every config. Each job's folder holds the job's part
of it too (job.json), written when its trainer is first started. A lost or damaged sweep.json is rebuilt from these
files: no run is forgotten, and none is taken for one of newer code.

When an edited sweep is started again, it trains what it says now. A job that it still has, with the same config, goes
on from its checkpoints with the code at hand. One that it no longer has, because the sweep or a config was edited, is
kept: its finished runs stay in runs.csv, and it is trained no further. Changed code and kept jobs both need --mix,
because runs.csv then holds two versions.
"""

import json
import math
import os
import sys
from typing import Any

from absl import flags
from etils import epath

from jmoe.errors import UserError
from jmoe.storage.files import absolute, make_folder, of_each, read_bytes, set_aside, write_whole
from jmoe.version import code_version
from launch import trust
from launch.backend import Sweep
from launch.jobs import Files, Job

UNKNOWN = "unknown"  # the code of a run whose code was not recorded
NUMBERS = ("dollars_per_hour", "threads", "together", "workers", "n_slices", "n_chips")  # among the options
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what parsing a damaged file raises

flags.disclaim_key_flags()  # --help lists them as the command's own


def define_flags(job: str = "", **options: Any) -> None:
    """Defines the flags by which a command names a begun sweep, --workdir and --backend, and --job, described by `job`,
    where it takes one. They are defined where a command is run, so that the commands can be imported together."""
    flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)
    flags.DEFINE_string("backend", None, "The sweep's backend if that is a Python file, which runs only if named here.")
    if job:
        flags.DEFINE_string("job", None, job, **options)


def chosen() -> Sweep:
    """The sweep of --workdir; UserError if there is none."""
    return read(absolute(flags.FLAGS.workdir))


def chosen_to_run() -> Sweep:
    """The sweep of --workdir, for a command that runs the programs which its sweep.json names. UserError where that is
    not the file that this user's own start wrote, nor the one that --trust names (launch/trust.py)."""
    workdir = absolute(flags.FLAGS.workdir)
    sweep, text = _read(workdir)
    trust.check(workdir, text, _programs(sweep), flags.FLAGS.trust)
    return sweep


def define_trust() -> None:
    """Defines --trust, for a command that calls chosen_to_run."""
    flags.DEFINE_string("trust", None, "Beginning of the SHA-256 of a sweep.json that another start wrote.")


def _programs(sweep: Sweep) -> list[str]:
    """The programs and options of a sweep.json, in words."""
    configs = sorted({job.config_file for job in sweep.trained})
    options = [f"{name} {value}" for name, value in sweep.options.items() if value and name not in NUMBERS]
    return [f"the config {', '.join(configs)}", *options]


def read(workdir: epath.Path) -> Sweep:
    """The sweep begun in `workdir`; UserError if none was, or its sweep.json is damaged."""
    return _read(workdir)[0]


def _read(workdir: epath.Path) -> tuple[Sweep, str]:
    """The sweep begun in `workdir`, and its sweep.json; UserError as for `read`."""
    path = workdir / "sweep.json"
    try:
        text = read_bytes(path).decode()
        return _parse(workdir, text), text
    except FileNotFoundError:
        raise UserError(f"--workdir={os.fspath(workdir)} holds no sweep: there is no {path}") from None
    except MALFORMED as error:
        raise UserError(
            f"{path} is damaged ({error}); the command that started the sweep, given again, makes it anew from the "
            "jobs' folders and goes on"
        ) from None


def _parse(workdir: epath.Path, text: str) -> Sweep:
    fields = json.loads(text)
    jobs = fields.pop("jobs")
    if not jobs or not isinstance(fields["options"], dict):
        raise ValueError("without jobs, or without options")
    numbers = {f"options.{name}": fields["options"].get(name) for name in NUMBERS}
    numbers |= {"retries": fields["retries"], "stall_minutes": fields.get("stall_minutes")}
    for name, value in numbers.items():
        kind = int | float if name in ("options.dollars_per_hour", "stall_minutes") else int
        if value is not None and not (isinstance(value, kind) and 0 <= value < math.inf):
            raise ValueError(f"{name} is {value!r}")
    for name in ("sbatch", "on_done", "on_failure"):
        words = fields["options"].get(name)
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise ValueError(f"options.{name} is {words!r:.60}")
    return Sweep(workdir, jobs=[Job.of(name, workdir, values) for name, values in jobs.items()], **fields)


def _read_or_rebuild(workdir: epath.Path, backend_name: str, files: Files) -> Sweep | None:
    """The sweep begun in `workdir`, or None. If sweep.json is lost, rebuilt from the jobs' `files`, without the flags
    of earlier starts and for this backend, and says so. Only for the workdir's owner: moves a damaged one aside."""
    path = workdir / "sweep.json"
    try:
        return _parse(workdir, read_bytes(path).decode())
    except FileNotFoundError:
        what = "is missing"
    except MALFORMED as error:
        what = f"is damaged ({error}) and kept as {os.fspath(set_aside(path, workdir))}"
    jobs = [job for name in sorted(files) if (job := _job_in(name, workdir, files[name]))]
    if jobs:
        print(f"{os.fspath(path)} {what}: {len(jobs)} jobs are known from their folders", file=sys.stderr)
    return Sweep(workdir, "", backend_name, 1, [], {}, jobs) if jobs else None


def write_job(job: Job) -> None:
    """Writes what sweep.json says of the job to job.json in the job's folder."""
    path, text = job.folder / "job.json", json.dumps(job.fields(), indent=1)
    if not path.exists() or path.read_text() != text:
        make_folder(job.folder)
        write_whole(path, text)


def _job_in(name: str, workdir: epath.Path, files: set[str]) -> Job | None:
    """The job whose folder has these `files`: as job.json says, else as the names of its segments do; None if none."""
    folder = workdir / "jobs" / name
    if "job.json" in files:
        try:
            return Job.of(name, workdir, json.loads(read_bytes(folder / "job.json")))
        except (FileNotFoundError, *MALFORMED) as error:
            print(f"{os.fspath(folder)}/job.json is damaged ({error})", file=sys.stderr)
    segments = sorted(file.removesuffix("/metrics.jsonl") for file in files if file.endswith("/metrics.jsonl"))
    branches = [segment for segment in segments if segment.removeprefix("branch-").isdigit()]
    budgets = {branch: int(branch.removeprefix("branch-")) for branch in branches}
    return Job(name, folder, "", {}, 0, 0, 0, 0, budgets, {}, code=[UNKNOWN]) if segments else None


def resume(sweep: Sweep, files: Files) -> None:
    """Gives the sweep's jobs the code versions and the corpus of their earlier starts in this workdir; jobs that it no
    longer has join it as kept ones. `files` as jobs.files_of lists them. UserError where the code or the configs differ
    from those of jobs that have begun, and --mix does not allow it; or another backend still has jobs."""
    code = code_version()
    for job in sweep.jobs:
        job.code = [code]
    if (before := _read_or_rebuild(sweep.workdir, sweep.backend, files)) is None:
        return
    sweep.mix = sorted({*sweep.mix, *before.mix})
    sweep.options |= {name: before.options[name] for name in ("threads",) if name in before.options}
    active = before.engine.states(before)
    if before.backend != sweep.backend and active:
        raise UserError(f"{len(active)} jobs are still with --backend={before.backend}; launch.cancel stops them")
    earlier = {job.name: job for job in before.jobs if job.name in active or job.name in files}
    others = sorted({version for job in earlier.values() for version in job.code} - {code})
    if others and "code" not in sweep.mix:
        raise UserError(
            f"{os.fspath(sweep.workdir)} was begun with code {', '.join(others)}, and this is {code}: its runs would "
            "differ in more than the sweep says. Take another --workdir, that code, or --mix=code, which goes on with "
            "this one"
        )
    names = {job.name for job in sweep.jobs}
    if dropped := [job for name, job in earlier.items() if name not in names]:
        _check_dropped(sweep, dropped, active, files)
    for job in dropped:
        job.kept = True
    of_each(lambda job: job.done(files), sweep.jobs, sweep.workdir)
    for job in sweep.jobs:
        if job.name in earlier:
            codes, job.corpus = earlier[job.name].code, earlier[job.name].corpus
            job.code = codes if job.done(files) or codes[-1] == code else [*codes, code]
    sweep.jobs += dropped


def _check_dropped(sweep: Sweep, dropped: list[Job], active: dict[str, str], files: Files) -> None:
    names = ", ".join(job.name for job in dropped[:3]) + ", ..." * (len(dropped) > 3)
    if "config" not in sweep.mix:
        raise UserError(
            f"{len(dropped)} jobs in {os.fspath(sweep.workdir)} are not of this sweep any more ({names}): a config "
            "was edited, the sweep or its --config flags. Undo that, take another --workdir, or --mix=config, which "
            "trains what the sweep says now and keeps what was trained"
        )
    still = [job.name for job in dropped if job.name in active]
    if still and not sweep.engine.ON_THIS_MACHINE:
        raise UserError(
            f"{len(still)} jobs that are not of this sweep any more are with --backend={sweep.backend} still "
            f"({', '.join(still[:3])}); launch.cancel stops them"
        )
    unfinished = sum(len(job.budgets) - len(job.results(files)) for job in dropped)
    print(
        f"{len(dropped)} jobs of an earlier form of the sweep are kept ({names}): their finished runs stay in runs.csv"
        + f", {unfinished} unfinished ones are trained no further" * bool(unfinished),
        file=sys.stderr,
    )
