"""What could not train where it is sent, found before anything is submitted: meshes, memory, tokens. Plain Python."""

import os
import re

from jmoe.config.check import check_mesh, microbatch_tokens
from jmoe.cost import counts
from jmoe.cost.chips import CHIPS, GiB
from jmoe.errors import UserError
from jmoe.run.schedule import Schedule
from jmoe.text import supply
from launch import accelerators

TOLD = 5  # jobs that one error names


def places(sweep, configs, accelerator: str | None) -> list[str]:
    """A sentence for each job whose mesh or memory is impossible on the devices it will get.

    Where their number is not known (a Slurm job that does not say its GPUs), only what no number of them could mend.
    """
    n_devices, capacity = devices(sweep, accelerator)
    told = []
    for group in sweep.groups():
        config, sizes = configs[group.name], None
        for job in group.jobs:
            try:
                mesh = configs[job.name].mesh
                sizes = check_mesh(configs[job.name], n_devices or mesh.expert * mesh.model)
            except UserError as error:
                told.append(f"{job.name}: {error}")
        limit = config.get("chip", {}).get("memory", 0.0) or capacity
        if sizes and n_devices and limit and (least := len(group.jobs) * least_bytes(config, sizes)) > limit:
            together = f" for {len(group.jobs)} jobs together" * (len(group.jobs) > 1)
            told.append(
                f"{group.name}: parameters, gradients, optimizer state and saved activations alone take "
                f"{least / GiB:,.1f} GiB of each device{together}, which has {limit / GiB:,.1f}: more devices, "
                "config.mesh.expert or .model, or a smaller config.microbatch_tokens spread them thinner"
            )
    return told


def check(told: list[str]) -> None:
    """Raises UserError with the sentences, the first few of them."""
    if told:
        more = f"\n... and {len(told) - TOLD} more" * (len(told) > TOLD)
        raise UserError("nothing is started, for these jobs could not train:\n" + "\n".join(told[:TOLD]) + more)


def tokens(sweep, configs, corpora) -> tuple[list[str], list[str]]:
    """A sentence for each job whose text has too few tokens for it, and the warnings about held-out text; of the
    corpora that are on this machine."""
    told, warnings = [], {}
    for job in sweep.trained:
        if job.corpus in corpora and not job.done():
            schedule = Schedule(configs[job.name])
            try:
                warning = supply.check(corpora[job.corpus], configs[job.name], schedule, schedule.segments[-1])
                warnings |= {warning: None} if warning else {}
            except UserError as error:
                told.append(f"{job.name}: {error}")
    return told, list(warnings)


def devices(sweep, accelerator: str | None) -> tuple[int | None, float | None]:
    """How many devices a job gets, and the bytes of memory of each; None where that is not known."""
    capacity = CHIPS[accelerators.chip(accelerator)].capacity if accelerator else None
    if accelerator and ":" in accelerator:
        return accelerators.parse(accelerator, sweep.options.get("n_slices", 1)).n_devices, capacity
    if sweep.backend == "slurm":
        return _slurm_devices(sweep.options["sbatch"]), capacity
    (place,) = sweep.engine.workers(1)
    return place["n_devices"], capacity or place["memory"]


def _slurm_devices(options) -> int | None:
    """Of each job, from the options that say so; None where they leave it open."""
    options = " ".join(options)
    number = lambda names: next((int(n) for n in re.findall(rf"(?:^| )(?:{names})[= ]?(\d+)(?: |$)", options)), None)
    nodes, tasks = number("--nodes|-N") or 1, number("--ntasks|-n")
    if of_node := number("--gpus-per-node(?:=[a-z]\\w*:)?|--gres=gpu(?::[a-z]\\w*)?:"):
        return of_node * nodes
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return (tasks or nodes) * host_devices()
    return None


def host_devices() -> int:
    """The CPU devices that XLA_FLAGS asks for; 1 by default."""
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else 1


def least_bytes(config, sizes: tuple[int, int, int]) -> int:
    """Bytes below which no device of a mesh of `sizes` (data, expert, model) can make a step; it will take more.

    Each parameter in float32 with two moments of AdamW, and its gradient in the type that it is computed in, all of
    which exist at once, for gradients are clipped by the norm of all; and what each block leaves to the backward pass.
    """
    data, expert, tensor = sizes
    model, narrow = config.model, 2 if config.model.dtype == "bfloat16" else 4
    n_parameters = counts.n_exact(model, dict(data=data, expert=expert, model=tensor))
    n_tokens = microbatch_tokens(config) or max(batch for _, batch in config.batch_tokens)
    activations = model.n_blocks * n_tokens // (data * expert) * model.d_model * narrow
    return n_parameters * (12 + narrow) + activations
