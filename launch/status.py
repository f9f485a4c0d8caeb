"""How a sweep stands, job by job, with the reasons of failures.

python -m launch.status --workdir=DIR [--json] [--watch=SECONDS [--on_done=COMMAND]]
"""

import json
import os
import shlex
import sys
import time

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import collect, sweepfile
from launch.jobs import files_of

CLEAR = "\x1b[H\x1b[2J"  # clears a terminal


def main(_):
    asked = flags.FLAGS
    if asked.on_done is not None and asked.watch is None:
        raise UserError("--on_done needs --watch: nothing waits for the end otherwise")
    while True:
        sweep = sweepfile.read(storage.absolute(asked.workdir))
        states, trouble = {}, None
        try:
            states = sweep.engine.states(sweep)
        except UserError as error:  # what the workdir knows is printed all the same
            trouble = error
        seen = look(sweep, states)
        print(CLEAR * (asked.watch is not None and sys.stdout.isatty()), end="")
        print(json.dumps(seen) if asked.json else in_words(seen), flush=True)
        if trouble:
            raise trouble
        if asked.watch is None:
            return
        if seen["owner"] is None and not any(job["active"] for job in seen["jobs"]):
            break
        time.sleep(asked.watch)
    if asked.on_done is not None:
        sweep.options["on_done"] = shlex.split(asked.on_done)
        collect.call_on_done(sweep, collect.write(sweep)[1])


def look(sweep, states: dict[str, str]) -> dict:
    """The sweep's status in JSON types; `states` is what the backend says of the jobs it has. Writes nothing.

    Of the sweep: workdir, backend, runs_done, runs, jobs, logs (a folder, where it is not the jobs' own), and owner:
    the process at work on it, in words, or null. Of a job: name, runs_done, runs, state, tokens and training_tokens,
    loss (null before its first step), failure, more (in words), and active: whether it runs, or waits in a queue.
    """
    files = files_of(sweep.workdir)
    of_job = lambda job: _job(sweep, job, files.get(job.name, set()), states.get(job.name))
    jobs = storage.of_each(of_job, sweep.jobs, sweep.workdir)
    owner = ownership.owner(sweep.lock)
    return {
        "workdir": os.fspath(sweep.workdir),
        "backend": sweep.backend,
        "runs_done": sum(job["runs_done"] for job in jobs),
        "runs": sum(job["runs"] for job in jobs),
        "owner": str(owner) if owner and not owner.has_ended() else None,
        "logs": os.fspath(sweep.jobs[0].local_folder.parent) if storage.is_remote(sweep.workdir) else None,
        "jobs": jobs,
    }


def in_words(seen: dict) -> str:
    """A line for each job and one for all."""
    kinds, text, width = {}, [], max(len(job["name"]) for job in seen["jobs"])
    for job in seen["jobs"]:
        kinds[job["state"]] = kinds.get(job["state"], 0) + 1
        runs = f"{job['runs_done']}/{job['runs']}"
        text.append(f"{job['name']:{width}} {runs:>7} {job['state']:9} {job['more']}".rstrip())
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    done = f"{seen['runs_done']} of {seen['runs']} runs done"
    text.append(f"{done}; {len(seen['jobs'])} jobs on {seen['backend']}: {counted}")
    if seen["owner"]:
        text.append(f"at work on it: {seen['owner']}")
    if seen["logs"]:
        text.append(f"logs of trainers on this machine: {seen['logs']}")
    return "\n".join(text)


def _job(sweep, job, files: set[str], state: str | None) -> dict:
    """What `look` says of a job with these files in its folder."""
    written = [branch for branch in job.budgets if f"{branch}/result.json" in files]
    results = job.results({job.name: files})
    done = len(results) == len(job.budgets)
    began = any(file.endswith("metrics.jsonl") for file in files)
    tokens, loss = job.progress() if job.training_tokens and began and not done else (0, None)
    failure = job.failure() if "failure.json" in files and not done else {}
    seen = {
        "name": job.name,
        "runs_done": len(results),
        "runs": len(job.budgets),
        "tokens": job.training_tokens if done else tokens,
        "training_tokens": job.training_tokens,
        "loss": results[max(results, key=lambda branch: job.budgets[branch])].get("loss") if done else loss,
        "failure": failure or None,
        "active": bool(state) and not done and not state.startswith(("failed", "completed")),
    }
    if done:
        return seen | {"state": "done", "more": ""}
    more = [f"{branch}/result.json is damaged" for branch in written if branch not in results]
    if job.training_tokens and began:
        more.append(f"{tokens / job.training_tokens:.0%} trained" + (f", loss {loss:.3f}" if loss is not None else ""))
    kind, more = _state(sweep, job, state, failure, more)
    return seen | {"state": kind, "more": "; ".join(more)}


def _state(sweep, job, state: str | None, failure: dict, more: list[str]) -> tuple[str, list[str]]:
    """One word for a job that is not done, and what else there is to say."""
    if how := next((how for how in ("accepted", "cancelled") if failure.get(how)), None):
        if not state or state.startswith("failed") or how == "accepted":
            return how, more + [failure["cause"]] * (how == "accepted")
    if failure:
        more.append(f"{failure['tries']} failed tr{'y' if failure['tries'] == 1 else 'ies'}: {failure['cause']}")
    if state and not state.startswith("failed"):
        kind, why = _in_parentheses(state)
        return kind.strip(","), [why] * bool(why) + more
    if job.kept:
        return "kept", ["not of the sweep any more", *more]
    if state and (why := _in_parentheses(state)[1]):
        more.append(why)
    why = "" if failure or state else sweep.reason(job)
    return "failed" if state or why or failure.get("for_good") else "waiting", more + [why] * bool(why)


def _in_parentheses(state: str) -> tuple[str, str]:
    """The word, and the words that follow it in parentheses."""
    kind, _, rest = state.partition(" ")
    return kind, rest[1:-1] if rest.startswith("(") and rest.endswith(")") else rest


if __name__ == "__main__":  # tests import this module, and other modules define flags of the same names
    flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)
    flags.DEFINE_bool("json", False, "Print one JSON object, on a line of its own, instead of a table.")
    flags.DEFINE_float("watch", None, "Seconds between updates, which end when nothing runs or is queued.", 0.1)
    flags.DEFINE_string("on_done", None, "With --watch: command to run at the end, as in launch.sweep.")
    cli.run(main)
