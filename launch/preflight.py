"""Checks before anything is submitted: the corpus that all jobs share, and each job's mesh, memory and tokens.

`places`, `tokens` and `text` find the jobs that could not train where they are sent. `pin_corpus` fixes the corpus.
"""

import math
import sys
from typing import Any

from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.config.check import check_mesh
from jmoe.config.schedule import Schedule
from jmoe.cost.chips import GiB
from jmoe.errors import UserError
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
    """Finds the jobs whose mesh or memory is impossible on the devices that they will get.

    Args:
      sweep: The sweep.
      configs: The config of each job, by the job's name.
      n_devices: Devices of a job. None if that is not known, as for a Slurm job that does not say its GPUs: then
        only a mesh that no number of devices could fill is impossible.
      capacity: Bytes of memory of a device; None if that is not known.
      n_slices: TPU slices of a job.

    Returns:
      A sentence for each such job.
    """
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
        limit = config.chip.capacity or capacity
        if not n_devices or not limit:
            continue
        least = least_bytes(config, sizes)
        if least > limit:
            reasons.append(
                f"{job.name}: parameters, gradients, optimizer state and saved activations alone take "
                f"{least / GiB:,.1f} GiB of each device, which has {limit / GiB:,.1f}: more devices, "
                "config.mesh.expert or .model, or a smaller config.microbatch_tokens spread them thinner"
            )
    return reasons


def check(reasons: list[str]) -> None:
    """Raises UserError with the first few of the sentences, if there are any."""
    if not reasons:
        return
    lines = reasons[:MOST_NAMED]
    if len(reasons) > MOST_NAMED:
        lines.append(f"... and {len(reasons) - MOST_NAMED} more")
    raise UserError("\n".join(["nothing is started, for these jobs could not train:", *lines]))


def pin_corpus(sweep: Sweep, configs: dict[str, ConfigDict]) -> dict:
    """Prepares each corpus once and gives its fingerprint to all its jobs, later ones too, so that all see one text.

    Returns:
      The corpora that are on this machine, by fingerprint.

    Raises:
      UserError: A corpus cannot be loaded, or the sweep has two and --mix does not allow it.
    """
    keys = {job.name: configs[job.name].data.to_json(sort_keys=True) for job in sweep.trained}
    pins = {keys[job.name]: job.corpus for job in sweep.trained if job.corpus}  # of earlier starts
    fingerprints = {}
    corpora = {}
    for job in sweep.trained:
        key = keys[job.name]
        if key not in fingerprints:
            data = ConfigDict(configs[job.name].data)
            data.fingerprint = pins.get(key) or data.fingerprint
            # a machine that only submits does not need a text whose fingerprint is known: trainers check the text
            if sweep.engine.ON_THIS_MACHINE or not data.fingerprint or _is_cached(data):
                loaded = corpus.load(data)
                data.fingerprint = loaded.fingerprint
                corpora[loaded.fingerprint] = loaded
            fingerprints[key] = data.fingerprint
        job.corpus = fingerprints[key]
    reasons = _several_corpora(sweep, sorted({job.corpus for job in sweep.trained}))
    if reasons:
        raise UserError(reasons[0])
    return corpora


def _several_corpora(sweep: Sweep, fingerprints: list[str]) -> list[str]:
    """A sentence if there are several corpora and --mix does not allow it; else []."""
    if len(fingerprints) <= 1 or "corpus" in sweep.mix:
        return []
    listed = ", ".join(fingerprints)
    return [f"the sweep's jobs have {len(fingerprints)} corpora: {listed}; --mix=corpus allows it"]


def tokens(sweep: Sweep, configs: dict[str, ConfigDict], corpora: dict, files: Files) -> None:
    """Checks that each job's corpus has enough tokens, and prints the warnings about held-out text.

    Args:
      sweep: The sweep.
      configs: The config of each job, by the job's name.
      corpora: The corpora that are on this machine, by fingerprint. Jobs with another one are not checked.
      files: The sweep's files, as jobs.files_of lists them.

    Raises:
      UserError: A job's corpus has too few tokens.
    """
    reasons = []
    warnings = {}  # keys only, in order
    for job in sweep.trained:
        if job.corpus not in corpora or job.done(files):
            continue
        schedule = Schedule(configs[job.name])
        try:
            warning = mixture.check(corpora[job.corpus], configs[job.name], schedule, schedule.segments[-1])
        except UserError as error:
            reasons.append(f"{job.name}: {error}")
            continue
        if warning:
            warnings[warning] = None
    check(reasons)
    for warning in warnings:
        print(warning, file=sys.stderr)


def text(sweep: Sweep, configs: dict[str, ConfigDict]) -> tuple[list[str], list[str]]:
    """Checks, without a start, what `pin_corpus` and `tokens` check at a start.

    Prepares, fetches and writes nothing. Of a text that is not prepared on this machine, only the size in bytes is
    known.

    Returns:
      A sentence for each job whose text is too small or cannot be used, and notes on what could not be checked.
    """
    reasons = []
    notes = {}  # keys only, in order
    corpora = {}  # keys only, in order: the fingerprints of prepared texts
    sizes = {}  # by data section: (the prepared corpus or None, its largest number of tokens)
    for job in sweep.trained:
        config = configs[job.name]
        data = config.data
        key = data.to_json(sort_keys=True)
        is_elsewhere = bool(data.fingerprint) and not sweep.engine.ON_THIS_MACHINE
        try:
            if key not in sizes:
                sizes[key] = _opened(data, is_elsewhere)
            prepared, most_tokens = sizes[key]
            schedule = Schedule(config)
            if prepared:
                corpora[prepared.fingerprint] = None
                warning = mixture.check(prepared, config, schedule, schedule.segments[-1])
                if warning:
                    notes[warning] = None
                continue
        except UserError as error:
            reasons.append(f"{job.name}: {error}")
            continue
        n_tokens = schedule.tokens_at(schedule.segments[-1].stop)
        if n_tokens > data.max_epochs * most_tokens:
            reasons.append(f"{job.name}: {_too_small(config, n_tokens, most_tokens)}")
        elif is_elsewhere:
            notes[f"the text {data.fingerprint} is not on this machine: its size is not checked"] = None
        else:
            notes["the text is not prepared on this machine: its size is checked when the sweep starts"] = None
    return reasons + _several_corpora(sweep, list(corpora)), list(notes)


def _opened(data: ConfigDict, is_elsewhere: bool) -> tuple[Any, float]:
    """A prepared corpus, or None, and the most tokens that its text has; inf if that is not known here."""
    if is_elsewhere and not _is_cached(data):
        return None, math.inf
    prepared = corpus.opened(data)
    if prepared or is_elsewhere:
        return prepared, math.inf
    return None, corpus.most_tokens(data)


def _is_cached(data: ConfigDict) -> bool:
    return (cache_dir() / "tokens" / data.fingerprint).exists()


def _too_small(config: ConfigDict, n_tokens: int, most_tokens: float) -> str:
    """The sentence on a text that has fewer tokens than a run trains on."""
    name = config.data.path or "the standard library of this Python, the default text,"
    return (
        f"the run asks for {n_tokens:,} training tokens and {name} has at most {most_tokens:,.0f} by the size of its "
        "files: name more text by --config.data.path"
    )


def least_bytes(config: ConfigDict, sizes: tuple[int, int, int]) -> int:
    """A lower bound on the bytes that a step takes on each device.

    It counts each parameter and its two AdamW moments, or Muon's one, in float32. It adds each gradient in the type
    that it is computed in: all exist at once, because they are clipped by their common norm. It adds the activations
    that blocks save for the backward pass.

    Args:
      config: The config of a run.
      sizes: The mesh: sizes of its axes data, expert and model.
    """
    data, expert, tensor = sizes
    model = config.model
    mesh = dict(data=data, expert=expert, model=tensor)
    bytes_of_value = 2 if model.dtype == "bfloat16" else 4
    n_parameters = counts.n_exact(model, mesh)
    parameter_bytes = n_parameters * (12 + bytes_of_value)  # parameter and two moments in float32, and the gradient
    if config.optimizer.name == "muon":
        parameter_bytes -= 4 * counts.n_exact(model, mesh, counts.MATRICES)  # a moment less
    n_tokens = config.microbatch_tokens or max(batch for _, batch in config.batch_tokens)
    activation_bytes = model.n_blocks * n_tokens // (data * expert) * model.d_model * bytes_of_value
    return parameter_bytes + activation_bytes
