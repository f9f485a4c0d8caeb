"""How a sweep stands, job by job, with the reasons of failures: python -m launch.status --workdir=DIR."""

import concurrent.futures

from absl import flags

from jmoe import cli, storage
from launch import jobs as jobs_lib

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...")


def main(_):
    sweep = jobs_lib.read(storage.absolute(WORKDIR.value))
    print(table(sweep, sweep.engine.states(sweep)))


def table(sweep, states: dict[str, str]) -> str:
    """A line for each job and one for all; `states` is what the backend says of those it has."""
    folder, found = sweep.workdir / "jobs", {}
    for pattern in ("*/*/result.json", "*/*/metrics.jsonl", "*/failure.json"):  # one listing each, on gs:// too
        for path in folder.glob(pattern):
            name, *rest = path.relative_to(folder).parts
            found.setdefault(name, set()).add("/".join(rest))
    with concurrent.futures.ThreadPoolExecutor(32 if storage.is_remote(folder) else 1) as pool:
        lines = list(pool.map(lambda job: _line(job, found.get(job.name, set()), states.get(job.name)), sweep.jobs))
    kinds = {}
    for _, _, kind, _ in lines:
        kinds[kind] = kinds.get(kind, 0) + 1
    width = max(len(name) for name, *_ in lines)
    text = [f"{name:{width}} {runs:>7} {kind:9} {told}".rstrip() for name, runs, kind, told in lines]
    n_done = sum(int(runs.split("/")[0]) for _, runs, *_ in lines)
    n_runs = sum(len(job.budgets) for job in sweep.jobs)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    text.append(f"{n_done} of {n_runs} runs done; {len(lines)} jobs on {sweep.backend}: {counted}")
    if storage.is_remote(folder):
        text.append(f"logs of trainers on this machine: {sweep.jobs[0].here.parent}")
    return "\n".join(text)


def _line(job, files: set[str], state: str | None) -> tuple[str, str, str, str]:
    """(name, runs done, one word, what else there is to say) of a job with these files in its folder."""
    n_done = sum(f"{branch}/result.json" in files for branch in job.budgets)
    runs = f"{n_done}/{len(job.budgets)}"
    if n_done == len(job.budgets):
        return job.name, runs, "done", ""
    told = []
    if any(file.endswith("metrics.jsonl") for file in files):
        tokens, loss = job.progress()
        told.append(f"{tokens / job.training_tokens:.0%} trained" + (f", loss {loss:.3f}" if loss is not None else ""))
    failure = job.failure() if "failure.json" in files else {}
    if failure:
        told.append(f"{failure['tries']} failed tr{'y' if failure['tries'] == 1 else 'ies'}: {failure['cause']}")
    if state and not state.startswith("failed"):
        kind, _, rest = state.partition(" ")
        return job.name, runs, kind.strip(","), "; ".join([rest.strip("() ")] * bool(rest) + told)
    return job.name, runs, "failed" if state or failure.get("for_good") else "waiting", "; ".join(told)


def run():
    flags.mark_flags_as_required(["workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
