"""Before anything is submitted: fixes the corpus that all jobs share, and finds the jobs whose mesh, memory or tokens
would keep them from training where they are sent."""

import math
import sys

from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.config.check import check_mesh, microbatch_tokens
from jmoe.config.schema import NEUTRAL
from jmoe.cost.chips import GiB
from jmoe.errors import UserError
from jmoe.run.schedule import Schedule
from jmoe.storage.files import cache_dir
from jmoe.text import corpus, mixture
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
                warning = mixture.check(corpora[job.corpus], configs[job.name], schedule, schedule.segments[-1])
                warnings |= {warning: None} if warning else {}
            except UserError as error:
                reasons.append(f"{job.name}: {error}")
    check(reasons)
    for warning in warnings:
        print(warning, file=sys.stderr)


def text(sweep: Sweep, configs: dict[str, ConfigDict]) -> tuple[list[str], list[str]]:
    """(a sentence for each job whose text is too small or cannot be used, notes on what could not be checked), of what
    `pin_corpus` and `tokens` check at a start. Prepares, fetches and writes nothing: of a text that is not prepared on
    this machine, only its size in bytes is known."""
    reasons, notes, corpora, known = [], {}, {}, {}
    for job in sweep.trained:
        config = configs[job.name]
        key = config.data.to_json(sort_keys=True)
        elsewhere = not sweep.engine.ON_THIS_MACHINE and config.data.fingerprint
        try:
            if key not in known:
                found = None if elsewhere and not _is_cached(config.data) else corpus.opened(config.data)
                known[key] = found, math.inf if found or elsewhere else corpus.most_tokens(config.data)
            found, most = known[key]
            schedule = Schedule(config)
            if found:
                corpora[found.fingerprint] = job.name
                if warning := mixture.check(found, config, schedule, schedule.segments[-1]):
                    notes[warning] = None
                continue
            asked = schedule.tokens_at(schedule.segments[-1].stop)
            if asked > config.data.max_epochs * most:
                reasons.append(f"{job.name}: {_too_small(config, asked, most)}")
            elif elsewhere:
                notes[f"the text {config.data.fingerprint} is not on this machine: its size is not checked"] = None
            else:
                notes["the text is not prepared on this machine: its size is checked when the sweep starts"] = None
        except UserError as error:
            reasons.append(f"{job.name}: {error}")
    if len(corpora) > 1 and "corpus" not in sweep.mix:
        reasons.append(f"the sweep's jobs have {len(corpora)} corpora: {', '.join(corpora)}; --mix=corpus allows it")
    return reasons, list(notes)


def _is_cached(data: ConfigDict) -> bool:
    return (cache_dir() / "tokens" / data.fingerprint).exists()


def _too_small(config: ConfigDict, asked: int, most: float) -> str:
    """The sentence on a text of at most so many tokens, of which a run asks for more."""
    name = config.data.path or "the standard library of this Python, the default text,"
    return (
        f"the run asks for {asked:,} training tokens and {name} has at most {most:,.0f} by the size of its files: name "
        "more text by --config.data.path"
    )


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
        by_muon = counts.n_exact(model, mesh, counts.MATRICES)
    n_tokens = microbatch_tokens(config) or max(batch for _, batch in config.batch_tokens)
    activations = model.n_blocks * n_tokens // (data * expert) * model.d_model * narrow
    return n_parameters * (12 + narrow) - 4 * by_muon + activations
