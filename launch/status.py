"""How a sweep stands, job by job, with the reasons of failures: python -m launch.status --workdir=DIR."""

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import files as storage
from jmoe.storage import ownership
from launch import sweepfile
from launch.jobs import files_of

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)


def main(_):
    sweep = sweepfile.read(storage.absolute(WORKDIR.value))
    states, trouble = {}, None
    try:
        states = sweep.engine.states(sweep)
    except UserError as error:  # what the workdir knows is printed all the same
        trouble = error
    print(table(sweep, states))
    if trouble:
        raise trouble


def table(sweep, states: dict[str, str]) -> str:
    """A line for each job and one for all; `states` is what the backend says of those it has. Writes nothing."""
    files = files_of(sweep.workdir)
    line = lambda job: _line(sweep, job, files.get(job.name, set()), states.get(job.name))
    lines = storage.of_each(line, sweep.jobs, sweep.workdir)
    kinds = {}
    for _, _, kind, _ in lines:
        kinds[kind] = kinds.get(kind, 0) + 1
    width = max(len(name) for name, *_ in lines)
    text = [f"{name:{width}} {runs:>7} {kind:9} {more}".rstrip() for name, runs, kind, more in lines]
    n_done = sum(int(runs.split("/")[0]) for _, runs, *_ in lines)
    n_runs = sum(len(job.budgets) for job in sweep.jobs)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    text.append(f"{n_done} of {n_runs} runs done; {len(lines)} jobs on {sweep.backend}: {counted}")
    if (owner := ownership.owner(sweep.lock)) and not owner.has_ended():
        text.append(f"at work on it: {owner}")
    if storage.is_remote(sweep.workdir):
        text.append(f"logs of trainers on this machine: {sweep.jobs[0].local_folder.parent}")
    return "\n".join(text)


def _line(sweep, job, files: set[str], state: str | None) -> tuple[str, str, str, str]:
    """(name, runs done, one word, what else there is to say) of a job with these files in its folder."""
    written = [branch for branch in job.budgets if f"{branch}/result.json" in files]
    results = job.results({job.name: files})
    runs = f"{len(results)}/{len(job.budgets)}"
    if len(results) == len(job.budgets):
        return job.name, runs, "done", ""
    more = [f"{branch}/result.json is damaged" for branch in written if branch not in results]
    if job.training_tokens and any(file.endswith("metrics.jsonl") for file in files):
        tokens, loss = job.progress()
        more.append(f"{tokens / job.training_tokens:.0%} trained" + (f", loss {loss:.3f}" if loss is not None else ""))
    failure = job.failure() if "failure.json" in files else {}
    if failure:
        more.append(f"{failure['tries']} failed tr{'y' if failure['tries'] == 1 else 'ies'}: {failure['cause']}")
    if state and not state.startswith("failed"):
        kind, _, rest = state.partition(" ")
        return job.name, runs, kind.strip(","), "; ".join([rest.strip("() ")] * bool(rest) + more)
    if job.kept:
        return job.name, runs, "kept", "; ".join(["not of the sweep any more", *more])
    if state and (why := state.removeprefix("failed").strip(" ()")):
        more.append(why)
    why = "" if failure or state else sweep.reason(job)
    kind = "failed" if state or why or failure.get("for_good") else "waiting"
    return job.name, runs, kind, "; ".join(more + [why] * bool(why))


if __name__ == "__main__":
    cli.run(main)
