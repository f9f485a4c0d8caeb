"""The cost of a sweep on its accelerators: the hours of each job by fit's model of training speed, or at one MFU.

The model of speed is calibrated on published runs (fit/model/efficiencies.py). It knows chips, sizes, experts and the
mesh. An MFU is the same share of the chips' peak for all jobs.
"""

import dataclasses
from collections.abc import Sequence

from ml_collections import ConfigDict

from fit.model import efficiencies
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_cost import IMBALANCE
from jmoe.config.check import check_mesh
from jmoe.errors import UserError
from launch import accelerators
from launch.jobs import Job

DEFAULT_MFU = 0.4  # of jobs whose speed is not modelled


@dataclasses.dataclass(frozen=True)
class Price:
    """The chip hours of a job.

    Attributes:
      chip_hours: Hours of one chip times the chips of the job.
      mfu: Share of the chips' peak that this amounts to, with 6 FLOPs for each active parameter and token.
      modelled: Whether the hours follow from the model of speed, and not from an MFU that is assumed.
    """

    chip_hours: float
    mfu: float
    modelled: bool


def price_of(job: Job, config: ConfigDict, accelerator: str, n_slices: int, mfu: float | None) -> Price:
    """Prices a job.

    Args:
      job: The job.
      config: Its config.
      accelerator: What it runs on, as --accelerator names it; without a size it is one chip.
      n_slices: TPU slices of the job.
      mfu: The MFU to assume; None to model the speed.
    """
    kind = accelerators.chip(accelerator)
    peak = accelerators.peak_flops(kind)
    if mfu is None:
        of_chip = tokens_per_chip_second(config, accelerator, n_slices)
        if of_chip is not None:
            chip_seconds = job.training_tokens / of_chip
            return Price(chip_seconds / 3600, job.flops / (chip_seconds * peak), modelled=True)
        mfu = DEFAULT_MFU
    return Price(job.flops / (peak * mfu * 3600), mfu, modelled=False)


def tokens_per_chip_second(config: ConfigDict, accelerator: str, n_slices: int = 1) -> float | None:
    """Models the speed of a job at its largest batch.

    Args:
      config: The config of the job.
      accelerator: What it runs on, as --accelerator names it; without a size it is one copy of the experts.
      n_slices: TPU slices of the job.

    Returns:
      Tokens per second and chip, the median of the model's range; None where the mesh is impossible on these chips.
    """
    layout = _layout_of(config, accelerator, n_slices)
    if layout is None:
        return None
    shape = ModelShape.of_config(config.model.to_dict())
    kind = accelerators.chip(accelerator)
    n_chips = accelerators.n_chips(accelerator, int(layout.n_devices)) or 1
    cost = efficiencies.of_our_trainer(kind, n_chips).step_cost(kind, shape, layout)
    return float(layout.batch_tokens / cost.seconds / n_chips)


def _layout_of(config: ConfigDict, accelerator: str, n_slices: int) -> Layout | None:
    """The mesh and batch by which the trainer trains a config; None where the mesh is impossible."""
    n_devices, _ = accelerators.devices(accelerator, n_slices)
    n_devices = n_devices or config.mesh.expert * config.mesh.model
    try:
        data, expert, model = check_mesh(config, n_devices, accelerators.tpu_slices(accelerator, n_slices))
    except UserError:
        return None
    batch = max(tokens for _, tokens in config.batch_tokens)
    at_once = config.microbatch_tokens or batch
    slots = config.model.capacity_factor
    is_uneven = slots is None and config.model.n_experts > 1 and expert > 1
    return Layout(
        batch_tokens=batch,
        sequence=config.data.seq_len,
        data=data,
        expert=expert,
        model=model,
        microbatch_tokens=min(at_once, batch),
        remat=config.remat,
        slots=1.0 if slots is None else slots,
        buffer=1.0 if slots is None else 0.0,
        imbalance=IMBALANCE if is_uneven else 1.0,
        flash=config.model.attention == "flash",
    )


def summary(prices: Sequence[Price], peak_flops: float) -> str:
    """A sentence on how all jobs are priced. `peak_flops`: FLOP/s of a chip."""
    modelled = [price for price in prices if price.modelled]
    if not modelled:
        return f"at {prices[0].mfu:.0%} of {peak_flops:.3g} FLOP/s"
    low, _, high = efficiencies.calibrated().factors()
    shares = [price.mfu for price in modelled]
    least, most = (f"{100 * share:.2g}%" for share in (min(shares), max(shares)))
    mfu = least if least == most else f"{least} to {most}"
    ends = f"80% range of the hours: {low:.2f} to {high:.2f} times these"
    text = f"at modelled speeds (MFU {mfu} of {peak_flops:.3g} FLOP/s; {ends})"
    if len(modelled) < len(prices):
        text += f"; {len(prices) - len(modelled)} jobs, whose mesh is impossible here, at {DEFAULT_MFU:.0%}"
    return text
