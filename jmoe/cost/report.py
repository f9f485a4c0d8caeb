"""The cost of one compiled step on each device, in JSON types: bytes, FLOPs and seconds of a step."""

import bisect
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.cost import chips, needs
from jmoe.cost.collectives import Collective
from jmoe.cost.memory import DoesNotFit, compile_step, gib, microbatches, of_step, with_microbatches
from jmoe.cost.program import Program
from jmoe.model import sharding
from jmoe.model.moe_dropless import BUFFER_FACTOR


def measure(config: ConfigDict, devices: Sequence[jax.Device]) -> dict[str, Any]:
    """Compiles the step of `config` for `devices` and reports what it costs.

    Returns:
      As `report`; without "flops", and with the compiler's reason, where the compiler found no way to fit the step.

    Raises:
      UserError: The config is invalid or does not divide over the devices.
    """
    try:
        mesh, compiled = compile_step(config, devices)
    except DoesNotFit as error:
        return {"fits": False, "n_devices": len(devices), "compiler": str(error)}
    chip = chips.of_device(devices[0], config.chip)
    return report(config, mesh, compiled, chip, chips.measured(devices[0]))


def report(
    config: ConfigDict,
    mesh: jax.sharding.Mesh,
    compiled: jax.stages.Compiled,
    chip: chips.Chip | None,
    measured: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything about one compiled step, in JSON types.

    Args:
      config: The run's config.
      mesh: The mesh that the step is compiled for.
      compiled: The step.
      chip: Published peaks, for a roofline; None if unknown.
      measured: Measured peaks (chips.measured), for another roofline.
    """
    program = Program(compiled.as_text() or "")
    memory = of_step(compiled)
    n_slices = sharding.count_slices(list(mesh.devices.flat))
    collectives = program.collectives()
    between_slices = program.between_slices(n_slices)
    arrays = sorted(program.arrays().items(), key=lambda item: -item[0].bytes)
    fits = chip is None or not chip.capacity or memory["peak"] <= chip.capacity
    result = {
        "mesh": dict(mesh.shape),
        "n_devices": mesh.size,
        "n_active": counts.n_active(config.model),
        "n_total": counts.n_total(config.model),
        "kv_cache_bytes_per_token": counts.kv_elements(config.model, 1) * jnp.dtype(config.model.dtype).itemsize,
        "n_tokens": max(batch for _, batch in config.batch_tokens),
        "jax_version": jax.__version__,
        "memory_bytes": memory,
        "fits": fits,
        "flops": _flops(config, program, mesh.size),
        "main_memory_bytes": program.main_memory_bytes(),
        "estimated_memory_bytes": program.estimated_bytes(),
        "warnings": needs.warnings(config, program, mesh.size),
        "collectives": _totals(collectives),
        "n_slices": n_slices,
        "between_slices": _totals(between_slices),
        "experts": _expert_traffic(config, mesh.size),
        "each_collective": [dataclasses.asdict(collective) for collective in collectives],
        "each_between_slices": [dataclasses.asdict(transfer) for transfer in between_slices],
        "largest_arrays": [
            {"array": str(array), "bytes": array.bytes, "source": source} for array, source in arrays[:32]
        ],
    }
    if chip:
        result["chip"] = dataclasses.asdict(chip)
    if chip and chip.flops and chip.bandwidth and (chip.network or not collectives):
        result |= _roofline(result, chip, chip.flops)
    network = chip.network if chip else 0.0
    if measured and (network or not collectives):
        measured_chip = chips.Chip(flops=measured["flops"], bandwidth=measured["bandwidth"], network=network)
        result["measured_peaks"] = measured | _roofline(result, measured_chip, chip.flops if chip else 0.0)
    return result


def _totals(transfers: list[Collective]) -> dict[str, dict[str, int]]:
    """How many transfers of each kind run in a step, and the bytes that leave a device by them."""
    totals: dict[str, dict[str, int]] = {}
    for transfer in transfers:
        total = totals.setdefault(transfer.kind, {"number": 0, "bytes": 0})
        total["number"] += transfer.times
        total["bytes"] += transfer.times * transfer.bytes
    return totals


def _flops(config: ConfigDict, program: Program, n_devices: int) -> dict[str, Any]:
    """FLOPs of the compiled program, and each device's share of the model FLOPs."""
    n_tokens = max(batch for _, batch in config.batch_tokens)
    sends_rows = config.model.capacity_factor is None and config.mesh.expert > 1
    filled = 1 / BUFFER_FACTOR if sends_rows else 1.0  # rows arrive in buffers that are larger by that factor
    flops = {
        "matmul": program.matmul_flops(filled=filled),
        "matmul_passes": program.matmul_flops(passes=True, filled=filled),
        "estimated": program.estimated_flops(),
        "elementwise": program.elementwise_flops(),
        "model": {
            part: per_token * n_tokens // n_devices
            for part, per_token in counts.matmul_flops_per_token(config.model, config.data.seq_len).items()
        },
    }
    compiled_over_model = (flops["matmul"] + flops["elementwise"]) / sum(flops["model"].values())
    return flops | {"compiled_over_model": compiled_over_model}


def _roofline(result: dict[str, Any], chip: chips.Chip, published_flops: float) -> dict[str, Any]:
    """Seconds of a step if all of its parts overlap and if none does, and the MFU of both.

    Args:
      result: The report so far.
      chip: Peaks to reach.
      published_flops: FLOP/s that MFU is a share of; chip.flops if 0.
    """
    sent_bytes = sum(total["bytes"] for total in result["collectives"].values())
    parts = {
        "compute": result["flops"]["matmul_passes"] / chip.flops,
        "memory": result["main_memory_bytes"] / chip.bandwidth,
        "network": sent_bytes / chip.network if sent_bytes else 0.0,
    }
    seconds = {"overlapped": max(parts.values()), "serial": sum(parts.values())}
    model = sum(result["flops"]["model"].values())
    mfu = {name: model / (value * (published_flops or chip.flops)) for name, value in seconds.items()}
    return {"roofline_seconds": parts | seconds, "mfu": mfu}


def _expert_traffic(config: ConfigDict, n_devices: int) -> dict[str, Any] | None:
    """Estimates what leaves a device in a step to bring tokens and experts together, to choose mesh.expert by.

    Returns:
      {"here": {"expert", "sent_bytes"}} with config.mesh.expert, and the same as "least" with the value of it that
      sends least. None with a capacity, or without a mixture.
    """
    model = config.model
    if model.n_experts == 1 or model.capacity_factor is not None:
        return None
    largest = math.gcd(model.n_experts, n_devices // config.mesh.model)
    choices = [_sent_to_experts(config, n_devices, n) for n in range(1, largest + 1) if largest % n == 0]
    return {
        "here": _sent_to_experts(config, n_devices, config.mesh.expert),
        "least": min(choices, key=lambda choice: choice["sent_bytes"]),
    }


def _sent_to_experts(config: ConfigDict, n_devices: int, n_expert: int) -> dict[str, Any]:
    """The estimate of _expert_traffic with config.mesh.expert=`n_expert`.

    Rows cross the expert axis five times in a step with config.remat="full": to their experts and back, and three times
    in the backward pass. A device's experts are stored spread over the data axis: they are gathered twice, and their
    gradients scattered once, in each microbatch.
    """
    model = config.model
    n_tokens = max(batch for _, batch in config.batch_tokens)
    n_mixtures = model.n_blocks - model.n_dense_blocks
    n_data = n_devices // (n_expert * config.mesh.model)
    rows = 5 * n_mixtures * n_tokens * model.top_k / (n_data * n_expert) * BUFFER_FACTOR * model.d_model
    mesh = {"data": 1, "expert": n_expert, "model": config.mesh.model}
    n_transfers = 3 * n_tokens // (config.microbatch_tokens or n_tokens)
    experts = n_transfers * counts.n_exact(model, mesh, ("expert",))
    elements = rows * _leaving_part(n_expert) + experts * _leaving_part(n_data)
    return {"expert": n_expert, "sent_bytes": elements * jnp.dtype(model.dtype).itemsize}


def _leaving_part(n_devices: int) -> float:
    """The part of what `n_devices` exchange evenly that leaves each of them."""
    return (n_devices - 1) / n_devices


def smaller(config: ConfigDict, devices: Sequence[jax.Device]) -> tuple[dict[str, Any], str]:
    """The largest config.microbatch_tokens with which a step fits that did not: as JSON, and as a line to read."""
    reports: dict[int, dict[str, Any]] = {}

    def fits(n_tokens: int) -> bool:
        print(f"compiling with --config.microbatch_tokens={n_tokens}", file=sys.stderr)
        reports[n_tokens] = measure(with_microbatches(config, n_tokens), devices)
        return reports[n_tokens]["fits"]

    sizes = microbatches(config, len(devices))  # the largest first, so that those that fit come last
    index = bisect.bisect_left(sizes, True, key=fits)
    if index < len(sizes):
        n_tokens = sizes[index]
        peak = reports[n_tokens]["memory_bytes"]["peak"]
        line = f"  fits by --config.microbatch_tokens={n_tokens}: peak {gib(peak)}"
        return {"microbatch_tokens": n_tokens, "peak": peak}, line
    reason = f", not even {min(reports)} tokens at once" if reports else ": none divides"
    line = f"  NO config.microbatch_tokens FITS{reason}; more devices or config.mesh spread the rest"
    return {"microbatch_tokens": None}, line
