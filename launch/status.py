"""Print the status of a sweep, job by job: the reasons of failures, hours and cost so far, and the time left.

python -m launch.status --workdir=DIR [--json] [--watch=SECONDS [--on_done=COMMAND] [--on_failure=COMMAND]]

While a scheduler or a store gives no answer, --watch prints a line and continues; without it, the exit code is 75.
If DIR holds no sweep, a line is printed for each sweep in its folders and in theirs. Hours are those that trainers ran,
with loading and compiling. The time left is for the remaining FLOPs, at the last steps' speed of the jobs that train
now. Saves and evaluations take more.
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
from jmoe.printable import printable
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import collect, hooks, output, sweepfile
from launch.backend import Sweep
from launch.jobs import Files, Job, files_of

CLEAR = "\x1b[H\x1b[2J"  # clears a terminal
ENDED = ("done", "failed", "cancelled", "accepted", "kept")  # states of jobs that nothing trains further


def main(_: object) -> None:
    """Prints the status of --workdir; with --watch, again and again until nothing runs or is queued."""
    watch = flags.FLAGS.watch
    commands = hooks.commands(" needs --watch: nothing waits for the end otherwise" if watch is None else "")
    folder = storage.absolute(flags.FLAGS.workdir)
    failed_before = None
    while True:
        folders, statuses = _statuses(folder, watch)
        _print(statuses, folder, is_single=folders == [folder])
        if watch is None:
            return
        away = [status["trouble"] for status in statuses if status.get("away")]
        if away:  # what has failed or ended is not known
            _print_wait(away[0], watch)
        else:
            failed_before = _report_failures(statuses, failed_before, commands)
            if not any(_is_active(status) for status in statuses):
                break
        time.sleep(watch)
    if not commands["on_done"]:
        return
    for workdir in folders:
        _, n_missing = _when_answered(lambda workdir=workdir: collect.write(sweepfile.read(workdir)), watch)
        hooks.run("on_done", commands["on_done"], workdir, JMOE_RUNS_MISSING=n_missing)


def _statuses(folder: epath.Path, watch: float | None) -> tuple[list[epath.Path], list[dict]]:
    """The workdirs of the sweeps in `folder`, or `folder` alone if it has none, and the status of each."""
    folders = _when_answered(lambda: workdirs(folder), watch) or [folder]
    price = flags.FLAGS.dollars_per_hour
    statuses = [_when_answered(lambda workdir=workdir: see(workdir, price), watch) for workdir in folders]
    return folders, statuses


def _print(statuses: list[dict], folder: epath.Path, is_single: bool) -> None:
    """Prints the statuses of the sweeps in `folder`, or of the single one.

    Raises:
      UserError: There is no sweep, or the backend of a single one cannot be asked.
      Unavailable: The backend of a single one gives no answer for now, and there is no --watch.
    """
    watch = flags.FLAGS.watch
    if is_single and "jobs" not in statuses[0]:
        raise UserError(statuses[0]["trouble"])
    if watch is not None and sys.stdout.isatty():
        print(CLEAR, end="")
    if flags.FLAGS.json:
        print(json.dumps(statuses[0] if is_single else {"workdir": os.fspath(folder), "sweeps": statuses}), flush=True)
    elif is_single:
        print(in_words(statuses[0]), flush=True)
    else:
        print("\n".join(_line(status, folder) for status in statuses), flush=True)
    if is_single and statuses[0]["trouble"]:
        if not statuses[0]["away"]:
            raise UserError(statuses[0]["trouble"])
        if watch is None:
            raise Unavailable(statuses[0]["trouble"])


def _is_active(status: dict) -> bool:
    """Whether a process works on the sweep, or one of its jobs runs or is queued."""
    return bool(status.get("owner")) or any(job["active"] for job in status.get("jobs", ()))


def _when_answered(call: Callable[[], Any], watch: float | None) -> Any:
    """The result of `call`; while the store gives no answer, it is called again every `watch` seconds.

    Raises:
      Unavailable: The store gives no answer, and `watch` is None.
    """
    while True:
        try:
            return call()
        except Unavailable as error:
            if watch is None:
                raise
            _print_wait(str(error), watch)
            time.sleep(watch)


def _print_wait(why: str, watch: float) -> None:
    print(f"{output.now()} {printable(why)}; looking again in {watch:g} s", file=sys.stderr, flush=True)


def workdirs(folder: epath.Path, depth: int = 2) -> list:
    """The folders that hold a sweep: `folder` itself, else those in it, down to `depth` levels."""
    if (folder / "sweep.json").exists():
        return [folder]
    with contextlib.suppress(PermissionError):
        if depth == 0 or not folder.is_dir():
            return []
        subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
        return [workdir for path in subfolders for workdir in workdirs(path, depth - 1)]
    return []


def see(workdir: epath.Path, dollars_per_hour: float | None = None) -> dict:
    """The status of the sweep in `workdir`.

    Returns:
      What `look` returns, and
      trouble: Why the backend cannot be asked, in words, or null.
      away: Whether the backend gives no answer for now.
      Only workdir and trouble if there is no sweep, or its sweep.json cannot be read.
    """
    try:
        sweep = sweepfile.read(workdir)
    except UserError as error:
        return {"workdir": os.fspath(workdir), "trouble": str(error)}
    states = None  # without the backend, the status is what the workdir tells
    trouble = None
    away = False
    try:
        states = sweep.engine.states(sweep)
    except UserError as error:
        trouble = str(error)
    except Unavailable as error:
        trouble = str(error)
        away = True
    return look(sweep, states, dollars_per_hour) | {"trouble": trouble, "away": away}


def look(sweep: Sweep, states: dict[str, str] | None, dollars_per_hour: float | None = None) -> dict:
    """The sweep's status in JSON types; nothing is written.

    Args:
      sweep: The sweep.
      states: What the backend's `states` returned; None if it gave no answer.
      dollars_per_hour: Hourly price of a chip. Default: what launch.sweep was given.

    Returns:
      Of the sweep: Workdir, backend, runs_done, runs, jobs.
      owner: The process at work on it, in words, or null.
      logs: The folder of the trainers' logs, if that is not the jobs' folder.
      hours, n_chips (of a job), dollars_per_hour (of a chip), dollars, hours_left: null if not known.
      Of each of the jobs: Name, runs_done, runs, state, tokens, training_tokens, failure, hours, hours_left.
      loss: In nats, null before the first step.
      more: What else there is to say, in words.
      odd: A sentence on each file of the job in which something odd was found; `more` has them too.
      active: Whether the job runs or is queued.
    """
    files = files_of(sweep.workdir)
    jobs = storage.of_each(lambda job: _job_status(sweep, job, files, states), sweep.jobs, sweep.workdir)
    owner = ownership.owner(sweep.lock)
    known_hours = [job["hours"] for job in jobs if job["hours"] is not None]
    hours = sum(known_hours) if known_hours else None
    n_chips = sweep.options.get("n_chips")
    price = sweep.options.get("dollars_per_hour") if dollars_per_hour is None else dollars_per_hour
    dollars = None
    if hours is not None and n_chips and price is not None:
        dollars = round(hours * n_chips * price, 2)
    return {
        "workdir": os.fspath(sweep.workdir),
        "backend": sweep.backend,
        "runs_done": sum(job["runs_done"] for job in jobs),
        "runs": sum(job["runs"] for job in jobs),
        "owner": str(owner) if owner and not owner.has_ended() else None,
        "logs": os.fspath(sweep.jobs[0].local_folder.parent) if storage.is_remote(sweep.workdir) else None,
        "hours": None if hours is None else round(hours, 4),
        "n_chips": n_chips,
        "dollars_per_hour": price,
        "dollars": dollars,
        "hours_left": _hours_left(sweep.jobs, jobs),
        "jobs": jobs,
    }


def _hours_left(jobs: list[Job], statuses: list[dict]) -> float | None:
    """The hours until all jobs are trained; None if no job trains now.

    It is the longer of two times: that of the job which needs longest, and that of all remaining FLOPs at the speed of
    the jobs that train now.
    """
    known_hours = [status["hours_left"] for status in statuses if status["hours_left"] is not None]
    if not known_hours:
        return None
    flops_left = 0.0
    flops_per_hour = 0.0
    for job, status in zip(jobs, statuses, strict=True):
        if status["tokens"] >= job.training_tokens or status["state"] in ENDED:
            continue
        flops_of_job = job.flops * (1 - status["tokens"] / job.training_tokens)
        flops_left += flops_of_job
        if status["hours_left"]:
            flops_per_hour += flops_of_job / status["hours_left"]
    hours_of_all = flops_left / flops_per_hour if flops_per_hour else 0.0
    return max(*known_hours, hours_of_all)


def in_words(status: dict) -> str:
    """A line for each job of a sweep and one for all; `status` is what `look` returned."""
    width = max(len(job["name"]) for job in status["jobs"])
    lines = []
    for job in status["jobs"]:
        runs = f"{job['runs_done']}/{job['runs']}"
        lines.append(f"{job['name']:{width}} {runs:>7} {job['state']:9} {job['more']}".rstrip())
    lines += summary_lines(status)
    if status["owner"]:
        lines.append(f"at work on it: {status['owner']}")
    if status["logs"]:
        lines.append(f"logs of trainers on this machine: {status['logs']}")
    return "\n".join(map(printable, lines))


def summary_lines(status: dict) -> list[str]:
    """A line on how many runs are done and how many jobs are in each state, and one on hours, cost, time left.

    The second line is left out if nothing of it is known.
    """
    n_of_state = collections.Counter(job["state"] for job in status["jobs"])
    counts = ", ".join(f"{n} {state}" for state, n in sorted(n_of_state.items()))
    done = f"{status['runs_done']} of {status['runs']} runs done"
    effort = []
    if status["hours"] is not None:
        effort.append(f"{status['hours']:.2f} hours of trainers so far")
    if status["dollars"] is not None:
        price = f"{status['n_chips']} chips a job, ${status['dollars_per_hour']:g} each an hour"
        effort.append(f"${status['dollars']:,.2f} ({price})")
    elif effort and status["dollars_per_hour"] is not None:
        effort.append("cost unknown, as nothing says how many chips a job has")
    if status["hours_left"] is not None:
        effort.append(f"{tqdm.format_interval(3600 * status['hours_left'])} left")
    lines = [f"{done}; {len(status['jobs'])} jobs on {status['backend']}: {counts}"]
    if effort:
        lines.append(", ".join(effort))
    return lines


def _line(status: dict, folder: epath.Path) -> str:
    """One line on one of the sweeps below `folder`."""
    name = status["workdir"].removeprefix(os.fspath(folder)).strip("/")
    summary = summary_lines(status) if "jobs" in status else []
    parts = [name, *summary, status["trouble"]]
    return printable("; ".join(part for part in parts if part is not None))


def _report_failures(statuses: list[dict], failed_before: set | None, commands: dict) -> set:
    """Calls --on_failure for the jobs that have failed for good since the previous look.

    Args:
      statuses: What `see` returned for each sweep.
      failed_before: The failed jobs of the previous look; None at the first, which calls nothing.
      commands: What hooks.commands returned.

    Returns:
      All jobs that have failed for good, as (workdir, name).
    """
    cause_of = {}
    for status in statuses:
        for job in status.get("jobs", ()):
            if job["state"] == "failed":
                failure = job["failure"] or {}
                cause_of[status["workdir"], job["name"]] = failure.get("cause") or job["more"]
    failed = set(cause_of)
    if failed_before is not None:
        for workdir, name in failed - failed_before:
            cause = cause_of[workdir, name]
            hooks.run("on_failure", commands["on_failure"], workdir, JMOE_JOB=name, JMOE_CAUSE=cause)
    return failed


def _job_status(sweep: Sweep, job: Job, files: Files, states: dict[str, str] | None) -> dict:
    """The status of one job, as `look` lists it."""
    odd: list[str] = []
    results = job.results(files, odd)
    state = (states or {}).get(job.name, "")
    seconds = job.seconds(files, odd)
    status = {
        "name": job.name,
        "runs_done": len(results),
        "runs": len(job.budgets),
        "tokens": job.training_tokens,
        "training_tokens": job.training_tokens,
        "loss": None,
        "failure": None,
        "hours": None if seconds is None else round(seconds / 3600, 4),
        "hours_left": None,
        "active": False,
        "state": "done",
        "more": "",
        "odd": odd,
    }
    if len(results) == len(job.budgets):
        if results:
            longest_branch = max(results, key=lambda branch: job.budgets[branch])
            status["loss"] = results[longest_branch]["loss"]
        status["more"] = "; ".join(odd)
        return status
    failure = job.failure(files, odd)
    status["failure"] = failure or None
    status["active"] = bool(state) and not state.startswith(("failed", "completed"))
    status["tokens"] = 0
    more = []
    has_begun = any(file.endswith("metrics.jsonl") for file in files.get(job.name, ()))
    if has_begun and job.training_tokens:
        status["tokens"], status["loss"] = job.progress(odd)
        trained = f"{status['tokens'] / job.training_tokens:.0%} trained"
        more.append(trained if status["loss"] is None else f"{trained}, loss {status['loss']:.3f}")
    tokens_per_second = job.tokens_per_second(odd) if has_begun and state.startswith("running") else None
    if tokens_per_second:
        status["hours_left"] = max(job.training_tokens - status["tokens"], 0) / tokens_per_second / 3600
        more.append(f"{tqdm.format_interval(3600 * status['hours_left'])} left")
    reason = "" if failure or state or job.kept or states is None else sweep.engine.reason(sweep, job)
    status["state"], more = _state(job, state, failure, [*odd, *more], reason, is_known=states is not None)
    status["more"] = "; ".join(more)
    return status


def _state(job: Job, state: str, failure: dict, more: list[str], reason: str, is_known: bool) -> tuple[str, list[str]]:
    """One word for a job that is not done, and what else there is to say.

    Args:
      job: The job.
      state: What the backend's `states` returned for it; "" if nothing.
      failure: Its last failure, or {}.
      more: What is known of its training, in words.
      reason: Why the backend did not run it; "" if that is not known.
      is_known: Whether the backend said which jobs it has.
    """
    is_active = bool(state) and not state.startswith("failed")
    kind, _, why = state.partition(" ")  # as a rule in parentheses
    if why.startswith("(") and why.endswith(")"):
        why = why[1:-1]
    if failure.get("accepted"):
        return "accepted", [*more, failure["cause"]]
    if failure.get("cancelled") and not is_active:
        return "cancelled", more
    if failure:
        tries = "try" if failure["tries"] == 1 else "tries"
        more = [*more, f"{failure['tries']} failed {tries}: {failure['cause']}"]
    if is_active:
        return kind.strip(","), [why, *more] if why else more
    if job.kept:
        return "kept", ["no longer in the sweep", *more]
    why = why or reason
    if state or why or failure.get("for_good"):
        kind = "failed"
    else:
        kind = "waiting" if is_known else "unknown"
    return kind, [*more, why] if why else more


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_bool("json", False, "Print one JSON object on a single line instead of a table.")
    flags.DEFINE_float("dollars_per_hour", None, "Hourly price of one chip. Default: what launch.sweep was given.", 0)
    flags.DEFINE_float("watch", None, "Seconds between updates. They end when nothing runs or is queued.", 0.1, 1e6)
    flags.DEFINE_string("on_done", None, "Command to run at the end of --watch, as in launch.sweep.")
    flags.DEFINE_string("on_failure", None, "Command that --watch runs for each job that fails, as in launch.sweep.")
    cli.run(main)
