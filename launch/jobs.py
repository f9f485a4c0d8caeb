"""The jobs of a sweep: a Python file whose get_sweep() returns a config file and what to vary in it.

What varies is either a grid, {field: values}, of which every combination is a job, or a list with a dict of overrides
for each job. A job is one trunk with its branches. One `jmoe.train` runs it in DIR/jobs/NAME. NAME ends in a hash of
the resolved config, so the same sweep started twice starts nothing twice. launch/varied.py reads the file.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from etils import epath
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config import counts
from jmoe.config.schedule import Schedule
from jmoe.config.schema import record_of
from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage.files import cache_dir, is_remote, names_below
from launch import job_files
from launch.varied import plain, read, resolve

MIXABLE = ("code", "corpus", "config")
SLOWEST = 1e-9  # tokens per second; a lower speed counts as none, so that hours stay finite
Files = dict[str, set[str]]  # by the name of a job: the files in its folder, as files_of lists them


@dataclasses.dataclass
class Job:
    """One trunk with its branches, which one trainer trains.

    Methods with an argument `files` take the sweep's files as `files_of` lists them. They read a file only if it is
    among these, or if `files` is None.

    Attributes:
      name: D{d_model}-e{n_experts}- and a hash of the config.
      folder: The job's folder in the workdir.
      config_file: The config file that the sweep file names.
      overrides: {field: value} of the config that the sweep sets for this job.
      d_model: Width of the model.
      n_experts: Experts of a block.
      n_active: Active parameters, as the paper counts them.
      n_total: All parameters, as the paper counts them.
      budgets: {branch: n_tokens as the config names them}.
      segments: {trunk or branch: the tokens [first, last) that it trains on}.
      corpus: Fingerprint of the corpus; "" before it is known.
      code: Every version of the code that trained the job, in order.
      kept: Whether the job is of an earlier form of the sweep. Its results count, and it is trained no further.
    """

    name: str
    folder: epath.Path
    config_file: str
    overrides: dict
    d_model: int
    n_experts: int
    n_active: int
    n_total: int
    budgets: dict[str, int]
    segments: dict[str, list[int]]
    corpus: str = ""
    code: list[str] = dataclasses.field(default_factory=list)
    kept: bool = False
    _done = False  # not a dataclass field: whether `done` has seen the job finished

    @property
    def training_tokens(self) -> int:
        """Tokens that the job computes: the trunk once and every branch."""
        return sum(last - first for first, last in self.segments.values())

    @property
    def flops(self) -> int:
        """Training FLOPs of the trunk and every branch."""
        return counts.training_flops(self.n_active, self.training_tokens)

    @property
    def local_folder(self) -> pathlib.Path:
        """The folder on this machine for lock and log: the job's own, or one in the cache if the job's is on gs://."""
        if not is_remote(self.folder):
            return pathlib.Path(self.folder)
        return cache_dir() / "sweeps" / short_hash(os.fspath(self.folder.parent)) / self.name

    @property
    def log(self) -> pathlib.Path:
        """The log of its trainers on this machine."""
        return self.local_folder / "log.txt"

    @property
    def lock(self) -> pathlib.Path:
        """The lock file that its trainer holds."""
        return self.local_folder / "lock"

    def refuse_links(self) -> None:
        """Raises UserError if its folder, or a file that is written or deleted in it, is a symbolic link.

        Called before a trainer is started, and before the launcher writes into the folder.
        """
        if not is_remote(self.folder):
            durable.refuse_link(self.folder.parent)
            durable.refuse_links(self.folder)

    def results(self, files: Files | None = None, odd: list[str] | None = None) -> dict[str, dict]:
        """The results of the finished branches, by branch.

        A result that is damaged, or cannot be a row of runs.csv, counts as unfinished. `odd` gets a sentence on
        each of them.
        """
        odd = [] if odd is None else odd
        results = {}
        for branch in self.budgets:
            if self.has(f"{branch}/result.json", files):
                result = job_files.result(self.folder, f"{branch}/result.json", odd)
                if result is not None:
                    results[branch] = result
        return results

    def has(self, file: str, files: Files | None = None) -> bool:
        """Whether `file`, a path in the job's folder, is among the sweep's `files`; True if those are not known."""
        return files is None or file in files.get(self.name, ())

    def done(self, files: Files | None = None) -> bool:
        """Whether the job is finished. A finished job stays finished."""
        self._done = self._done or len(self.results(files)) == len(self.budgets)
        return self._done

    def progress(self, odd: list[str] | None = None) -> tuple[int, float | None]:
        """The tokens trained so far over trunk and branches, and the newest cross-entropy in nats.

        `odd` gets a sentence on each file in which something odd was found.
        """
        lines = self._last_lines("metrics.jsonl", ("n_tokens", "cross_entropy"), odd)
        tokens = sum(max(0, int(n_tokens) - self.segments[segment][0]) for _, segment, n_tokens, _ in lines)
        newest_loss = max(lines)[3] if lines else None
        return tokens, newest_loss

    def _last_lines(self, file: str, numbers: tuple[str, ...], odd: list[str] | None) -> list[tuple]:
        """The last line of a file of each segment that has it, without odd ones.

        Args:
          file: The name of the file in the segment's folder, in JSON lines.
          numbers: The fields to read.
          odd: As of `progress`.

        Returns:
          For each segment: (time of the file's last change, segment, the numbers).
        """
        odd = [] if odd is None else odd
        lines = []
        for segment in self.segments:
            line = job_files.last_line(self.folder, f"{segment}/{file}", numbers, odd)
            if line is not None:
                with contextlib.suppress(OSError):  # the file may be gone by now
                    changed = (self.folder / segment / file).stat().mtime or 0
                    lines.append((changed, segment, *(line[number] for number in numbers)))
        return lines

    def seconds(self, files: Files | None = None, odd: list[str] | None = None) -> float | None:
        """How many seconds its trainers have run so far, with loading and compiling; None if not recorded.

        `odd` gets a sentence if what is recorded is no number.
        """
        odd = [] if odd is None else odd
        values = job_files.json_object(self.folder, "time.json", odd) if self.has("time.json", files) else None
        if values is None:
            return None
        seconds = values.get("seconds")
        if not job_files.is_number(seconds) or seconds < 0:
            odd.append(f"time.json: seconds is {job_files.shown(seconds)}, expected a number")
            return None
        return float(seconds)

    def tokens_per_second(self, odd: list[str] | None = None) -> float | None:
        """The speed of its trainer at the last step that it logged; None before the first.

        `odd` gets a sentence on each file in which something odd was found.
        """
        lines = self._last_lines("speed.jsonl", ("tokens_per_second",), odd)
        if not lines:
            return None
        _, _, speed = max(lines)
        return speed if speed > SLOWEST else None

    def failure(self, files: Files | None = None, odd: list[str] | None = None) -> dict:
        """Its last failure since the sweep was started; {} if there is none.

        `odd` gets a sentence if failure.json holds no failure.

        Returns:
          cause: Why it failed, in words.
          tries: Tries in a row that made no progress.
          tokens: The tokens trained at that time.
          for_good: Whether the job is not tried again.
          cancelled, accepted: True if launch.cancel stopped the job, or launch.accept accepted its failure.
        """
        odd = [] if odd is None else odd
        failure = job_files.json_object(self.folder, "failure.json", odd) if self.has("failure.json", files) else None
        if failure is None:
            return {}
        if not isinstance(failure.get("cause"), str) or "for_good" not in failure:
            odd.append("failure.json is damaged: expected a text `cause` and `for_good`")
            return {}
        for count in ("tries", "tokens"):
            if not job_files.is_count(failure.get(count)):
                odd.append(f"failure.json: {count} is {job_files.shown(failure.get(count))}, expected a count")
                return {}
        return failure | {"cause": printable(failure["cause"])}

    def given_up(self, files: Files | None = None) -> bool:
        """Whether a user accepted its failure. It is trained no further, and its runs no longer count as missing."""
        return bool(self.failure(files).get("accepted"))

    def over(self, files: Files | None = None) -> bool:
        """Whether nothing is left to train: it is done or given up."""
        return self.done(files) or self.given_up(files)

    def has_ended(self) -> bool:
        """Whether it is done, or has failed for good, which includes cancelled and accepted jobs."""
        return bool(self.done() or self.failure().get("for_good"))

    def fields(self) -> dict:
        """All that is known of it, in JSON types: its entry in sweep.json, and job.json in its folder."""
        return {key: value for key, value in vars(self).items() if key not in ("name", "folder", "_done")}

    @classmethod
    def from_fields(cls, name: str, workdir: epath.Path, fields: dict[str, Any]) -> "Job":
        """The job that `fields()` described.

        Args:
          name: The name of the job.
          workdir: The sweep's directory.
          fields: What `fields()` returned.

        Raises:
          TypeError, KeyError, AttributeError or ValueError: If the fields describe no job, or one whose files would
            lie outside of `workdir`.
        """
        for folder in (name, *fields["budgets"], *fields["segments"], fields.get("corpus") or "none"):
            if not isinstance(folder, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", folder, re.ASCII):
                raise ValueError(f"{folder!r:.60} names no job, branch or corpus")
        _check_fields(name, fields)
        attributes = {field: value for field, value in fields.items() if field != "shape"}  # old versions wrote it
        attributes["overrides"] = {field: plain(value) for field, value in fields["overrides"].items()}
        return cls(name, workdir / "jobs" / name, **attributes)

    def command(self) -> list[str]:
        """The argument list of its trainer, which no shell ever reads."""
        arguments = [
            f"--config={self.config_file}",
            f"--workdir={os.fspath(self.folder)}",
            f"--config.data.fingerprint={self.corpus}",
        ]
        for field, value in self.overrides.items():
            text = value if isinstance(value, str) else repr(value)
            arguments.append(f"--config.{field}={text}")
        return [sys.executable, "-m", "jmoe.train", *arguments]


def _check_fields(name: str, fields: dict[str, Any]) -> None:
    """Raises ValueError if a field of a job's entry is of another type, or is a number that no job has."""

    def refuse(field: str, value: object, expected: str) -> NoReturn:
        raise ValueError(f"job {name}: {field} is {job_files.shown(value)}, expected {expected}")

    counts_of_job = {field: fields[field] for field in ("d_model", "n_experts", "n_active", "n_total")}
    counts_of_job |= {f"budgets.{branch}": tokens for branch, tokens in dict(fields["budgets"]).items()}
    for field, value in counts_of_job.items():
        if not job_files.is_count(value):
            refuse(field, value, "a count")
    for segment, tokens in dict(fields["segments"]).items():
        is_pair = isinstance(tokens, list) and len(tokens) == 2 and all(map(job_files.is_count, tokens))
        if not is_pair or tokens[0] > tokens[1]:
            refuse(f"segments.{segment}", tokens, "its first and its last token")
    code = fields.get("code", [])
    if not isinstance(code, list) or not all(isinstance(version, str) for version in code):
        refuse("code", code, "a list of versions")
    if not isinstance(fields["config_file"], str):
        refuse("config_file", fields["config_file"], "text")


def files_of(workdir: epath.Path) -> Files:
    """Lists the files that are now in each job's folder and in the folders of its segments, by the job's name."""
    files = {}
    for path in names_below(workdir / "jobs", depth=3):
        name, _, file = path.partition("/")
        files.setdefault(name, set()).add(file)
    return files


def load(path: str, workdir: epath.Path, config_flags: Sequence[str] = ()) -> tuple[list[Job], dict]:
    """Reads a sweep file, and resolves and checks the config of every job.

    Args:
      path: The sweep file.
      workdir: The sweep's directory.
      config_flags: --config flags of the command line, as in varied.read.

    Returns:
      The jobs, and their configs by the job's name.

    Raises:
      UserError: The file, its config file or an override cannot be used.
    """
    config_file, base, varied = read(path, config_flags)
    jobs = {}
    configs = {}
    for overrides in varied:
        try:
            config = resolve(base, overrides)
            schedule = Schedule(config)
        except (UserError, KeyError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            message, _, _ = cli.one_line(error).partition(" Other fields present")
            raise UserError(f"--sweep={path}: job {overrides}: {message}") from None
        job = _job(workdir, config_file, overrides, config, schedule)
        jobs[job.name] = job
        configs[job.name] = config
    if not jobs:
        raise UserError(f"--sweep={path} has no job")
    return list(jobs.values()), configs


def _job(workdir: epath.Path, config_file: str, overrides: dict, config: ConfigDict, schedule: Schedule) -> Job:
    """The job of a resolved config and its schedule."""
    model = config.model
    segments: dict[str, list[int]] = {}
    for segment in schedule.segments:  # the trunk's pieces share a folder
        tokens = segments.setdefault(segment.name, [schedule.tokens_at(segment.start), 0])
        tokens[1] = schedule.tokens_at(segment.stop)
    name = f"d{model.d_model}-e{model.n_experts}-{digest(record_of(config))}"
    return Job(
        name=name,
        folder=workdir / "jobs" / name,
        config_file=config_file,
        overrides=dict(overrides),
        d_model=model.d_model,
        n_experts=model.n_experts,
        n_active=counts.n_active(model),
        n_total=counts.n_total(model),
        budgets={f"branch-{budget}": budget for budget in config.n_tokens},
        segments=segments,
    )


def config_of(job: Job) -> ConfigDict:
    """The job's config as its command gives it to the trainer.

    Raises:
      UserError: The config file gives another config than the one that the job was named after.
    """
    config = resolve(cli.load_module(job.config_file, f"job {job.name}"), job.overrides)
    edited = digest(record_of(config))
    if edited != job.name[-8:]:
        raise UserError(
            f"{printable(job.config_file)} was edited since job {job.name} was made: its config is {edited} now; undo "
            "that, or start the sweep again with --mix=config, which trains what the file says now and keeps what "
            "was trained"
        )
    config.data.fingerprint = job.corpus
    return config


def digest(config: dict) -> str:
    """Eight hex digits that tell two configs apart; `config` is in JSON types."""
    return short_hash(json.dumps(config, sort_keys=True))


def short_hash(text: str) -> str:
    """The first eight hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
