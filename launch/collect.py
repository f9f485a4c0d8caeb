"""Writes runs.csv, one row for each finished run of a sweep: python -m launch.collect --workdir=DIR [--mix=code].

The scaling law's columns come first, those that trace a run last. Missing runs are listed with the reason. Results of
two versions of the code, of two corpora, or of a config that is not the sweep's are refused, unless --mix names them.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import csv
import io
import os
from collections.abc import Sequence

from absl import flags

from jmoe import cli
from jmoe.config.schema import with_columns
from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch import hooks, sweepfile
from launch.backend import Sweep
from launch.jobs import MIXABLE, Job, digest, files_of

LAW_COLUMNS = ("n_active", "n_total", "n_tokens", "n_experts", "loss")
TRACES = ("run", "code", "config", "overrides")
VERSIONS = {"code": "code", "jmoe_version": "code", "jax_version": "code", "corpus_fingerprint": "corpus"}


def write(sweep: Sweep) -> tuple[str, int]:
    """Writes runs.csv, complete or not at all. Returns, in words, what it holds and which runs are missing; and the
    number of missing runs, without those whose failure was accepted. UserError where runs.csv would mix versions."""
    rows, missing, given_up = rows_of(sweep)
    path = sweep.workdir / "runs.csv"
    storage.write_whole(path, table(rows))
    report, n_runs = f"{os.fspath(path)}: {len(rows)} runs", len(rows) + len(missing) + len(given_up)
    listed = lambda runs: "".join(f"\n  {run}: {why}" for run, why in runs.items())
    if missing:
        report = f"{len(missing)} of {n_runs} runs are missing from {os.fspath(path)}:{listed(missing)}"
    if given_up:
        report += f"\n{len(given_up)} runs are left out, of jobs whose failure was accepted:{listed(given_up)}"
    return report, len(missing)


def table(rows: Sequence[dict]) -> str:
    """runs.csv of these rows: the law's columns first, those that trace a run last."""
    text = io.StringIO()
    # in the order of the row with the most columns: those of older versions lack some, and may have others
    fields = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    others = [name for name in fields if name not in LAW_COLUMNS + TRACES]
    writer = csv.DictWriter(text, [*LAW_COLUMNS, *others, *(TRACES if rows else ())])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def rows_of(sweep: Sweep) -> tuple[list[dict], dict[str, str], dict[str, str]]:
    """(rows of the finished runs, {missing run: why}, {run of a job whose failure was accepted: why it failed}).
    UserError where sweep.mix does not allow two versions of code or corpus, or a config that is not the sweep's."""
    rows, configs, missing, given_up, files = [], [], {}, {}, files_of(sweep.workdir)
    finished = storage.of_each(lambda job: job.results(files), sweep.jobs, sweep.workdir)
    for job, results in zip(sweep.jobs, finished):
        why, failure = "", {}
        if len(results) < len(job.budgets):
            failure = job.failure(files)
            why = failure.get("cause") or sweep.engine.reason(sweep, job) or "not finished"
        for branch in job.budgets:
            run = f"jobs/{job.name}/{branch}"
            if branch not in results:
                if failure.get("accepted"):
                    given_up[run] = why
                elif job.has(f"{branch}/result.json", files):
                    missing[run] = "result.json is damaged; starting the sweep again writes it anew"
                elif not job.kept:
                    missing[run] = why
                continue
            result = results[branch]
            record = result.pop("record")
            if "config" not in sweep.mix and not _is_config_of(job, record["config"]):
                raise UserError(f"{run} was trained under another config than its job's; --mix=config takes it")
            overrides = " ".join(f"{field}={value!r}" for field, value in job.overrides.items())
            rows.append(result | dict(zip(TRACES, (run, "+".join(job.code), job.config_file, overrides))))
            configs.append(record["config"])
    with_columns(rows, configs)
    for column, kind in VERSIONS.items():
        versions = {}
        for row in rows:
            versions.setdefault(row.get(column, "unknown"), []).append(row["run"])
        if len(versions) > 1 and kind not in sweep.mix:
            listed = "; ".join(f"{value} in {len(runs)} runs, first {runs[0]}" for value, runs in versions.items())
            raise UserError(f"runs.csv would mix two of {column}: {listed}. --mix={kind} allows it")
    return rows, missing, given_up


def _is_config_of(job: Job, config: dict) -> bool:
    """Whether a result's config is the one that the job is named after; only the corpus may have been pinned since."""
    data = config["data"]
    fingerprints = job.overrides.get("data.fingerprint", data["fingerprint"]), ""
    return job.name[-8:] in [digest(config | {"data": data | {"fingerprint": found}}) for found in fingerprints]


def main(_: object) -> None:
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
