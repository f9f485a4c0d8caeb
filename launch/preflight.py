"""Before anything is submitted: fixes the corpus that all jobs share, and finds the jobs whose mesh, memory or tokens
would keep them from training where they are sent."""

import sys

from ml_collections import ConfigDict

from jmoe.config import counts, weights
from jmoe.config.check import check_mesh, microbatch_tokens
from jmoe.config.fields import NEUTRAL
from jmoe.cost.chips import GiB
from jmoe.errors import UserError
from jmoe.run.schedule import Schedule
from jmoe.storage.files import cache_dir
from jmoe.text import corpus, supply
from launch.backend import Sweep
from launch.jobs import Files

MOST_NAMED = 5  # jobs that one error names


def places(
    sweep: Sweep,
    configs: dict[str, ConfigDict],
    n_devices: int | None,
    capacity: float | None,
    n_slices: int = 1,
) -> list[str]:
    """A sentence for each job whose mesh or memory is impossible on the devices it will get, of `capacity` bytes, in
    `n_slices` TPU slices. If their number is not known (a Slurm job that does not say its GPUs), only what no number
    could mend."""
    reasons = []
    for job in sweep.trained:
        config = configs[job.name]
        try:
            if n_devices:
                sizes = check_mesh(config, n_devices, n_slices)
            else:
                sizes = check_mesh(config, config.mesh.expert * config.mesh.model)
        except UserError as error:
            reasons.append(f"{job.name}: {error}")
            continue
        limit = config.get("chip", {}).get("capacity", 0.0) or capacity
        if n_devices and limit and (least := least_bytes(config, sizes)) > limit:
            reasons.append(
                f"{job.name}: parameters, gradients, optimizer state and saved activations alone take "
                f"{least / GiB:,.1f} GiB of each device, which has {limit / GiB:,.1f}: more devices, "
                "config.mesh.expert or .model, or a smaller config.microbatch_tokens spread them thinner"
            )
    return reasons


def check(reasons: list[str]) -> None:
    """Raises UserError with the first few of the sentences, if there are any."""
    if reasons:
        more = f"\n... and {len(reasons) - MOST_NAMED} more" * (len(reasons) > MOST_NAMED)
        named = "\n".join(reasons[:MOST_NAMED])
        raise UserError(f"nothing is started, for these jobs could not train:\n{named}{more}")


def pin_corpus(sweep: Sweep, configs: dict[str, ConfigDict]) -> dict:
    """Prepares each corpus once and gives its fingerprint to all its jobs, later ones too: all see the same text.
    Returns the corpora that are on this machine, by fingerprint. UserError where a corpus cannot be loaded, or the
    sweep has two and --mix does not allow it."""
    key = lambda job: configs[job.name].data.to_json(sort_keys=True)
    pins = {key(job): job.corpus for job in sweep.trained if job.corpus}  # of earlier starts
    fingerprints, corpora = {}, {}
    for job in sweep.trained:
        if key(job) not in fingerprints:
            data = ConfigDict(configs[job.name].data)
            data.fingerprint = pins.get(key(job)) or data.fingerprint
            # a machine that only submits does not need a text whose fingerprint is known: trainers check the text
            cached = data.fingerprint and (cache_dir() / "tokens" / data.fingerprint).exists()
            if sweep.engine.ON_THIS_MACHINE or not data.fingerprint or cached:
                text = corpus.load(data)
                data.fingerprint, corpora[text.fingerprint] = text.fingerprint, text
            fingerprints[key(job)] = data.fingerprint
        job.corpus = fingerprints[key(job)]
    found = sorted({job.corpus for job in sweep.trained})
    if len(found) > 1 and "corpus" not in sweep.mix:
        raise UserError(f"the sweep's jobs have {len(found)} corpora: {', '.join(found)}; --mix=corpus allows it")
    return corpora


def tokens(sweep: Sweep, configs: dict[str, ConfigDict], corpora: dict, files: Files) -> None:
    """Prints the warnings about held-out text. UserError where a job's corpus has too few tokens. Looks only at corpora
    that are on this machine; `files` as jobs.files_of lists them."""
    reasons, warnings = [], {}
    for job in sweep.trained:
        if job.corpus in corpora and not job.done(files):
            schedule = Schedule(configs[job.name])
            try:
                warning = supply.check(corpora[job.corpus], configs[job.name], schedule, schedule.segments[-1])
                warnings |= {warning: None} if warning else {}
            except UserError as error:
                reasons.append(f"{job.name}: {error}")
    check(reasons)
    for warning in warnings:
        print(warning, file=sys.stderr)


def least_bytes(config: ConfigDict, sizes: tuple[int, int, int]) -> int:
    """The least bytes that a step takes on a device of a mesh of `sizes` (data, expert, model); it will take more.
    Counts each parameter and its two AdamW moments, or Muon's one, in float32; its gradient in the type that it is
    computed in (all exist at once, because they are clipped by their common norm); and what blocks keep for the way
    back."""
    data, expert, tensor = sizes
    model, narrow = config.model, 2 if config.model.dtype == "bfloat16" else 4
    mesh = dict(data=data, expert=expert, model=tensor)
    n_parameters, by_muon = counts.n_exact(model, mesh), 0
    if config.optimizer.get("name", NEUTRAL["optimizer.name"]) == "muon":
        by_muon = counts.n_exact(model, mesh, weights.MATRICES)
    n_tokens = microbatch_tokens(config) or max(batch for _, batch in config.batch_tokens)
    activations = model.n_blocks * n_tokens // (data * expert) * model.d_model * narrow
    return n_parameters * (12 + narrow) - 4 * by_muon + activations
