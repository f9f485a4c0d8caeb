"""The jobs of a sweep: a Python file whose get_sweep() returns a config file and what to vary in it.

What varies is either a grid, {field: values}, every combination of which is a job, or a list with a dict of overrides
for each job. A job is one trunk with its branches, run by one `jmoe.train` in DIR/jobs/NAME. NAME ends in a hash of the
resolved config, so the same sweep started twice starts nothing twice. launch/varied.py reads the file.
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
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config import counts
from jmoe.config.schema import record_of
from jmoe.errors import Damaged, UserError
from jmoe.run.schedule import Schedule
from jmoe.storage.files import cache_dir, is_remote, names_below, read_bytes, read_sealed
from launch.printable import printable
from launch.varied import plain, read, resolve

MIXABLE = ("code", "corpus", "config")
Files = dict[str, set[str]]  # the files in each job's folder, as files_of lists them


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
    corpus: str = ""  # fingerprint
    code: list[str] = dataclasses.field(default_factory=list)  # every version that trained it, in order
    kept: bool = False  # of an earlier form of the sweep: its results count, and it is trained no further
    _done = False  # not a dataclass field: whether the job was once found finished

    @property
    def training_tokens(self) -> int:
        """Tokens that the job computes: the trunk once and every branch."""
        return sum(last - first for first, last in self.segments.values())

    @property
    def flops(self) -> int:
        return counts.training_flops(self.n_active, self.training_tokens)

    @property
    def local_folder(self) -> pathlib.Path:
        """The folder on this machine for lock and log: the job's own, or one in the cache if the job's is on gs://."""
        if not is_remote(self.folder):
            return pathlib.Path(self.folder)
        return cache_dir() / "sweeps" / short_hash(os.fspath(self.folder.parent)) / self.name

    @property
    def log(self) -> pathlib.Path:
        return self.local_folder / "log.txt"

    @property
    def lock(self) -> pathlib.Path:
        """Held while its trainer runs."""
        return self.local_folder / "lock"

    def results(self, files: Files | None = None) -> dict[str, dict]:
        """Finished branches by name; a damaged result.json counts as unfinished: its trainer writes it anew. One
        that is not among the sweep's `files`, as `files_of` lists them, is not read."""
        results = {}
        for branch in self.budgets:
            with contextlib.suppress(Damaged):
                path = self.folder / branch / "result.json"
                if not self.has(f"{branch}/result.json", files):
                    continue
                result = read_sealed(path)
                if result is not None and _has_config(result):
                    results[branch] = result
        return results

    def has(self, file: str, files: Files | None = None) -> bool:
        """Whether `file`, a path in the job's folder, is among the sweep's `files`; True if those are not known."""
        return files is None or file in files.get(self.name, ())

    def done(self, files: Files | None = None) -> bool:
        """Whether it is finished; once found finished, it stays so."""
        self._done = self._done or len(self.results(files)) == len(self.budgets)
        return self._done

    def progress(self) -> tuple[int, float | None]:
        """Tokens trained so far over trunk and branches, and the newest cross-entropy."""
        lines = self._last_lines("metrics.jsonl", "n_tokens", "cross_entropy")
        tokens = sum(n_tokens - self.segments[segment][0] for _, segment, n_tokens, _ in lines)
        return tokens, max(lines)[3] if lines else None

    def _last_lines(self, file: str, *numbers: str) -> list[tuple]:
        """(time of the last change, segment, the `numbers` in its last line) of this file of each segment that has it,
        without damaged ones: their trainer says which."""
        lines = []
        for segment in self.segments:
            path = self.folder / segment / file
            with contextlib.suppress(OSError, LookupError, ValueError, TypeError, RecursionError):
                line = json.loads(_last_line(path))
                lines.append((path.stat().mtime or 0, segment, *(line[number] + 0 for number in numbers)))
        return lines

    def seconds(self, files: Files | None = None) -> float | None:
        """How long its trainers have run so far, loading and compiling included; None if that was not kept."""
        if self.has("time.json", files):
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
                return float(json.loads(read_bytes(self.folder / "time.json"))["seconds"])
        return None

    def tokens_per_second(self) -> float | None:
        """The pace of its trainer at the last step that it logged; None before the first."""
        return max(self._last_lines("speed.jsonl", "tokens_per_second"), default=(None,))[-1] or None

    def failure(self, files: Files | None = None) -> dict:
        """{"cause", "tries", "tokens", "for_good"} of its last failure since the sweep was started; empty if none.
        launch.cancel adds "cancelled": true for the job that it stops, and launch.accept "accepted": true."""
        if not self.has("failure.json", files):
            return {}
        try:
            failure = json.loads(read_bytes(self.folder / "failure.json"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(failure, dict) or not isinstance(failure.get("cause"), str) or "for_good" not in failure:
            return {}
        if not all(type(failure.get(count)) is int for count in ("tries", "tokens")):
            return {}
        return failure | {"cause": printable(failure["cause"])}

    def given_up(self, files: Files | None = None) -> bool:
        """Whether a user accepted its failure: it is trained no further, and its runs no longer count as missing."""
        return bool(self.failure(files).get("accepted"))

    def over(self, files: Files | None = None) -> bool:
        """Whether nothing is left to train: it is done or given up."""
        return self.done(files) or self.given_up(files)

    def stands_still(self) -> bool:
        """Whether it is done, or has failed for good, which includes cancelled and accepted jobs."""
        return bool(self.done() or self.failure().get("for_good"))

    def fields(self) -> dict:
        """All that is known of it, in JSON types: its entry in sweep.json, and job.json in its folder."""
        return {key: value for key, value in vars(self).items() if key not in ("name", "folder", "_done")}

    @classmethod
    def of(cls, name: str, workdir: epath.Path, fields: dict[str, Any]) -> "Job":
        """The job that `fields()` described; TypeError, KeyError, AttributeError or ValueError if it describes none, or
        one whose files would lie outside of `workdir`."""
        for folder in (name, *fields["budgets"], *fields["segments"], fields.get("corpus") or "none"):
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", folder, re.ASCII):
                raise ValueError(f"{folder!r} names no job, branch or corpus")
        own = {field: value for field, value in fields.items() if field != "shape"}  # which old versions wrote
        own["overrides"] = {field: plain(value) for field, value in fields["overrides"].items()}
        job = cls(name, workdir / "jobs" / name, **own)
        if job.flops + sum(job.budgets.values()) < 0:  # a TypeError where these are no numbers
            raise ValueError("tokens below 0")
        return job

    def command(self) -> list[str]:
        """The argument list of its trainer; no shell ever reads it."""
        text = lambda value: value if isinstance(value, str) else repr(value)
        flags = [f"--config.{field}={text(value)}" for field, value in self.overrides.items()]
        own = f"--config={self.config_file}", f"--workdir={os.fspath(self.folder)}"
        return [sys.executable, "-m", "jmoe.train", *own, f"--config.data.fingerprint={self.corpus}", *flags]


def _has_config(result: dict) -> bool:
    """Whether a result holds the config that it was trained under, as every trainer writes it; a seal does not say."""
    record = result.get("record")
    config = record.get("config") if isinstance(record, dict) else None
    parts = (config.get(name) for name in ("model", "data")) if isinstance(config, dict) else (None,)
    return all(isinstance(part, dict) for part in parts)


def files_of(workdir: epath.Path) -> Files:
    """The files that are now in each job's folder and in the folders of its segments, by the job's name."""
    files = {}
    for path in names_below(workdir / "jobs", depth=3):
        name, _, file = path.partition("/")
        files.setdefault(name, set()).add(file)
    return files


def load(path: str, workdir: epath.Path, config_flags: Sequence[str] = ()) -> tuple[list[Job], dict]:
    """The jobs of a sweep file with their configs by name, every one resolved and checked. `config_flags` as in
    varied.read. UserError where the file, its config file or an override can't be used."""
    config_file, base, varied = read(path, config_flags)
    jobs, configs = {}, {}
    for overrides in varied:
        try:
            config = resolve(base, overrides)
            schedule = Schedule(config)
        except (UserError, KeyError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            message, _, _ = cli.one_line(error).partition(" Other fields present")
            raise UserError(f"--sweep={path}: job {overrides}: {message}") from None
        model, segments = config.model, {}
        for s in schedule.segments:  # the trunk's pieces share a folder
            segments.setdefault(s.name, [schedule.tokens_at(s.start), 0])[1] = schedule.tokens_at(s.stop)
        name = f"d{model.d_model}-e{model.n_experts}-{digest(record_of(config))}"
        sizes = model.d_model, model.n_experts, counts.n_active(model), counts.n_total(model)
        budgets = {f"branch-{budget}": budget for budget in config.n_tokens}
        jobs[name] = Job(name, workdir / "jobs" / name, config_file, dict(overrides), *sizes, budgets, segments)
        configs[name] = config
    if not jobs:
        raise UserError(f"--sweep={path} has no job")
    return list(jobs.values()), configs


def config_of(job: Job) -> ConfigDict:
    """The job's config as its command gives it to the trainer. UserError where the config file gives another config
    than the one the job was named after."""
    config = resolve(cli.load_module(job.config_file, f"job {job.name}"), job.overrides)
    edited = digest(record_of(config))
    if edited != job.name[-8:]:
        raise UserError(
            f"{job.config_file} was edited since job {job.name} was made: its config is {edited} now; undo that, or "
            "start the sweep again with --mix=config, which trains what the file says now and keeps what was trained"
        )
    config.data.fingerprint = job.corpus
    return config


def digest(config: dict) -> str:
    """Eight hex digits that tell two configs apart, from a config in JSON types."""
    return short_hash(json.dumps(config, sort_keys=True))


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _last_line(path: epath.Path) -> bytes:
    """The last whole line of a file, however long it is; b"" if there is none. On gs://, reads the whole object."""
    text = b""
    if not is_remote(path):
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2**13))
            text = file.read()
    text = text if text.count(b"\n") > 1 else read_bytes(path)  # a short file, or a long line
    return text.rpartition(b"\n")[0].rpartition(b"\n")[2]
