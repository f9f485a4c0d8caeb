"""What one compiled step costs on each device: as a dictionary for JSON, and as lines to read.

Bytes, FLOPs and seconds, per device and step.
"""

import bisect
import dataclasses
import math
import sys

import jax
import jax.numpy as jnp

from jmoe.config import counts
from jmoe.config.check import microbatch_tokens
from jmoe.config.schema import setting
from jmoe.cost import chips, needs
from jmoe.cost.memory import DoesNotFit, compile_step, gib, microbatches, of_step, with_microbatches
from jmoe.cost.program import Collective, Program
from jmoe.model import sharding
from jmoe.model.moe_dropless import BUFFER_FACTOR

REFUSED = "DOES NOT FIT; the compiler says: "


def measure(config, devices) -> dict:
    """The report of `config` compiled for `devices`; without "flops" where the compiler found no way to fit it.
    UserError for a config that is invalid or does not divide over the devices."""
    try:
        mesh, compiled = compile_step(config, devices)
    except DoesNotFit as error:
        return {"fits": False, "n_devices": len(devices), "compiler": str(error)}
    chip = chips.of_device(devices[0], config.get("chip"))
    return report(config, mesh, compiled, chip, chips.measured(devices[0]))


def report(config, mesh, compiled, chip: chips.Chip | None, measured: dict | None = None) -> dict:
    """Everything about one compiled step, with a roofline for the peaks of `chip` and one for `measured`, if known."""
    program = Program(compiled.as_text())
    memory = of_step(compiled)
    n_slices = sharding.count_slices(mesh.devices.flat)
    each, between_slices = program.collectives(), program.between_slices(n_slices)
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
        "collectives": _totals(each),
        "n_slices": n_slices,
        "between_slices": _totals(between_slices),
        "experts": _reaching_experts(config, mesh.size),
        "each_collective": [dataclasses.asdict(one) for one in each],
        "each_between_slices": [dataclasses.asdict(one) for one in between_slices],
        "largest_arrays": [{"array": str(a), "bytes": a.bytes, "source": source} for a, source in arrays[:32]],
    }
    if chip:
        result["chip"] = dataclasses.asdict(chip)
    if chip and chip.flops and chip.bandwidth and (chip.network or not each):
        result |= _roofline(result, chip, chip.flops)
    network = chip.network if chip else 0.0
    if measured and (network or not each):
        reached = chips.Chip(flops=measured["flops"], bandwidth=measured["bandwidth"], network=network)
        result["measured_peaks"] = measured | _roofline(result, reached, chip.flops if chip else 0.0)
    return result


def _totals(transfers: list[Collective]) -> dict[str, dict[str, int]]:
    """How many transfers of each kind run in a step, and the bytes that leave a device by them."""
    totals = {}
    for one in transfers:
        total = totals.setdefault(one.kind, {"number": 0, "bytes": 0})
        total["number"] += one.times
        total["bytes"] += one.times * one.bytes
    return totals


def _flops(config, program: Program, compiled, n_devices: int) -> dict:
    """FLOPs of the compiled program, and each device's share of the model FLOPs."""
    by_xla, n_tokens = compiled.cost_analysis(), max(batch for _, batch in config.batch_tokens)
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


def _roofline(result: dict, chip: chips.Chip, published_flops: float) -> dict:
    """Seconds of a step on `chip` if all of its parts overlap and if none does, and the MFU of both: the share of the
    published FLOP/s, or of chip.flops where these are 0."""
    parts = {
        "compute": result["flops"]["matmul_passes"] / chip.flops,
        "memory": result["main_memory_bytes"] / chip.bandwidth,
        "network": sum(total["bytes"] for total in result["collectives"].values()) / (chip.network or 1),
    }
    seconds = {"overlapped": max(parts.values()), "serial": sum(parts.values())}
    model = sum(result["flops"]["model"].values())
    mfu = {name: model / (value * (published_flops or chip.flops)) for name, value in seconds.items()}
    return {"roofline_seconds": parts | seconds, "mfu": mfu}


def _reaching_experts(config, n_devices: int) -> dict | None:
    """By config.mesh.expert and by the value of it that sends least: "expert" and "sent_bytes", which leave a device in
    a step: an estimate, to choose mesh.expert by. None with a capacity, or without a mixture.

    Rows travel to the devices of their experts and back, twice forward, three times backward (with config.remat =
    "full"). A device's experts are stored spread over the data axis: they are gathered twice, and their gradients
    scattered once.
    """
    model, n_tokens = config.model, max(batch for _, batch in config.batch_tokens)
    if model.n_experts == 1 or model.capacity_factor is not None:
        return None
    mixtures = model.n_blocks - setting(model, "n_dense_blocks")
    part = lambda n: (n - 1) / n  # of what is exchanged between n devices, leaves them

    def of(expert: int) -> dict:
        data = n_devices // (expert * config.mesh.model)
        rows = 5 * mixtures * n_tokens * setting(model, "top_k") / (data * expert) * BUFFER_FACTOR * model.d_model
        experts = counts.n_exact(model, dict(data=1, expert=expert, model=config.mesh.model), ("expert",))
        experts *= 3 * n_tokens // (microbatch_tokens(config) or n_tokens)
        sent = (rows * part(expert) + experts * part(data)) * jnp.dtype(model.dtype).itemsize
        return {"expert": expert, "sent_bytes": sent}

    most = math.gcd(model.n_experts, n_devices // config.mesh.model)
    every = [of(n) for n in range(1, most + 1) if most % n == 0]
    return {"here": of(config.mesh.expert), "least": min(every, key=lambda one: one["sent_bytes"])}


def smaller(config, devices) -> tuple[dict, str]:
    """The largest config.microbatch_tokens with which a step fits that did not: as JSON, and as a line to read."""
    sizes, tried = microbatches(config, len(devices)), {}

    def fits(n_tokens: int) -> bool:
        print(f"compiling with --config.microbatch_tokens={n_tokens}", file=sys.stderr)
        tried[n_tokens] = measure(with_microbatches(config, n_tokens), devices)
        return tried[n_tokens]["fits"]

    if n_tokens := next(iter(sizes[bisect.bisect_left(sizes, True, key=fits) :]), None):
        peak = tried[n_tokens]["memory_bytes"]["peak"]
        line = f"  fits by --config.microbatch_tokens={n_tokens}: peak {gib(peak)}"
        return {"microbatch_tokens": n_tokens, "peak": peak}, line
    least = f", not even {min(tried)} tokens at once" if tried else ": none divides"
    line = f"  NO config.microbatch_tokens FITS{least}; more devices or config.mesh spread the rest"
    return {"microbatch_tokens": None}, line


def remat_table(results: dict, title: str) -> str:
    """Reports by config.remat as lines to read."""
    lines = [f"{title}, per device and step", "  remat  temporaries  peak        FLOPs over the model's"]
    for name, r in results.items():
        if "flops" in r:
            memory, ratio = r["memory_bytes"], r["flops"]["compiled_over_model"]
            lines.append(
                f"  {name:5}  {gib(memory['temporaries']):11}  {gib(memory['peak']):10}  {ratio:.3f}"
                + ("" if r["fits"] else "  DOES NOT FIT")
            )
            lines += [f"  warning: {sentence}" for sentence in r["warnings"]]
        else:
            lines.append(f"  {name:5}  {REFUSED}{r['compiler']}")
    fitting = [name for name, r in results.items() if r["fits"]]
    cheapest = min(fitting, key=lambda name: results[name]["flops"]["compiled_over_model"], default=None)
    lines.append(f"  the cheapest that fits: --config.remat={cheapest}" if cheapest else "  NONE FITS")
    return "\n".join(lines)


def table(r: dict, title: str) -> str:
    """The report as lines to read."""
    if "flops" not in r:
        return f"{title}: {REFUSED}{r['compiler']}"
    memory, flops = r["memory_bytes"], r["flops"]
    model = sum(flops["model"].values())
    capacity = f" of {gib(r['chip']['capacity'])}" if r.get("chip", {}).get("capacity") else ""
    mesh = ", ".join(f"{axis} {size}" for axis, size in r["mesh"].items())
    lines = [
        f"{title}: {_si(r['n_active'])} active, {_si(r['n_total'])} total; {r['n_devices']} devices ({mesh}), "
        f"{r['n_tokens']:,} tokens a step",
        f"generating, each token of context keeps {_si(r['kv_cache_bytes_per_token'])}B of keys and values",
        "per device and step",
        f"  memory       peak {gib(memory['peak'])}{capacity}: arguments {gib(memory['arguments'])}, temporaries "
        f"{gib(memory['temporaries'])}, outputs beside the donated {gib(memory['outputs_not_donated'])}, program "
        f"{gib(memory['program'])}",
        f"  FLOPs        {_si(flops['matmul'] + flops['elementwise'])} compiled (matmuls {_si(flops['matmul'])}), "
        f"{flops['compiled_over_model']:.3f} times the model's {_si(model)}: "
        + ", ".join(f"{name} {_si(value)}" for name, value in flops["model"].items()),
        f"               with loops counted once {_si(flops['loops_once'])}, by XLA's cost analysis "
        + (_si(flops["loops_once_by_xla"]) if flops["loops_once_by_xla"] else "unknown")
        + (f"; {_si(flops['estimated'])} are estimated from the shapes of kernels" if flops["estimated"] else ""),
        f"  main memory  {_si(r['main_memory_bytes'])}B read and written" + _estimated_bytes(r),
        "  collectives          number   sent",
    ]
    for kind, total in sorted(r["collectives"].items()):
        lines.append(f"    {kind:20}{total['number']:5}  {_si(total['bytes'])}B")
    if r["n_slices"] > 1:
        n_bytes = sum(total["bytes"] for total in r["between_slices"].values())
        lines.append(f"  between {r['n_slices']} slices     number   sent, {_si(n_bytes)}B in all, not in the roofline")
        for kind, total in sorted(r["between_slices"].items()):
            lines.append(f"    {kind:20}{total['number']:5}  {_si(total['bytes'])}B")
    if way := r["experts"]:
        here, least = way["here"], way["least"]
        how = "rows travel to their experts" if here["expert"] > 1 else "experts are gathered"
        better = f"; least with {least['expert']}: {_si(least['sent_bytes'])}B" if least != here else ", the least"
        lines.append(
            f"  experts      {how} (mesh.expert {here['expert']}): {_si(here['sent_bytes'])}B, estimated{better}"
        )
    lines.append("  largest arrays")
    for one in r["largest_arrays"][:4]:
        lines.append(f"    {gib(one['bytes']):10}  {one['array']:28} {one['source']}")
    if "mfu" in r:
        by = f"float32 products in 6 bfloat16 passes: {_si(flops['matmul_passes'])} FLOPs"
        lines += _roofline_lines(f"  roofline     {{}}; {by}", r)
    else:
        lines.append("  roofline     unknown: the peaks of these devices are not listed here; config.chip takes them")
    if peaks := r.get("measured_peaks"):
        rates = f"{_si(peaks['flops'])}FLOP/s and {_si(peaks['bandwidth'])}B/s of {peaks['file']}"
        lines += _roofline_lines(f"  as measured  {{}}; by {rates}", peaks)
    lines.append("  fits" if r["fits"] else "  DOES NOT FIT")
    lines += [f"warning: {sentence}" for sentence in r["warnings"]]
    return "\n".join(lines)


def _estimated_bytes(r: dict) -> str:
    """What the line of main memory says of kernels that declare nothing."""
    if not r["estimated_memory_bytes"]:
        return ""
    return f"; {_si(r['estimated_memory_bytes'])}B are estimated from the shapes of kernels"


def _roofline_lines(line: str, r: dict) -> list[str]:
    """`line` with the times of the parts in it, and the line of the step."""
    ms, mfu = {part: f"{1e3 * seconds:.1f} ms" for part, seconds in r["roofline_seconds"].items()}, r["mfu"]
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
