"""Runs a sweep: python -m launch.sweep --sweep=configs/sweeps/NAME.py --workdir=DIR --backend=local|slurm|gke.

Started again it skips the runs that are done, leaves alone what is queued or running, and resumes the rest. The local
backend works until all is done and writes DIR/runs.csv; slurm and gke take the jobs and return. launch.status,
launch.logs, launch.cancel and launch.collect, each with --workdir=DIR, do the rest.
"""

import os

from absl import flags

from jmoe import cli, corpus, storage
from launch import accelerators, gke, table
from launch import jobs as jobs_lib

SWEEP = flags.DEFINE_string("sweep", None, "Sweep file, e.g. configs/sweeps/quickstart.py.")
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep: jobs, logs, runs.csv; a folder or gs://...")
BACKEND = flags.DEFINE_enum("backend", "local", ["local", "slurm", "gke"], "Where the jobs run.")
RETRIES = flags.DEFINE_integer(
    "retries", 1, "How often a job that died is tried again without getting further than before.", lower_bound=0
)
TOGETHER = flags.DEFINE_integer(
    "together",
    1,
    "How many jobs that differ in seed, learning rate or budgets alone are trained in one step at most.",
    1,
)
MIX = flags.DEFINE_multi_enum("mix", [], jobs_lib.MIXABLE, "What the sweep may hold two versions of; it remembers.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what would run, and what it costs; start and write nothing.")
ACCELERATOR = flags.DEFINE_string(
    "accelerator", None, f"What a job runs on, as v5e:4x4 or H100:8; of {', '.join(accelerators.GKE)}."
)
MFU = flags.DEFINE_float("mfu", 0.4, "Model FLOPs utilisation that the costs assume.", 1e-6, 1)
DOLLARS = flags.DEFINE_float("dollars_per_hour", None, "Price of one accelerator (chip), for --dry_run.", 0)
SBATCH = flags.DEFINE_multi_string(
    "sbatch", [], "slurm: one more option of sbatch, e.g. --sbatch=--partition=gpu; may be given many times."
)
IMAGE = flags.DEFINE_string("image", None, "gke: container image with this repository as its working directory.")
QUEUE = flags.DEFINE_string("queue", None, "gke: Kueue's LocalQueue.")
NAMESPACE = flags.DEFINE_string("namespace", "default", "gke: namespace.")
SERVICE_ACCOUNT = flags.DEFINE_string("service_account", None, "gke: Kubernetes account that may write --workdir.")
N_SLICES = flags.DEFINE_integer("n_slices", 1, "gke: slices for each job.", 1)
SPOT = flags.DEFINE_bool("spot", True, "gke: spot machines.")


def main(_):
    workdir = storage.absolute(WORKDIR.value)
    jobs, configs = jobs_lib.load(SWEEP.value, workdir)
    options = {
        "local": {},
        "slurm": {"sbatch": SBATCH.value},
        "gke": {f.name: f.value for f in (IMAGE, QUEUE, NAMESPACE, SERVICE_ACCOUNT, ACCELERATOR, N_SLICES, SPOT)},
    }[BACKEND.value]
    options["together"] = TOGETHER.value
    sweep = jobs_lib.Sweep(workdir, SWEEP.value, BACKEND.value, RETRIES.value, MIX.value, options, jobs)
    if sweep.backend == "gke":
        gke.check(sweep)
    if DRY_RUN.value:
        lines = describe(jobs)
        if TOGETHER.value > 1:
            sizes = [len(group.jobs) for group in sweep.groups()]
            lines.append(f"--together={TOGETHER.value}: {len(sizes)} trainers, of up to {max(sizes)} jobs each")
        if sweep.backend == "gke":  # what it prints is what kubectl takes
            lines = [f"# {line}" for line in lines] + [gke.yaml_of(sweep)]
        print("\n".join(lines))
        return
    storage.make_workdir(WORKDIR.value)
    earlier = resume(sweep)
    pin_corpus(sweep, configs, earlier)
    here = [*sweep.jobs]
    sweep.jobs += [job for name, job in earlier.items() if name not in configs]
    sweep.write()
    if sweep.backend != "local":
        sweep.jobs = here
        print(f"{sweep.engine.submit(sweep)}\npython -m launch.status --workdir={os.fspath(workdir)}")
        return
    sweep.engine.run(sweep)
    told, complete = table.write(sweep)
    if not complete:
        raise cli.UserError(f"{told}\nThe same command tries them again.")
    print(told)


def describe(jobs) -> list[str]:
    """Lines on each job and on all, in the paper's counts (6 N_active D), with hours and price where asked for."""
    cost = lambda flops: ""
    if ACCELERATOR.value:
        place = accelerators.parse(ACCELERATOR.value)
        kind, peak = place.kind, place.peak_flops
        hours = lambda flops: flops / (peak * MFU.value * 3600)
        price = lambda flops: f", ${hours(flops) * DOLLARS.value:,.2f}" if DOLLARS.value is not None else ""
        cost = lambda flops: f"  {hours(flops):,.2f} {kind}-hours{price(flops)}"
    elif DOLLARS.value is not None:
        raise cli.UserError("--dollars_per_hour needs --accelerator: the price is that of one of them")
    lines = [f"{'job':24} {'n_active':>13} {'n_total':>14} {'flops':>9}  n_tokens"]
    for job in jobs:
        budgets = ", ".join(f"{budget:,}" for budget in job.budgets.values())
        lines.append(f"{job.name:24} {job.n_active:13,} {job.n_total:14,} {job.flops:9.2e}  {budgets}{cost(job.flops)}")
    flops = sum(job.flops for job in jobs)
    alone = sum(6 * job.n_active * job.segments[branch][1] for job in jobs for branch in job.budgets)
    lines.append(
        f"{sum(len(job.budgets) for job in jobs)} runs in {len(jobs)} jobs, {flops:.3e} FLOPs; "
        f"one by one {alone:.3e}: sharing trunks saves {1 - flops / alone:.0%}"
    )
    if ACCELERATOR.value:
        lines.append(f"at {MFU.value:.0%} of {peak:.3g} FLOP/s:{cost(flops)}")
    return lines


def resume(sweep) -> dict:
    """The jobs of an earlier start in this workdir by name; the new jobs are given what is known of them.

    Raises:
      UserError: the code or the configs are others than those of jobs that have begun, and --mix does not allow it.
    """
    now = jobs_lib.code_version()
    for job in sweep.jobs:
        job.code = [now]
    if not (sweep.workdir / "sweep.json").exists():
        return {}
    before = jobs_lib.read(sweep.workdir)
    sweep.mix = sorted({*sweep.mix, *before.mix})
    if before.backend != sweep.backend and (busy := before.engine.states(before)):
        raise cli.UserError(f"{len(busy)} jobs are still with --backend={before.backend}; launch.cancel stops them")
    earlier = {job.name: job for job in before.jobs if job.folder.exists()}
    if others := sorted({version for job in earlier.values() for version in job.code} - {now}):
        if "code" not in sweep.mix:
            raise cli.UserError(
                f"{sweep.workdir} was begun with code {', '.join(others)}, and this is {now}: its runs would differ in "
                "more than the sweep says. Take another --workdir, that code, or --mix=code"
            )
    names = {job.name for job in sweep.jobs}
    if gone := [name for name in earlier if name not in names]:
        if "config" not in sweep.mix:
            raise cli.UserError(
                f"{len(gone)} jobs in {sweep.workdir} are not of this sweep any more ({', '.join(gone[:3])}...): "
                "a config was edited, or the sweep. Undo that, take another --workdir, or keep both with --mix=config"
            )
    for job in sweep.jobs:
        if job.name in earlier:
            code = earlier[job.name].code
            job.code = code if job.done() or code[-1] == now else [*code, now]
    return earlier


def pin_corpus(sweep, configs, earlier) -> None:
    """Prepares each corpus once and gives its fingerprint to every job on it, later ones too: all see the same text.

    Raises:
      UserError: the corpus cannot be had, or the sweep has two and --mix does not allow it.
    """
    key = lambda job: configs[job.name].data.to_json(sort_keys=True)
    pins = {key(job): earlier[job.name].corpus for job in sweep.jobs if job.name in earlier}
    loaded = {}
    for job in sweep.jobs:
        if key(job) not in loaded:
            data = configs[job.name].data.copy_and_resolve_references()
            data.fingerprint = pins.get(key(job), data.fingerprint)
            # text that is known by its fingerprint need not be on a machine that only submits; trainers check it
            known = data.fingerprint and sweep.backend != "local"
            loaded[key(job)] = data.fingerprint if known else corpus.load(data).fingerprint
        job.corpus = loaded[key(job)]
    found = sorted({job.corpus for job in sweep.jobs})
    if len(found) > 1 and "corpus" not in sweep.mix:
        raise cli.UserError(f"the sweep's jobs have {len(found)} corpora: {', '.join(found)}; --mix=corpus allows it")


def run():
    flags.mark_flags_as_required(["sweep", "workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
