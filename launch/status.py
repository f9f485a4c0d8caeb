"""How a sweep stands, job by job: the reasons of failures, hours and cost so far, and the time left.

python -m launch.status --workdir=DIR [--json] [--watch=SECONDS [--on_done=COMMAND] [--on_failure=COMMAND]]

--watch goes on while a scheduler or a store gives no answer, and says so in a line; without it, that is exit code 75.
If DIR holds no sweep, prints a line for each sweep in its folders and in theirs. Hours are those that trainers ran,
with loading and compiling. The time left is what the jobs that train now, at the pace of their last steps, need for the
FLOPs that are left; saves and evaluations come on top.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import collections
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import flags
from etils import epath
from tqdm import tqdm

from jmoe import cli
from jmoe.errors import Unavailable, UserError
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import collect, hooks, output, sweepfile
from launch.backend import Sweep
from launch.jobs import Files, Job, files_of
from launch.printable import printable

CLEAR = "\x1b[H\x1b[2J"  # clears a terminal
ENDED = ("done", "failed", "cancelled", "accepted", "kept")  # states of jobs that are trained no further as things are


def main(_: object) -> None:
    asked = flags.FLAGS
    given = hooks.given(" needs --watch: nothing waits for the end otherwise" if asked.watch is None else "")
    folder, told = storage.absolute(asked.workdir), None
    while True:
        places = _when_answered(lambda: workdirs(folder), asked.watch) or [folder]
        one = places == [folder]
        looks = [_when_answered(lambda: see(place, asked.dollars_per_hour), asked.watch) for place in places]
        if one and "jobs" not in looks[0]:
            raise UserError(looks[0]["trouble"])
        print(CLEAR * (asked.watch is not None and sys.stdout.isatty()), end="")
        if asked.json:
            print(json.dumps(looks[0] if one else {"workdir": os.fspath(folder), "sweeps": looks}), flush=True)
        else:
            print(in_words(looks[0]) if one else "\n".join(_line(seen, folder) for seen in looks), flush=True)
        away = [seen["trouble"] for seen in looks if seen.get("away")]
        if one and looks[0]["trouble"]:
            if not away:
                raise UserError(looks[0]["trouble"])
            if asked.watch is None:
                raise Unavailable(looks[0]["trouble"])
        if asked.watch is None:
            return
        if away:  # what has failed or ended is not known
            _say_that_it_waits(away[0], asked.watch)
        else:
            told = _tell_failures(looks, told, given)
            if not any(seen.get("owner") or any(job["active"] for job in seen.get("jobs", ())) for seen in looks):
                break
        time.sleep(asked.watch)
    for place in places if given["on_done"] else ():
        _, n_missing = _when_answered(lambda: collect.write(sweepfile.read(place)), asked.watch)
        hooks.run("on_done", given["on_done"], place, JMOE_RUNS_MISSING=n_missing)


def _when_answered(call: Callable[[], Any], watch: float | None) -> Any:
    """What `call` returns; where the store gives no answer, calls it again every `watch` seconds if that is given."""
    while True:
        try:
            return call()
        except Unavailable as error:
            if watch is None:
                raise
            _say_that_it_waits(str(error), watch)
            time.sleep(watch)


def _say_that_it_waits(why: str, watch: float) -> None:
    print(f"{output.now()} {printable(why)}; looking again in {watch:g} s", file=sys.stderr, flush=True)


def workdirs(folder: epath.Path, depth: int = 2) -> list:
    """`folder` if it holds a sweep, else the folders that do among those in it, and in these."""
    if (folder / "sweep.json").exists():
        return [folder]
    with contextlib.suppress(PermissionError):
        inner = sorted(path for path in folder.iterdir() if path.is_dir()) if depth and folder.is_dir() else ()
        return [workdir for path in inner for workdir in workdirs(path, depth - 1)]
    return []


def see(workdir: epath.Path, dollars_per_hour: float | None = None) -> dict:
    """What `look` says of the sweep in `workdir`; trouble: why its backend cannot be asked, in words, or null; away:
    whether it gives no answer for now. If there is no sweep, or its sweep.json cannot be read, only workdir and
    trouble."""
    try:
        sweep = sweepfile.read(workdir)
    except UserError as error:
        return {"workdir": os.fspath(workdir), "trouble": str(error)}
    away = False
    try:
        states, trouble = sweep.engine.states(sweep), None
    except UserError as error:  # what the workdir knows is told all the same
        states, trouble = None, str(error)
    except Unavailable as error:
        states, trouble, away = None, str(error), True
    return look(sweep, states, dollars_per_hour) | {"trouble": trouble, "away": away}


def look(sweep: Sweep, states: dict[str, str] | None, dollars_per_hour: float | None = None) -> dict:
    """The sweep's status in JSON types; `states` is what the backend says of the jobs it has, None if it says nothing.
    `dollars_per_hour`: of a chip, by default what launch.sweep was given. Writes nothing.

    Of the sweep: workdir, backend, runs_done, runs, jobs, logs (a folder, where it is not the jobs' own), and owner:
    the process at work on it, in words, or null; hours, n_chips (of a job), dollars_per_hour (of a chip), dollars and
    hours_left, each null where it is not known. Of a job: name, runs_done, runs, state, tokens and training_tokens,
    loss (null before its first step), failure, more (in words), hours, hours_left, active (it runs, or is queued)."""
    files = files_of(sweep.workdir)
    jobs = storage.of_each(lambda job: _job(sweep, job, files, states), sweep.jobs, sweep.workdir)
    owner = ownership.owner(sweep.lock)
    hours = [job["hours"] for job in jobs if job["hours"] is not None]
    n_chips, price = sweep.options.get("n_chips"), dollars_per_hour
    price = sweep.options.get("dollars_per_hour") if price is None else price
    return {
        "workdir": os.fspath(sweep.workdir),
        "backend": sweep.backend,
        "runs_done": sum(job["runs_done"] for job in jobs),
        "runs": sum(job["runs"] for job in jobs),
        "owner": str(owner) if owner and not owner.has_ended() else None,
        "logs": os.fspath(sweep.jobs[0].local_folder.parent) if storage.is_remote(sweep.workdir) else None,
        "hours": round(sum(hours), 4) if hours else None,
        "n_chips": n_chips,
        "dollars_per_hour": price,
        "dollars": round(sum(hours) * n_chips * price, 2) if hours and n_chips and price is not None else None,
        "hours_left": _hours_left(sweep.jobs, jobs),
        "jobs": jobs,
    }


def _hours_left(jobs: list[Job], seen: list[dict]) -> float | None:
    """Hours until all jobs are trained: those of the job that needs longest, or of all FLOPs left at the pace of the
    jobs that train now, whichever is more; None if none does."""
    flops_left, flops_per_hour = 0.0, 0.0
    for job, now in zip(jobs, seen):
        if now["tokens"] < job.training_tokens and now["state"] not in ENDED:
            left = job.flops * (1 - now["tokens"] / job.training_tokens)
            flops_left += left
            flops_per_hour += left / now["hours_left"] if now["hours_left"] else 0.0
    longest = [now["hours_left"] for now in seen if now["hours_left"] is not None]
    return max(*longest, flops_left / flops_per_hour if flops_per_hour else 0.0) if longest else None


def in_words(seen: dict) -> str:
    """A line for each job and one for all."""
    text, width = [], max(len(job["name"]) for job in seen["jobs"])
    for job in seen["jobs"]:
        runs = f"{job['runs_done']}/{job['runs']}"
        text.append(printable(f"{job['name']:{width}} {runs:>7} {job['state']:9} {job['more']}".rstrip()))
    text += summary(seen)
    if seen["owner"]:
        text.append(f"at work on it: {seen['owner']}")
    if seen["logs"]:
        text.append(f"logs of trainers on this machine: {seen['logs']}")
    return "\n".join(text)


def summary(seen: dict) -> list[str]:
    """How many runs and jobs stand how; and, where that is known, hours, cost and time left."""
    kinds = collections.Counter(job["state"] for job in seen["jobs"])
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    done = f"{seen['runs_done']} of {seen['runs']} runs done"
    effort = [f"{seen['hours']:.2f} hours of trainers so far"] if seen["hours"] is not None else []
    if seen["dollars"] is not None:
        price = f"{seen['n_chips']} chips a job, ${seen['dollars_per_hour']:g} each an hour"
        effort.append(f"${seen['dollars']:,.2f} ({price})")
    elif effort and seen["dollars_per_hour"] is not None:
        effort += ["cost unknown, as nothing says how many chips a job has"]
    if seen["hours_left"] is not None:
        effort.append(f"{tqdm.format_interval(3600 * seen['hours_left'])} left")
    return [f"{done}; {len(seen['jobs'])} jobs on {seen['backend']}: {counted}", *[", ".join(effort)] * bool(effort)]


def _line(seen: dict, folder: epath.Path) -> str:
    """One of the sweeps below `folder`, in one line."""
    name = seen["workdir"].removeprefix(os.fspath(folder)).strip("/")
    parts = [name, *(summary(seen) if "jobs" in seen else ()), seen["trouble"]]
    return printable("; ".join(part for part in parts if part is not None))


def _tell_failures(looks: list[dict], told: set | None, given: dict) -> set:
    """Calls --on_failure for the jobs that have failed for good since the look before; returns all that have."""
    failed = {}
    for seen in looks:
        for job in seen.get("jobs", ()):
            if job["state"] == "failed":
                failed[seen["workdir"], job["name"]] = (job["failure"] or {}).get("cause") or job["more"]
    for workdir, name in failed.keys() - (failed.keys() if told is None else told):
        hooks.run("on_failure", given["on_failure"], workdir, JMOE_JOB=name, JMOE_CAUSE=failed[workdir, name])
    return set(failed)


def _job(sweep: Sweep, job: Job, files: Files, states: dict[str, str] | None) -> dict:
    """What `look` says of one job."""
    results, state = job.results(files), (states or {}).get(job.name, "")
    done = len(results) == len(job.budgets)
    began = any(file.endswith("metrics.jsonl") for file in files.get(job.name, ()))
    tokens, loss = job.progress() if job.training_tokens and began and not done else (0, None)
    failure = job.failure(files) if not done else {}
    seconds = job.seconds(files)
    pace = job.tokens_per_second() if began and not done and state.startswith("running") else None
    left = max(job.training_tokens - tokens, 0) / pace / 3600 if pace else None
    seen = {
        "name": job.name,
        "runs_done": len(results),
        "runs": len(job.budgets),
        "tokens": job.training_tokens if done else tokens,
        "training_tokens": job.training_tokens,
        "loss": results[max(results, key=lambda branch: job.budgets[branch])].get("loss") if results and done else loss,
        "failure": failure or None,
        "hours": None if seconds is None else round(seconds / 3600, 4),
        "hours_left": left,
        "active": bool(state) and not done and not state.startswith(("failed", "completed")),
    }
    if done:
        return seen | {"state": "done", "more": ""}
    damaged = [f"{branch}/result.json" for branch in job.budgets if branch not in results]
    more = [f"{file} is damaged" for file in damaged if job.has(file, files)]
    if job.training_tokens and began:
        more.append(f"{tokens / job.training_tokens:.0%} trained" + (f", loss {loss:.3f}" if loss is not None else ""))
    more += [] if left is None else [f"{tqdm.format_interval(3600 * left)} left"]
    reason = "" if failure or state or job.kept or states is None else sweep.engine.reason(sweep, job)
    kind, more = _state(job, state, failure, more, reason)
    return seen | {"state": kind, "more": "; ".join(more)}


def _state(job: Job, state: str, failure: dict, more: list[str], reason: str) -> tuple[str, list[str]]:
    """One word for a job that is not done, and what else there is to say."""
    at_work = state and not state.startswith("failed")
    kind, _, why = state.partition(" ")  # as a rule in parentheses
    why = why[1:-1] if why.startswith("(") and why.endswith(")") else why
    if failure.get("accepted"):
        return "accepted", [*more, failure["cause"]]
    if failure.get("cancelled") and not at_work:
        return "cancelled", more
    if failure:
        more.append(f"{failure['tries']} failed tr{'y' if failure['tries'] == 1 else 'ies'}: {failure['cause']}")
    if at_work:
        return kind.strip(","), [why] * bool(why) + more
    if job.kept:
        return "kept", ["not of the sweep any more", *more]
    why = why or reason
    return "failed" if state or why or failure.get("for_good") else "waiting", more + [why] * bool(why)


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_bool("json", False, "Print one JSON object, on a line of its own, instead of a table.")
    flags.DEFINE_float("dollars_per_hour", None, "Hourly price of one chip. Default: what launch.sweep was given.", 0)
    flags.DEFINE_float("watch", None, "Seconds between updates, which end when nothing runs or is queued.", 0.1, 1e6)
    flags.DEFINE_string("on_done", None, "With --watch: command to run at the end, as in launch.sweep.")
    flags.DEFINE_string("on_failure", None, "With --watch: command to run for each job that fails, as in launch.sweep.")
    cli.run(main)
