"""Compiles the train step for chips that need not be here, and prints what it would cost on each of them:

    python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:8x8x8      # or H100:8x8
    python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:4x4x4 --n_slices=2
    python -m jmoe.compile --config=configs/joint_moe.py --config.model.d_model=1024      # for the devices at hand

The step is the one that jmoe.train runs, at the largest batch of config.batch_tokens, made by the real compiler: libtpu
for a TPU slice, the [cuda] extra's for GPUs, which picks matmul kernels without timing them where there is no GPU. It
prints per device: memory against what the chip has, FLOPs against the model's, bytes, collectives, and a roofline.
FLOPs and bytes come from the compiled program, each loop counted as often as it runs (XLA's own cost analysis counts it
once). A Pallas kernel counts as the products that it declares (jmoe/model/tpu_flash.py: none in blocks above the
diagonal), or else as those of its shapes, which the report says, and each of its arrays as read or written once; so do
tokamax's kernels for GPUs, which declare nothing. cuDNN's attention counts as the products of its shapes, half of them
where it is causal.

Model FLOPs count the matmuls that the mathematics needs, once forward and twice backward: of every active parameter but
the embedding (a lookup), of the router, and of attention over the whole row; no padding, no recomputation. MFU = model
FLOPs / (step time x peak FLOP/s). The step time lies between the largest of compute, memory and network time (all
overlapped) and their sum (nothing overlapped). Each is taken at its published peak, with all links of a chip in use,
and a float32 product of attention or the router takes the time of 6 bfloat16 ones: a bound, not a prediction. Where
results/accelerators/ has peaks measured on such a chip (benchmarks/accelerator), a second roofline uses them; its
MFU is still a share of the published peak.

With --n_slices, each slice holds all parameters, and only gradients cross the network between the slices. The report
lists what every device sends over that network. The roofline leaves it out, as no rate of it is published.

--compare_remat instead compiles the step with each config.remat, prints memory and FLOPs side by side and names the
one with the fewest FLOPs among those that fit.

JAX_OPTIMIZATION_LEVEL=O1 (with jax 0.10 JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1) compiles several times faster, with the
same FLOPs and more memory traffic.

If the step does not fit, it is compiled again with smaller config.microbatch_tokens, and the largest that fits is
named. config.chip sets other peaks than the published ones, or the peaks of a chip that jmoe/cost/chips.py lacks.

It warns of a step that moves or computes more than three times what its model needs, as estimated from the config
(jmoe/cost/needs.py), and names the operation that takes most; --strict then ends with exit code 4.

Exit codes: 0 fits, 2 a mistake that one sentence explains, 3 does not fit, 4 --strict and a warning.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.cost import report, report_text
from jmoe.cost.topologies import topology_devices
from jmoe.errors import UserError
from jmoe.model.remat import REMAT
from jmoe.run import distributed
from jmoe.storage.files import write_whole


def main(_: list[str]) -> int:
    """Returns the exit code."""
    options = flags.FLAGS
    config = cli.read_config()
    devices, title = _devices(options.topology, options.n_slices)
    print(f"compiling for {title} ({len(devices)} devices); may take minutes", file=sys.stderr)
    if options.compare_remat:
        result, fits, warned = _compare_remat(config, devices, title)
    else:
        result = report.measure(config, devices)
        fits = result["fits"]
        warned = bool(result.get("warnings"))
        print(report_text.table(result, title))
        if not fits:
            result["fitting"], line = report.smaller(config, devices)
            print(line)
    if options.json:
        values = {"topology": options.topology, "n_slices": options.n_slices} | result
        write_whole(pathlib.Path(options.json), json.dumps(values, indent=1) + "\n")
    if not fits:
        return 3
    return 4 if options.strict and warned else 0


def _devices(topology: str | None, n_slices: int) -> tuple[Sequence[jax.Device], str]:
    """The devices to compile for, and what to call them."""
    if topology:
        jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
        title = f"{n_slices} slices of {topology}" if n_slices > 1 else topology
        return topology_devices(topology, n_slices), title
    if n_slices > 1:
        raise UserError(f"--n_slices={n_slices} needs --topology, the kind and size of one slice: v5p:4x4x4")
    devices = distributed.devices()
    return devices, f"{devices[0].device_kind} x {len(devices)}"


def _compare_remat(config: ConfigDict, devices: Sequence[jax.Device], title: str) -> tuple[dict[str, Any], bool, bool]:
    """Prints a table of each config.remat; returns the reports, whether any fits, and whether any has a warning."""
    reports = {}
    for name in REMAT:
        config.remat = name
        reports[name] = report.measure(config, devices)
    print(report_text.remat_table(reports, title))
    fits = any(result["fits"] for result in reports.values())
    warned = any(bool(result.get("warnings")) for result in reports.values())
    return {"remat": reports}, fits, warned


if __name__ == "__main__":
    cli.define_config()
    flags.DEFINE_string(
        "topology",
        None,
        "TPU slice such as v5e:4x4, v5p:8x8x8, v6e:16x16, v4:4x4x4, tpu7x:4x4x4, or GPUs such as H100:8 on one "
        "machine or H100:2x8 on two. Default: this machine's devices.",
    )
    flags.DEFINE_integer("n_slices", 1, "Number of TPU slices of --topology, linked by the network between them.", 1)
    flags.DEFINE_bool("compare_remat", False, "Compare all values of config.remat, and name the cheapest that fits.")
    flags.DEFINE_bool(
        "strict", False, "Exit code 4 where the step moves or computes over three times what its model needs."
    )
    flags.DEFINE_string("json", None, "Also write everything to this file, as JSON.")
    cli.run(main, config_sections=())
