"""DIR/sweep.json: what is known of a sweep that was started, and what happens when it is started again.

The other commands read sweep.json, so that they need not resolve every config. Each job's folder holds the job's part
of it too (job.json), written when its trainer first starts. A lost or damaged sweep.json is rebuilt from these files:
no run is lost, and none counts as one of newer code.

When an edited sweep is started again, it trains what it says now. A job that it still has, with the same config,
continues from its checkpoints with the code at hand. A job that it no longer has, because the sweep or a config was
edited, is kept: its finished runs stay in runs.csv, and it is trained no further. Changed code and kept jobs both need
--mix, because runs.csv then holds two versions.
"""

import json
import os
import sys
from typing import Any

from absl import flags
from etils import epath

from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage.files import absolute, is_remote, make_folder, of_each, read_bytes, set_aside, write_whole
from jmoe.version import code_version
from launch import trust
from launch.backend import Sweep
from launch.job_files import is_count, is_number, shown
from launch.jobs import Files, Job

UNKNOWN = "unknown"  # the code of a run whose code was not recorded
NUMBERS = ("dollars_per_hour", "threads", "together", "workers", "n_slices", "n_chips")  # the options that are numbers
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what parsing a damaged file raises

flags.disclaim_key_flags()  # --help lists them as the command's own


def define_flags(job: str = "", **options: Any) -> None:
    """Defines the flags that name a sweep: --workdir, --backend and, for a command that takes it, --job.

    They are defined when a command runs, so that the commands can be imported together.

    Args:
      job: The help text of --job; "" for a command without it.
      **options: Further arguments of its definition.
    """
    flags.DEFINE_string("workdir", None, "Directory of the sweep: a folder or gs://...", required=True)
    flags.DEFINE_string("backend", None, "Python file of the sweep's backend. It runs only if you name it here.")
    if job:
        flags.DEFINE_string("job", None, job, **options)


def chosen() -> Sweep:
    """The sweep of --workdir; UserError if there is none."""
    return read(absolute(flags.FLAGS.workdir))


def chosen_to_run() -> Sweep:
    """The sweep of --workdir, for a command that runs the programs which its sweep.json names.

    Raises:
      UserError: The file is neither the one that a start of this user wrote, nor the one that --trust names
        (launch/trust.py).
    """
    workdir = absolute(flags.FLAGS.workdir)
    sweep, text = _read(workdir)
    trust.check(workdir, text, _programs(sweep), flags.FLAGS.trust)
    return sweep


def define_trust() -> None:
    """Defines --trust, for a command that calls chosen_to_run."""
    flags.DEFINE_string(
        "trust", None, "Beginning of the SHA-256 of a sweep.json to trust, though another start wrote it."
    )


def _programs(sweep: Sweep) -> list[str]:
    """The programs and options of a sweep.json, in words."""
    configs = sorted({job.config_file for job in sweep.trained})
    options = [f"{name} {value}" for name, value in sweep.options.items() if value and name not in NUMBERS]
    return [f"the config {', '.join(configs)}", *options]


def read(workdir: epath.Path) -> Sweep:
    """The sweep that was started in `workdir`; UserError if none was, or its sweep.json is damaged."""
    return _read(workdir)[0]


def _read(workdir: epath.Path) -> tuple[Sweep, str]:
    """The sweep that was started in `workdir`, and the text of its sweep.json; UserError as for `read`."""
    path = workdir / "sweep.json"
    try:
        text = read_bytes(path).decode()
        return _parse(workdir, text), text
    except FileNotFoundError:
        raise UserError(f"--workdir={os.fspath(workdir)} holds no sweep: there is no {path}") from None
    except MALFORMED as error:
        raise UserError(
            f"{path} is damaged ({printable(str(error))}); the command that started the sweep, given again, rebuilds "
            "it from the jobs' folders and continues"
        ) from None


def _parse(workdir: epath.Path, text: str) -> Sweep:
    """The sweep that a sweep.json describes; raises one of MALFORMED if it describes none."""
    fields = json.loads(text)
    jobs = fields.pop("jobs")
    if not jobs or not isinstance(fields["options"], dict):
        raise ValueError("without jobs, or without options")
    _check_types(fields)
    return Sweep(workdir, jobs=[Job.from_fields(name, workdir, values) for name, values in jobs.items()], **fields)


def _check_types(fields: dict) -> None:
    """Raises ValueError if a field of sweep.json that must be a number, text or a list of words is something else."""
    options = fields["options"]
    counts = {f"options.{name}": options.get(name) for name in NUMBERS if name != "dollars_per_hour"}
    counts = {name: value for name, value in counts.items() if value is not None}
    for name, value in (counts | {"retries": fields["retries"]}).items():
        if not is_count(value):
            raise ValueError(f"{name} is {shown(value)}, expected a count")
    amounts = {
        "options.dollars_per_hour": options.get("dollars_per_hour"),
        "stall_minutes": fields.get("stall_minutes"),
    }
    for name, value in amounts.items():
        if value is not None and not (is_number(value) and value >= 0):
            raise ValueError(f"{name} is {shown(value)}, expected a number")
    lists = {f"options.{name}": options.get(name) for name in ("sbatch", "on_done", "on_failure")}
    lists = {name: words for name, words in lists.items() if words is not None}
    for name, words in (lists | {"mix": fields["mix"]}).items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{name} is {shown(words)}, expected a list of words")
    for name in ("file", "backend"):
        if not isinstance(fields[name], str):
            raise ValueError(f"{name} is {shown(fields[name])}, expected text")


def _read_or_rebuild(workdir: epath.Path, backend_name: str, files: Files) -> Sweep | None:
    """The sweep that was started in `workdir`, or None.

    If sweep.json is lost, the sweep is rebuilt from the jobs' folders, without the flags of earlier starts; a message
    says so. Only for the workdir's owner, since a damaged sweep.json is moved aside.

    Args:
      workdir: The sweep's directory.
      backend_name: The backend of a rebuilt sweep.
      files: The sweep's files, as jobs.files_of lists them.
    """
    path = workdir / "sweep.json"
    try:
        return _parse(workdir, read_bytes(path).decode())
    except FileNotFoundError:
        what = "is missing"
    except MALFORMED as error:
        what = f"is damaged ({printable(str(error))}) and kept as {os.fspath(set_aside(path, workdir))}"
    folders = [_job_in(name, workdir, files[name]) for name in sorted(files)]
    jobs = [job for job in folders if job is not None]
    if not jobs:
        return None
    print(f"{os.fspath(path)} {what}: {len(jobs)} jobs are known from their folders", file=sys.stderr)
    return Sweep(workdir, file="", backend=backend_name, retries=1, mix=[], options={}, jobs=jobs)


def write_job(job: Job) -> None:
    """Writes what sweep.json says of the job to job.json in the job's folder."""
    path = job.folder / "job.json"
    text = json.dumps(job.fields(), indent=1)
    if not path.exists() or path.read_text() != text:
        make_folder(job.folder)
        write_whole(path, text)


def _job_in(name: str, workdir: epath.Path, files: set[str]) -> Job | None:
    """The job whose folder has these `files`, by its job.json, else by its segments' names; None if none."""
    folder = workdir / "jobs" / name
    if "job.json" in files:
        try:
            return Job.from_fields(name, workdir, json.loads(read_bytes(folder / "job.json")))
        except (FileNotFoundError, *MALFORMED) as error:
            print(f"{os.fspath(folder)}/job.json is damaged ({printable(str(error))})", file=sys.stderr)
    segments = sorted(file.removesuffix("/metrics.jsonl") for file in files if file.endswith("/metrics.jsonl"))
    if not segments:
        return None
    branches = [segment for segment in segments if segment.removeprefix("branch-").isdigit()]
    budgets = {branch: int(branch.removeprefix("branch-")) for branch in branches}
    return Job(
        name=name,
        folder=folder,
        config_file="",
        overrides={},
        d_model=0,
        n_experts=0,
        n_active=0,
        n_total=0,
        budgets=budgets,
        segments={},
        code=[UNKNOWN],
    )


def resume(sweep: Sweep, files: Files) -> None:
    """Gives the sweep's jobs the code versions and the corpus of their earlier starts in this workdir.

    Jobs that the sweep no longer has join it as kept ones.

    Args:
      sweep: The sweep as its file and the flags describe it now.
      files: The sweep's files, as jobs.files_of lists them.

    Raises:
      UserError: The code or the configs differ from those of jobs that have begun, and --mix does not allow it;
        another backend still has jobs; or a job's folder is a symbolic link.
    """
    if not is_remote(sweep.workdir):  # the contents of the folders are checked when trainers are started
        durable.refuse_link(sweep.workdir / "jobs")
        for job in sweep.jobs:
            if os.path.islink(job.folder) and not job.done(files):
                durable.refuse_link(job.folder)
    code = code_version()
    for job in sweep.jobs:
        job.code = [code]
    before = _read_or_rebuild(sweep.workdir, sweep.backend, files)
    if before is None:
        return
    sweep.mix = sorted({*sweep.mix, *before.mix})
    if "threads" in before.options:
        sweep.options["threads"] = before.options["threads"]
    active = before.engine.states(before)
    if before.backend != sweep.backend and active:
        raise UserError(
            f"{len(active)} jobs are still with --backend={printable(before.backend)}; launch.cancel stops them"
        )
    earlier = {job.name: job for job in before.jobs if job.name in active or job.name in files}
    other_codes = sorted({version for job in earlier.values() for version in job.code} - {code})
    if other_codes and "code" not in sweep.mix:
        codes = printable(", ".join(other_codes))
        raise UserError(
            f"{os.fspath(sweep.workdir)} was started with code {codes}, and this is {code}: its runs "
            "would differ in more than the sweep says. Take another --workdir, that code, or --mix=code, which "
            "continues with this one"
        )
    names = {job.name for job in sweep.jobs}
    dropped = [job for name, job in earlier.items() if name not in names]
    if dropped:
        _check_dropped(sweep, dropped, active, files)
    for job in dropped:
        job.kept = True
    of_each(lambda job: job.done(files), sweep.jobs, sweep.workdir)
    for job in sweep.jobs:
        if job.name in earlier:
            job.corpus = earlier[job.name].corpus
            codes = earlier[job.name].code
            is_trained_further = not job.done(files) and codes[-1] != code
            job.code = [*codes, code] if is_trained_further else codes
    sweep.jobs += dropped


def _check_dropped(sweep: Sweep, dropped: list[Job], active: dict[str, str], files: Files) -> None:
    """Prints that the dropped jobs are kept; UserError if --mix does not allow it, or a scheduler still has one."""
    names = ", ".join(job.name for job in dropped[:3])
    if len(dropped) > 3:
        names += ", ..."
    if "config" not in sweep.mix:
        raise UserError(
            f"{len(dropped)} jobs in {os.fspath(sweep.workdir)} are no longer in this sweep ({names}): a config was "
            "edited, or the sweep, or its --config flags. Undo that, take another --workdir, or --mix=config, which "
            "trains what the sweep says now and keeps what was trained"
        )
    still_active = [job.name for job in dropped if job.name in active]
    if still_active and not sweep.engine.ON_THIS_MACHINE:
        raise UserError(
            f"{len(still_active)} jobs that are no longer in this sweep are still with --backend={sweep.backend} "
            f"({', '.join(still_active[:3])}); launch.cancel stops them"
        )
    n_unfinished = sum(len(job.budgets) - len(job.results(files)) for job in dropped)
    message = (
        f"{len(dropped)} jobs of an earlier form of the sweep are kept ({names}): their finished runs stay in runs.csv"
    )
    if n_unfinished:
        message += f", {n_unfinished} unfinished ones are trained no further"
    print(message, file=sys.stderr)
