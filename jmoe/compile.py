"""Compiles the train step for chips that need not be here, and says what it would cost on each of them:

    python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:8x8x8      # or H100:8x8
    python -m jmoe.compile --config=configs/joint_moe.py --config.model.d_model=1024      # for the devices at hand

The step is the one that jmoe.train runs, at the largest batch of config.batch_tokens, made by the real compiler (libtpu
for a TPU slice; the [cuda] extra's for GPUs, which picks matmul kernels unmeasured where there is no GPU). Printed per
device: memory against what the chip has, FLOPs against the model's, collectives, and a roofline. FLOPs and bytes come
from the compiled program with every loop counted as often as it runs; XLA's own cost analysis counts a loop once, and
the line beside it shows that both agree when this is done here as well. A Pallas kernel counts as the products that it
says it makes (jmoe/model/tpu_flash.py: none in blocks above the diagonal), and its arrays as read or written once; cuDNN's
attention as the products of its shapes, half of them where it is causal.

Model FLOPs count the matmuls that the mathematics needs, forward and twice backward: every active parameter but the
embedding (a lookup), the router, attention over the whole row. No padding, no recomputation. MFU = model FLOPs / (step
time x peak FLOP/s). The step time lies between the largest of compute, memory and network time (all overlapped) and
their sum (nothing overlapped). Each runs at its published peak, all links of a chip at once, and a float32 product of
attention or the router takes the time of 6 bfloat16 ones: a bound, not a prediction.

--compare_remat does this for each config.remat instead, prints memory and FLOPs side by side and names the cheapest, by
FLOPs, of those that fit.

JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1 compiles two to three times faster, with the same FLOPs and more memory traffic.

A step that does not fit is compiled again with halved config.microbatch_tokens, and the largest that fits is named.
Other peaks than the published ones, or those of a chip that jmoe/cost/chips.py does not list, are given by config.chip.

Exit codes: 0 fits, 2 a mistake that one sentence explains, 3 does not fit.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import sys

import jax
from absl import flags

from jmoe import cli
from jmoe.cost import chips, counts, hlo
from jmoe.cost.memory import DoesNotFit, compile_step, gib, largest_microbatch, of_step
from jmoe.errors import UserError
from jmoe.model.decoder import REMAT
from jmoe.run import processes
from jmoe.config.check import microbatch_tokens
from jmoe.storage import files as storage
from jmoe.train import CONFIG

flags.declare_key_flag("config")  # for --help
TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "TPU slice such as v5e:4x4, v5p:8x8x8, v6e:16x16, v4:4x4x4, tpu7x:4x4x4, or GPUs as H100:8 on one machine, "
    "H100:2x8 on two; default: the devices at hand.",
)
COMPARE_REMAT = flags.DEFINE_bool(
    "compare_remat", False, "Compare every config.remat, and name the cheapest that fits."
)
JSON = flags.DEFINE_string("json", None, "Also write everything to this file.")


def topology_devices(name: str):
    """The devices of a TPU slice or of machines with GPUs that need not exist.

    Raises:
      UserError: their compiler is not installed, or there is no such slice.
    """
    kind, _, size = name.partition(":")
    if kind in chips.GPUS:
        return _gpus(name, kind, size)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={name} needs the TPU compiler: install the [tpu] extra, pip install -e '.[tpu]'")
    if name.partition(":")[0] not in chips.TPU_KINDS.values():
        raise UserError(
            f"--topology={name} is none of v4:XxYxZ, v5e:XxY, v5p:XxYxZ, v6e:XxY, tpu7x:XxYxZ, for example v5e:4x4, or "
            f"of {', '.join(chips.GPUS)}, for example H100:2x8"
        )
    # libtpu looks for a metadata server, complains at length that this is no TPU host, and takes a lock of the chips
    for variable, value in {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options = {"chip_config_name": "megacore"} if name.startswith("v4:") else {}  # both cores of a chip as one device
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except Exception as error:  # noqa: BLE001  libtpu's own kinds of error
        reason = " ".join(str(error).split("\n")[0].split())
        raise UserError(
            f"--topology={name} is no slice that libtpu knows ({reason}); accepted are v4:XxYxZ, v5e:XxY, v5p:XxYxZ, "
            "tpu7x:XxYxZ and v6e:XxY with X and Y multiples of 2, for example v5e:4x4 or v5p:8x8x8"
        ) from None


def _gpus(name: str, kind: str, size: str):
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise UserError(f"--topology={name} needs the GPU compiler: install the [cuda] extra, pip install -e '.[cuda]'")
    if not (found := re.fullmatch(r"(?:(\d+)x)?(\d+)", size)) or "0" in found.groups():
        raise UserError(f"--topology={name} is neither {kind}:GPUS nor {kind}:MACHINESxGPUS, for example {kind}:2x8")
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    shape = f"1x{found[1] or 1}x{found[2]}"
    return topologies.get_topology_desc(platform="cuda", target_config=chips.gpu_target(kind), topology=shape).devices


def report(config, mesh, compiled, chip: chips.Chip | None) -> dict:
    """Everything about one compiled step, per device and step; bytes, FLOPs and seconds."""
    program = hlo.Program(compiled.as_text())
    n_devices, n_tokens = mesh.size, max(batch for _, batch in config.batch_tokens)
    memory, once = of_step(compiled), compiled.cost_analysis()
    flops = {
        "matmul": program.matmul_flops(),
        "matmul_passes": program.matmul_flops(passes=True),
        "elementwise": program.elementwise_flops(),
        "model": {
            name: per_token * n_tokens // n_devices
            for name, per_token in counts.matmul_flops_per_token(config.model, config.data.seq_len).items()
        },
        "loops_once": program.matmul_flops(loops_once=True) + program.elementwise_flops(loops_once=True),
        "loops_once_by_xla": int(once["flops"]) if once else None,  # it has none for GPUs that are not here
    }
    model_flops = sum(flops["model"].values())
    flops["compiled_over_model"] = (flops["matmul"] + flops["elementwise"]) / model_flops
    collectives, each = {}, program.collectives()
    for one in each:
        total = collectives.setdefault(one.kind, {"number": 0, "bytes": 0})
        total["number"] += one.times
        total["bytes"] += one.times * one.bytes
    arrays = sorted(program.arrays().items(), key=lambda item: -item[0].bytes)
    result = {
        "mesh": dict(mesh.shape),
        "n_devices": n_devices,
        "n_active": counts.n_active(config.model),
        "n_total": counts.n_total(config.model),
        "n_tokens": n_tokens,
        "jax_version": jax.__version__,
        "memory_bytes": memory,
        "fits": not (chip and chip.capacity) or memory["peak"] <= chip.capacity,
        "flops": flops,
        "main_memory_bytes": program.main_memory_bytes(),
        "collectives": collectives,
        "each_collective": [dataclasses.asdict(one) for one in each],
        "largest_arrays": [{"array": str(a), "bytes": a.bytes, "source": source} for a, source in arrays[:32]],
    }
    if chip:
        result["chip"] = dataclasses.asdict(chip)
    if chip and chip.flops and chip.bandwidth and (chip.network or not each):
        parts = {
            "compute": flops["matmul_passes"] / chip.flops,
            "memory": result["main_memory_bytes"] / chip.bandwidth,
            "network": sum(total["bytes"] for total in collectives.values()) / (chip.network or 1),
        }
        mfu = lambda seconds: model_flops / (seconds * chip.flops)
        overlapped, serial = max(parts.values()), sum(parts.values())
        result["roofline_seconds"] = parts | {"overlapped": overlapped, "serial": serial}
        result["mfu"] = {"overlapped": mfu(overlapped), "serial": mfu(serial)}
    return result


def measure(config, devices) -> dict:
    """The report of `config` compiled for `devices`; without "flops" where the compiler found no way to fit it."""
    try:
        mesh, compiled = compile_step(config, devices)
    except DoesNotFit as error:
        return {"fits": False, "n_devices": len(devices), "compiler": str(error)}
    return report(config, mesh, compiled, chips.of_device(devices[0], config.get("chip")))


def smaller(config, devices) -> tuple[dict, str]:
    """What of config.microbatch_tokens makes a step fit that does not: as JSON, and as a line to read."""
    tried = {}

    def fits(other) -> bool:
        n_tokens = microbatch_tokens(other)
        print(f"compiling with --config.microbatch_tokens={n_tokens}", file=sys.stderr)
        tried[n_tokens] = measure(other, devices)
        return tried[n_tokens]["fits"]

    found = largest_microbatch(config, devices, fits)
    if found:
        peak = tried[found]["memory_bytes"]["peak"]
        told = f"  fits by --config.microbatch_tokens={found}: peak {gib(peak)}"
        return {"microbatch_tokens": found, "peak": peak}, told
    least = f", not even {min(tried)} tokens at once" if tried else ": none divides"
    told = f"  NO config.microbatch_tokens FITS{least}; more devices or config.mesh spread the rest"
    return {"microbatch_tokens": None}, told


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
        else:
            lines.append(f"  {name:5}  {_refused(r)}")
    fitting = [name for name, r in results.items() if r["fits"]]
    cheapest = min(fitting, key=lambda name: results[name]["flops"]["compiled_over_model"], default=None)
    lines.append(f"  the cheapest that fits: --config.remat={cheapest}" if cheapest else "  NONE FITS")
    return "\n".join(lines)


def _refused(r: dict) -> str:
    return f"DOES NOT FIT; the compiler says: {r['compiler']}"


def table(r: dict, title: str) -> str:
    """The report as lines to read."""
    memory, flops = r["memory_bytes"], r["flops"]
    model = sum(flops["model"].values())
    capacity = f" of {gib(r['chip']['capacity'])}" if r.get("chip", {}).get("capacity") else ""
    mesh = ", ".join(f"{axis} {size}" for axis, size in r["mesh"].items())
    lines = [
        f"{title}: {_si(r['n_active'])} active, {_si(r['n_total'])} total; {r['n_devices']} devices ({mesh}), "
        f"{r['n_tokens']:,} tokens a step",
        "per device and step",
        f"  memory       peak {gib(memory['peak'])}{capacity}: arguments {gib(memory['arguments'])}, temporaries "
        f"{gib(memory['temporaries'])}, outputs beside the donated {gib(memory['outputs_not_donated'])}, program "
        f"{gib(memory['program'])}",
        f"  FLOPs        {_si(flops['matmul'] + flops['elementwise'])} compiled (matmuls {_si(flops['matmul'])}), "
        f"{flops['compiled_over_model']:.3f} times the model's {_si(model)}: "
        + ", ".join(f"{name} {_si(value)}" for name, value in flops["model"].items()),
        f"               with loops counted once {_si(flops['loops_once'])}, by XLA's cost analysis "
        + (_si(flops["loops_once_by_xla"]) if flops["loops_once_by_xla"] else "unknown"),
        f"  main memory  {_si(r['main_memory_bytes'])}B read and written",
        "  collectives          number   sent",
    ]
    for kind, total in sorted(r["collectives"].items()):
        lines.append(f"    {kind:20}{total['number']:5}  {_si(total['bytes'])}B")
    lines.append("  largest arrays")
    for one in r["largest_arrays"][:4]:
        lines.append(f"    {gib(one['bytes']):10}  {one['array']:28} {one['source']}")
    if "mfu" in r:
        parts, mfu = r["roofline_seconds"], r["mfu"]
        times = ", ".join(f"{part} {1e3 * parts[part]:.1f} ms" for part in ("compute", "memory", "network"))
        lines += [
            f"  roofline     {times}; float32 products in 6 bfloat16 passes: {_si(flops['matmul_passes'])} FLOPs",
            f"               step {1e3 * parts['overlapped']:.1f} ms (MFU {mfu['overlapped']:.1%}) if all overlaps, "
            f"{1e3 * parts['serial']:.1f} ms (MFU {mfu['serial']:.1%}) if nothing does",
        ]
    else:
        lines.append("  roofline     unknown: the peaks of these devices are not listed here; config.chip takes them")
    return "\n".join(lines + ["  fits" if r["fits"] else "  DOES NOT FIT"])


def _si(value: float) -> str:
    """Four digits and a prefix of 1000s."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "


def main(_):
    config = cli.read_config(CONFIG)
    devices = topology_devices(TOPOLOGY.value) if TOPOLOGY.value else processes.devices()
    title = TOPOLOGY.value or f"{devices[0].device_kind} x {len(devices)}"
    print(f"compiling for {title} ({len(devices)} devices); may take minutes", file=sys.stderr)
    if COMPARE_REMAT.value:
        results = {}
        for name in REMAT:
            config.remat = name
            results[name] = measure(config, devices)
        fits, result = any(r["fits"] for r in results.values()), {"remat": results}
        print(remat_table(results, title))
    else:
        result = measure(config, devices)
        fits = result["fits"]
        print(table(result, title) if "flops" in result else f"{title}: {_refused(result)}")
        if not fits:
            result["fitting"], told = smaller(config, devices)
            print(told)
    if JSON.value:
        storage.write_whole(
            pathlib.Path(JSON.value), json.dumps({"topology": TOPOLOGY.value} | result, indent=1) + "\n"
        )
    return 0 if fits else 3


def run():
    flags.mark_flags_as_required(["config"])
    cli.run(main, fields=("",))


if __name__ == "__main__":
    run()
