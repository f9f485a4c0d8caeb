"""Write runs.csv, one row for each finished run of a sweep: python -m launch.collect --workdir=DIR [--mix=code].

The scaling law's columns come first, those that trace a run last. Missing runs are listed with the reason. runs.csv
never mixes two versions of the code, two corpora, or configs that are not the sweep's, unless --mix names them.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import csv
import io
import os
from collections.abc import Sequence

from absl import flags

from fit.table.formulas import quoted
from jmoe import cli
from jmoe.config.schema import with_columns
from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage import files as storage
from launch import hooks, sweepfile
from launch.backend import Sweep
from launch.jobs import MIXABLE, Files, Job, digest, files_of

LAW_COLUMNS = ("n_active", "n_total", "n_tokens", "n_experts", "loss")
TRACES = ("run", "code", "config", "overrides")
VERSIONS = {"code": "code", "jmoe_version": "code", "jax_version": "code", "corpus_fingerprint": "corpus"}


def write(sweep: Sweep) -> tuple[str, int]:
    """Writes runs.csv, complete or not at all.

    Returns:
      What runs.csv holds and which runs are missing, in words; and the number of missing runs, without those whose
      failure was accepted.

    Raises:
      UserError: The table runs.csv would mix versions.
    """
    rows, missing, given_up = rows_of(sweep)
    path = sweep.workdir / "runs.csv"
    storage.write_whole(path, table(rows))
    report = f"{os.fspath(path)}: {len(rows)} runs"
    if missing:
        n_runs = len(rows) + len(missing) + len(given_up)
        report = f"{len(missing)} of {n_runs} runs are missing from {os.fspath(path)}:{_listed(missing)}"
    if given_up:
        report += f"\n{len(given_up)} runs are left out, of jobs whose failure was accepted:{_listed(given_up)}"
    return report, len(missing)


def _listed(runs: dict[str, str]) -> str:
    """A line for each run and its reason, each after a newline."""
    return "".join(f"\n  {run}: {printable(why)}" for run, why in runs.items())


def table(rows: Sequence[dict]) -> str:
    """The text of runs.csv of these rows: the law's columns first, those that trace a run last."""
    # in the order of the row with the most columns: rows of older versions lack some, and may have others
    fields = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    other_columns = [name for name in fields if name not in LAW_COLUMNS + TRACES]
    trace_columns = TRACES if rows else ()
    text = io.StringIO()
    columns = [*LAW_COLUMNS, *other_columns, *trace_columns]
    writer = csv.writer(text)
    writer.writerow(map(quoted, columns))
    for row in rows:
        writer.writerow([quoted(row.get(name, "")) for name in columns])
    return text.getvalue()


def rows_of(sweep: Sweep) -> tuple[list[dict], dict[str, str], dict[str, str]]:
    """Collects the finished runs of a sweep.

    Returns:
      The rows of the finished runs, {missing run: why}, {run of a job whose failure was accepted: why it failed}.

    Raises:
      UserError: There are two versions of code or corpus, or a config that is not the sweep's, and sweep.mix does
        not allow it.
    """
    files = files_of(sweep.workdir)
    finished = storage.of_each(lambda job: _results(job, files), sweep.jobs, sweep.workdir)
    rows: list[dict] = []
    configs: list[dict] = []
    missing: dict[str, str] = {}
    given_up: dict[str, str] = {}
    for job, (results, odd) in zip(sweep.jobs, finished, strict=True):
        why = ""
        failure = {}
        if len(results) < len(job.budgets):
            failure = job.failure(files)
            why = failure.get("cause") or sweep.engine.reason(sweep, job) or "not finished"
        for branch in job.budgets:
            run = f"jobs/{job.name}/{branch}"
            if branch in results:
                record = results[branch].pop("record")
                _check_config(sweep, job, run, record["config"])
                rows.append(results[branch] | _traces(job, run))
                configs.append(record["config"])
            elif failure.get("accepted"):
                given_up[run] = why
            elif branch in odd:
                missing[run] = odd[branch]
            elif not job.kept:
                missing[run] = why
    with_columns(rows, configs)
    _check_versions(sweep, rows)
    return rows, missing, given_up


def _results(job: Job, files: Files) -> tuple[dict[str, dict], dict[str, str]]:
    """The results of a job's finished branches, and {branch: why its result.json cannot be used}."""
    odd: list[str] = []
    results = job.results(files, odd)
    why = {}
    for branch in job.budgets:
        for sentence in odd:
            if sentence.startswith(f"{branch}/"):
                remedy = "delete it and start the sweep again"
                if sentence.endswith("is damaged"):
                    remedy = "starting the sweep again rewrites it"
                why[branch] = f"{sentence.removeprefix(f'{branch}/')}; {remedy}"
    return results, why


def _traces(job: Job, run: str) -> dict[str, str]:
    """The columns that trace a run back to its job, in the order of TRACES."""
    overrides = " ".join(f"{field}={value!r}" for field, value in job.overrides.items())
    return {"run": run, "code": "+".join(job.code), "config": job.config_file, "overrides": overrides}


def _check_config(sweep: Sweep, job: Job, run: str, config: dict) -> None:
    """Raises UserError if a run's config is not the one that its job is named after, unless --mix allows it.

    Only the corpus may have been pinned since.
    """
    if "config" in sweep.mix:
        return
    data = config["data"]
    fingerprints = (job.overrides.get("data.fingerprint", data["fingerprint"]), "")
    digests = [digest(config | {"data": data | {"fingerprint": fingerprint}}) for fingerprint in fingerprints]
    if job.name[-8:] not in digests:
        raise UserError(f"{run} was trained under another config than its job's; --mix=config takes it")


def _check_versions(sweep: Sweep, rows: list[dict]) -> None:
    """Raises UserError if the rows are of two versions of something, unless --mix allows it."""
    for column, kind in VERSIONS.items():
        runs_of = {}
        for row in rows:
            runs_of.setdefault(printable(str(row.get(column, "unknown"))), []).append(row["run"])
        if len(runs_of) > 1 and kind not in sweep.mix:
            listed = "; ".join(f"{value} in {len(runs)} runs, first {runs[0]}" for value, runs in runs_of.items())
            raise UserError(f"runs.csv would mix two of {column}: {listed}. --mix={kind} allows it")


def main(_: object) -> None:
    """Writes runs.csv of --workdir, prints what is missing, and runs the command of --on_done."""
    sweep = sweepfile.chosen()
    on_done = hooks.words("on_done")
    sweep.mix = sorted({*sweep.mix, *flags.FLAGS.mix})
    report, n_missing = write(sweep)
    print(report, flush=True)
    hooks.run("on_done", on_done, sweep.workdir, JMOE_RUNS_MISSING=n_missing)


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_multi_enum("mix", [], MIXABLE, "Allow runs.csv to mix versions of this.")
    flags.DEFINE_string("on_done", None, "Command to run afterwards, as in launch.sweep.")
    cli.run(main)
