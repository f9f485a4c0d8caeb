"""What one compiled step costs on each device: as a dictionary for JSON, and as lines to read.

Bytes, FLOPs and seconds, per device and step.
"""

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
from jmoe.cost.memory import DoesNotFit, compile_step, gib, microbatches, of_step, with_microbatches
from jmoe.cost.program import Collective, Program
from jmoe.model import sharding
from jmoe.model.moe_dropless import BUFFER_FACTOR

REFUSED = "DOES NOT FIT; the compiler says: "


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
    result = {
        "mesh": dict(mesh.shape),
        "n_devices": mesh.size,
        "n_active": counts.n_active(config.model),
        "n_total": counts.n_total(config.model),
        "kv_cache_bytes_per_token": counts.kv_elements(config.model, 1) * jnp.dtype(config.model.dtype).itemsize,
        "n_tokens": max(batch for _, batch in config.batch_tokens),
        "jax_version": jax.__version__,
        "memory_bytes": memory,
        "fits": not (chip and chip.capacity) or memory["peak"] <= chip.capacity,
        "flops": _flops(config, program, compiled, mesh.size),
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


def _flops(config: ConfigDict, program: Program, compiled: jax.stages.Compiled, n_devices: int) -> dict[str, Any]:
    """FLOPs of the compiled program, and each device's share of the model FLOPs."""
    by_xla: Any = compiled.cost_analysis()
    n_tokens = max(batch for _, batch in config.batch_tokens)
    filled = 1 / BUFFER_FACTOR if config.model.capacity_factor is None and config.mesh.expert > 1 else 1.0
    flops = {
        "matmul": program.matmul_flops(filled=filled),
        "matmul_passes": program.matmul_flops(passes=True, filled=filled),
        "estimated": program.estimated_flops(),
        "elementwise": program.elementwise_flops(),
        "model": {
            part: per_token * n_tokens // n_devices
            for part, per_token in counts.matmul_flops_per_token(config.model, config.data.seq_len).items()
        },
        "loops_once": program.matmul_flops(loops_once=True) + program.elementwise_flops(loops_once=True),
        "loops_once_by_xla": int(by_xla["flops"]) if by_xla else None,  # XLA has none for GPUs that are not there
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
    parts = {
        "compute": result["flops"]["matmul_passes"] / chip.flops,
        "memory": result["main_memory_bytes"] / chip.bandwidth,
        "network": sum(total["bytes"] for total in result["collectives"].values()) / (chip.network or 1),
    }
    seconds = {"overlapped": max(parts.values()), "serial": sum(parts.values())}
    model = sum(result["flops"]["model"].values())
    mfu = {name: model / (value * (published_flops or chip.flops)) for name, value in seconds.items()}
    return {"roofline_seconds": parts | seconds, "mfu": mfu}


def _expert_traffic(config: ConfigDict, n_devices: int) -> dict[str, Any] | None:
    """Estimates what leaves a device in a step to bring tokens and experts together, to choose mesh.expert by.

    Returns:
      "expert" and "sent_bytes" with config.mesh.expert ("here") and with the value of it that sends least ("least").
      None with a capacity, or without a mixture.
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
    """What _expert_traffic estimates with config.mesh.expert=`n_expert`.

    Rows travel to the devices of their experts and back, twice forward, three times backward (with config.remat =
    "full"). A device's experts are stored spread over the data axis: they are gathered twice, and their gradients
    scattered once.
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

    sizes = microbatches(config, len(devices))
    index = bisect.bisect_left(sizes, True, key=fits)
    if index < len(sizes):
        n_tokens = sizes[index]
        peak = reports[n_tokens]["memory_bytes"]["peak"]
        line = f"  fits by --config.microbatch_tokens={n_tokens}: peak {gib(peak)}"
        return {"microbatch_tokens": n_tokens, "peak": peak}, line
    reason = f", not even {min(reports)} tokens at once" if reports else ": none divides"
    line = f"  NO config.microbatch_tokens FITS{reason}; more devices or config.mesh spread the rest"
    return {"microbatch_tokens": None}, line


def remat_table(results: dict[str, dict[str, Any]], title: str) -> str:
    """Reports by config.remat as lines to read."""
    lines = [f"{title}, per device and step", "  remat  temporaries  peak        FLOPs over the model's"]
    for name, result in results.items():
        if "flops" not in result:
            lines.append(f"  {name:5}  {REFUSED}{result['compiler']}")
            continue
        memory = result["memory_bytes"]
        ratio = result["flops"]["compiled_over_model"]
        verdict = "" if result["fits"] else "  DOES NOT FIT"
        lines.append(f"  {name:5}  {gib(memory['temporaries']):11}  {gib(memory['peak']):10}  {ratio:.3f}{verdict}")
        lines += [f"  warning: {sentence}" for sentence in result["warnings"]]
    fitting = [name for name, result in results.items() if result["fits"]]
    cheapest = min(fitting, key=lambda name: results[name]["flops"]["compiled_over_model"], default=None)
    lines.append(f"  the cheapest that fits: --config.remat={cheapest}" if cheapest else "  NONE FITS")
    return "\n".join(lines)


def table(result: dict[str, Any], title: str) -> str:
    """A report as lines to read."""
    if "flops" not in result:
        return f"{title}: {REFUSED}{result['compiler']}"
    mesh = ", ".join(f"{axis} {size}" for axis, size in result["mesh"].items())
    lines = [
        f"{title}: {_si(result['n_active'])} active, {_si(result['n_total'])} total; {result['n_devices']} devices "
        f"({mesh}), {result['n_tokens']:,} tokens a step",
        f"generating, each token of context keeps {_si(result['kv_cache_bytes_per_token'])}B of keys and values",
        "per device and step",
        _memory_line(result),
        *_flops_lines(result["flops"]),
        f"  main memory  {_si(result['main_memory_bytes'])}B read and written" + _estimated_bytes(result),
        *_collectives_lines(result),
        *_experts_lines(result["experts"]),
        "  largest arrays",
    ]
    for array in result["largest_arrays"][:4]:
        lines.append(f"    {gib(array['bytes']):10}  {array['array']:28} {array['source']}")
    lines += _rooflines(result)
    lines.append("  fits" if result["fits"] else "  DOES NOT FIT")
    lines += [f"warning: {sentence}" for sentence in result["warnings"]]
    return "\n".join(lines)


def _memory_line(result: dict[str, Any]) -> str:
    memory = result["memory_bytes"]
    capacity = result.get("chip", {}).get("capacity")
    of_capacity = f" of {gib(capacity)}" if capacity else ""
    return (
        f"  memory       peak {gib(memory['peak'])}{of_capacity}: arguments {gib(memory['arguments'])}, temporaries "
        f"{gib(memory['temporaries'])}, outputs beside the donated {gib(memory['outputs_not_donated'])}, program "
        f"{gib(memory['program'])}"
    )


def _flops_lines(flops: dict[str, Any]) -> list[str]:
    model_flops = sum(flops["model"].values())
    parts = ", ".join(f"{name} {_si(value)}" for name, value in flops["model"].items())
    by_xla = _si(flops["loops_once_by_xla"]) if flops["loops_once_by_xla"] else "unknown"
    estimated = ""
    if flops["estimated"]:
        estimated = f"; {_si(flops['estimated'])} are estimated from the shapes of kernels"
    return [
        f"  FLOPs        {_si(flops['matmul'] + flops['elementwise'])} compiled (matmuls {_si(flops['matmul'])}), "
        f"{flops['compiled_over_model']:.3f} times the model's {_si(model_flops)}: {parts}",
        f"               with loops counted once {_si(flops['loops_once'])}, by XLA's cost analysis {by_xla}"
        + estimated,
    ]


def _collectives_lines(result: dict[str, Any]) -> list[str]:
    """The collectives by kind, and those between slices."""
    lines = ["  collectives          number   sent", *_totals_lines(result["collectives"])]
    if result["n_slices"] > 1:
        n_bytes = sum(total["bytes"] for total in result["between_slices"].values())
        n_slices = result["n_slices"]
        lines.append(f"  between {n_slices} slices     number   sent, {_si(n_bytes)}B in all, not in the roofline")
        lines += _totals_lines(result["between_slices"])
    return lines


def _totals_lines(totals: dict[str, dict[str, int]]) -> list[str]:
    return [f"    {kind:20}{total['number']:5}  {_si(total['bytes'])}B" for kind, total in sorted(totals.items())]


def _experts_lines(traffic: dict[str, Any] | None) -> list[str]:
    """How tokens and experts come together, of _expert_traffic."""
    if traffic is None:
        return []
    here = traffic["here"]
    least = traffic["least"]
    how = "rows travel to their experts" if here["expert"] > 1 else "experts are gathered"
    better = f"; least with {least['expert']}: {_si(least['sent_bytes'])}B" if least != here else ", the least"
    return [f"  experts      {how} (mesh.expert {here['expert']}): {_si(here['sent_bytes'])}B, estimated{better}"]


def _rooflines(result: dict[str, Any]) -> list[str]:
    """The rooflines by published and by measured peaks."""
    if "mfu" in result:
        passes = f"float32 products in 6 bfloat16 passes: {_si(result['flops']['matmul_passes'])} FLOPs"
        lines = _roofline_lines(f"  roofline     {{}}; {passes}", result)
    else:
        lines = ["  roofline     unknown: the peaks of these devices are not listed here; config.chip takes them"]
    peaks = result.get("measured_peaks")
    if peaks:
        rates = f"{_si(peaks['flops'])}FLOP/s and {_si(peaks['bandwidth'])}B/s of {peaks['file']}"
        lines += _roofline_lines(f"  as measured  {{}}; by {rates}", peaks)
    return lines


def _estimated_bytes(result: dict[str, Any]) -> str:
    """What the line of main memory says of kernels that declare nothing."""
    if not result["estimated_memory_bytes"]:
        return ""
    return f"; {_si(result['estimated_memory_bytes'])}B are estimated from the shapes of kernels"


def _roofline_lines(line: str, roofline: dict[str, Any]) -> list[str]:
    """`line` with the times of the parts in it, and the line of the step."""
    ms = {part: f"{1e3 * seconds:.1f} ms" for part, seconds in roofline["roofline_seconds"].items()}
    mfu = roofline["mfu"]
    step = f"step {ms['overlapped']} (MFU {mfu['overlapped']:.1%}) if all overlaps, "
    step += f"{ms['serial']} (MFU {mfu['serial']:.1%}) if nothing does"
    times = ", ".join(f"{part} {ms[part]}" for part in ("compute", "memory", "network"))
    return [line.format(times), f"               {step}"]


def _si(value: float) -> str:
    """Four digits and a prefix of 1000s."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
