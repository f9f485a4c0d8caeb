"""The train step through real compilers: libtpu for slices that are not here, XLA's for the CPU.

FLOPs, bytes and shapes are predicted here from the config alone and looked for in the compiled program.
"""

import importlib.metadata
import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import helpers
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import mesh_utils
from jax.sharding import PartitionSpec as P

from configs import joint_moe, mixtral
from jmoe.config import counts
from jmoe.cost.program import Program
from jmoe.cost.topologies import topology_devices, wraparounds
from jmoe.errors import UserError
from jmoe.model.parameters import init_params, parameter_specs

FLASH = ("--config.model.attention=flash", "--config.data.seq_len=2048")
FLAGS_5B = (  # of App. H: 321M active, 5.0B in all
    "--config=configs/joint_moe.py",
    "--config.model.d_model=1024",
    "--config.model.n_experts=32",
    "--config.mesh.expert=16",
    "--config.batch_tokens=((0, 262144),)",
)


def model_5b():
    config = joint_moe.get_config()
    config.model.d_model, config.model.n_experts, config.mesh.expert = 1024, 32, 16
    config.batch_tokens = ((0, 262_144),)
    return config


CEILINGS = helpers.ROOT / "tests" / "data" / "ceilings.json"  # what compiled programs cost, by libtpu


def run_compile(*flags, xla_flags="", command=("-m", "jmoe.compile")):
    """jmoe.compile as a process of its own, without the flags of the tests' own XLA."""
    environment = os.environ | {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1", "XLA_FLAGS": xla_flags}
    command = [sys.executable, *command, *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def compiled(name, folder, record, *flags):
    """The report of jmoe.compile, whose program comes from tests/data/compiled while it is the same."""
    pytest.importorskip("libtpu", reason="without libtpu: nothing was compiled for a TPU (the [tpu] extra)")
    done = run_compile(*flags, f"--json={folder}/report.json", command=("tests/support/compiled.py", name))
    record("table", f"python -m jmoe.compile {' '.join(flags)}\n{done.stdout}")
    if "read from" not in done.stderr:
        record(
            "table", f"compiled for minutes, as the step has changed: delete tests/data/compiled/{name}-* to record it"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "report.json").read_text()) | {"printed": done.stdout}


def check_ceilings(name, report):
    """FLOPs, bytes moved, peak memory and bytes by collective lie within 3% of those in CEILINGS."""
    costs = {"matmul_flops": report["flops"]["matmul"], "main_memory_bytes": report["main_memory_bytes"]}
    costs["peak_memory_bytes"] = report["memory_bytes"]["peak"]
    costs |= {f"{kind}_bytes": total["bytes"] for kind, total in sorted(report["collectives"].items())}
    ceilings, libtpu = json.loads(CEILINGS.read_text()), importlib.metadata.version("libtpu")
    if ceilings["libtpu"] != libtpu:
        pytest.skip(f"another libtpu: {CEILINGS.name} was written for {ceilings['libtpu']}, this is {libtpu}")
    said = f"if that is meant, write into {CEILINGS.name}: {json.dumps({name: costs})}"
    assert costs == pytest.approx(ceilings["programs"].get(name, {}), rel=0.03), said


def expected_flops(config, n_tokens):
    """Matmul FLOPs of `n_tokens`: the model's, and the forward pass of the layers again for their gradients.

    Of a layer's forward pass the last matmul is not needed again: gates scale the experts' hidden units, before it.
    Flash attention works on the blocks of 512 on and below the diagonal: 2 products forward, 2 again, 5 backward.
    """
    model, d, seq_len = config.model, config.model.d_model, config.data.seq_len
    part = counts.matmul_flops_per_token(model, seq_len)
    flash = 0
    if model.attention == "flash":
        del part["attention"]
        flash = (2 + 2 + 5) * 2 * model.n_blocks * d * (seq_len + 512) / 2
    head = 6 * d * model.vocab_size
    n_dense = model.n_blocks if model.n_experts == 1 else model.n_dense_blocks
    experts = (model.n_blocks - n_dense) * (model.n_shared_experts + model.top_k)
    widths = n_dense * model.d_ff + experts * (model.d_expert or model.d_ff)
    again = (sum(part.values()) - head) / 3 - 2 * d * widths
    return n_tokens * (sum(part.values()) + again + flash)


def all_to_all_bytes(config, n_tokens, n_devices):
    """Bytes that leave a device: every slot's row and gate to its expert's device and rows back, but for the 1 / X that
    stay. Both forward, there again where it is recomputed, both backward."""
    model, x = config.model, config.mesh.expert
    groups = n_tokens // model.group_tokens // n_devices
    slots = groups * model.n_experts * int(model.top_k * model.group_tokens * model.capacity_factor / model.n_experts)
    return model.n_blocks * slots * (5 * model.d_model + 3) * 2 * (x - 1) // x


def accepted_elements(config, n_tokens, mesh):
    """Elements of arrays that may be larger than the hidden units of one layer, by name, on one device."""
    model = config.model
    found = {"inputs of all layers, kept for the backward pass": model.n_blocks * n_tokens * model.d_model}
    if model.attention == "float32":
        found["scores of one layer"] = n_tokens * model.n_heads * config.data.seq_len
    found["logits of a chunk, twice the head's gradient"] = 2 * model.d_model * model.vocab_size
    if model.top_k > 1:
        found["gate and up of one layer, one product"] = n_tokens * model.top_k * 2 * (model.d_expert or model.d_ff)
    params = jax.eval_shape(lambda: init_params(config))
    specs = jax.tree.leaves(parameter_specs(config.model, mesh))
    for (path, leaf), spec in zip(jax.tree.leaves_with_path(params), specs, strict=True):
        gathered = leaf.size // math.prod(mesh[axis] for axis in spec if axis in ("expert", "model"))
        spread_over = [axes if isinstance(axes, tuple) else (axes,) for axes in spec if axes]
        n_devices = math.prod(mesh[axis] for axes in spread_over for axis in axes)
        found[f"{path} at rest, its gradient or moments"] = leaf.size // n_devices
        found[f"{path} gathered where it is used"] = gathered // (model.n_blocks if "blocks" in str(path) else 1)
    return found


def check(report, config, n_exchanging):
    """n_exchanging: devices that exchange the embedding's slices for their tokens, forward and backward."""
    n_devices, n_tokens = report["n_devices"], report["n_tokens"]
    share = n_tokens // n_devices
    assert report["fits"] and report["memory_bytes"]["peak"] < report["chip"]["capacity"]

    flops = report["flops"]
    layers_again = 4 / 3  # config.remat = "full"
    part = counts.matmul_flops_per_token(config.model, config.data.seq_len)
    if config.model.attention == "flash":
        part["attention"] = 0  # in bfloat16
    in_float32 = 5 * (part["attention"] + part["router"]) * layers_again * share
    assert flops["matmul_passes"] - flops["matmul"] == pytest.approx(in_float32, rel=0.01)
    # the matmuls are the model's and the recomputed layers', nothing else
    assert flops["matmul"] == pytest.approx(expected_flops(config, share), rel=0.005)
    assert 1 < flops["compiled_over_model"] <= 1.4

    moved = report["collectives"]["all-to-all"]
    embedded = 2 * share * config.model.d_model * 2 * (n_exchanging - 1) // n_exchanging
    assert moved["number"] == 8 * config.model.n_blocks + 2
    assert moved["bytes"] == all_to_all_bytes(config, n_tokens, n_devices) + embedded

    # no scores of a whole layer with flash, no [tokens, vocabulary], no [tokens, experts, capacity]
    hidden = share * config.model.top_k * config.model.d_ff * 2
    largest = report["largest_arrays"]
    assert largest[-1]["bytes"] < hidden  # the list holds all that are larger
    accepted = accepted_elements(config, share, report["mesh"])
    for array in largest:
        elements = math.prod(int(n) for n in re.findall(r"\d+", array["array"].partition("[")[2]))
        assert array["bytes"] <= hidden or elements in accepted.values(), (array, accepted)
    assert largest[0]["bytes"] <= accepted["inputs of all layers, kept for the backward pass"] * 2


def test_a_5b_model_of_32_experts_on_16_chips(tmp_path, record_property):
    config = model_5b()
    report = compiled("switch", tmp_path, record_property, *FLAGS_5B, "--topology=v5e:4x4")
    assert report["n_total"] > 4.9e9 and 300e6 < report["n_active"] < 700e6
    check(report, config, n_exchanging=8)
    check_ceilings("Switch, 32 experts", report)


def test_mixtral_on_512_chips(tmp_path, record_property):
    config = mixtral.get_config()
    config.model.attention = "flash"
    report = compiled(
        "mixtral", tmp_path, record_property, "--config=configs/mixtral.py", FLASH[0], "--topology=v5p:8x8x8"
    )
    billions = [report[name] / 1e9 for name in ("n_active", "n_total")]
    assert billions == pytest.approx([12.88, 46.70], abs=0.005)  # published: 12.9 and 46.7
    check(report, config, n_exchanging=32)
    check_ceilings("Mixtral", report)


def test_a_step_for_gpus_that_are_not_here(tmp_path, record_property):
    """Eight H100 with an expert each: cuDNN's attention, the model's matmuls and no other, two all-to-alls each way."""
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("without CUDA: nothing was compiled for a GPU (the [cuda] extra, 5 GB)")
    sizes = "--config.model.d_model=512", "--config.model.n_blocks=4", "--config.model.n_heads=4", "--config.remat=dots"
    mesh = "--config.model.n_experts=8", "--config.mesh.expert=8", "--config.batch_tokens=((0, 65536),)"
    report = compiled(
        "gpus", tmp_path, record_property, "--config=configs/joint_moe.py", *FLASH, *sizes, *mesh, "--topology=H100:8"
    )
    flops, share = report["flops"], 65_536 // 8
    attention = 7 * 2 * 4 * 512 * 2_048 / 2 * share  # 2 products forward and 5 backward of 4 layers, half of each
    model = flops["model"]["parameters"] + flops["model"]["router"]
    assert flops["matmul"] == pytest.approx(model + attention, rel=0.005)
    slots = 65_536 // 8 * 512 * 2  # bytes of a device's slots
    assert report["collectives"]["all-to-all"] == {"number": 4 * 4, "bytes": 4 * 4 * slots * 7 // 8}
    assert report["fits"] and report["chip"]["capacity"] == 80 * 2**30


def test_gpus_without_their_compiler_or_none_are_refused():
    for topology in ("H100:0x8", "H100:2x2x2", "H100:"):
        with pytest.raises(UserError, match=f"--topology={topology} "):
            topology_devices(topology)
    if importlib.util.find_spec("libtpu"):
        with pytest.raises(UserError, match="A100, H100, H200"):
            topology_devices("B7:1")


@pytest.mark.parametrize(
    "sizes, closed",
    [([4, 4, 4], "xyz"), ([8, 8, 16], "xyz"), ([2, 4, 4], ""), ([4, 4], ""), ([8, 16], "y"), ([16, 16], "xy")],
)
def test_slices_of_whole_cubes_and_axes_of_16_wrap_around(sizes, closed):
    assert wraparounds(sizes) == tuple(axis in closed for axis in "xyz")


def test_weights_spread_over_a_cube_of_tpus_are_gathered_and_not_summed(not_kept):
    """Without the links that close its axes the compiler makes an all-reduce of the all-gather: twice the bytes."""
    pytest.importorskip("libtpu", reason="without libtpu: nothing was compiled for a TPU (the [tpu] extra)")
    placed = mesh_utils.create_device_mesh((64,), topology_devices("v5p:4x4x4"), allow_split_physical_axes=True)
    mesh = jax.sharding.Mesh(placed, "d")
    spread, whole = (jax.NamedSharding(mesh, P(*axes)) for axes in (("d",), ()))
    weight = jax.ShapeDtypeStruct((1_024, 1_024), jnp.bfloat16, sharding=spread)
    text = jax.jit(lambda w: w, out_shardings=whole).lower(weight).compile().as_text()
    (found,) = Program(text).collectives()
    assert (found.kind, found.bytes) == ("all-gather", 2 * 1_024 * 1_024 * 63 // 64)


def test_what_does_not_fit_exits_with_3(tmp_path):
    pytest.importorskip("libtpu", reason="without libtpu: nothing was compiled for a TPU (the [tpu] extra)")
    too_much = ("--config.model.d_model=256", "--config.model.n_blocks=2", "--config.batch_tokens=((0, 268433408),)")
    flags = ("--config=configs/joint_moe.py", *too_much, "--topology=v5e:2x2", f"--json={tmp_path}/report.json")
    done = run_compile(*flags)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "DOES NOT FIT" in done.stdout and "memory" in done.stdout and "Traceback" not in done.stderr
    assert "NO config.microbatch_tokens FITS: none divides" in done.stdout  # 4 x 131,071 rows over 4 devices
    assert json.loads((tmp_path / "report.json").read_text())["fits"] is False


@pytest.mark.parametrize("name", ["v9:2x2", "v5e", "4x4", "v5e:3x3", "v5p:0x2x2", "v5e:x", "v6e:4*4", ""])
def test_unknown_topologies_name_the_accepted_forms(name):
    pytest.importorskip("libtpu", reason="without libtpu: it alone knows topologies (the [tpu] extra)")
    with pytest.raises(UserError) as told:
        topology_devices(name)
    assert f"--topology={name} " in str(told.value) and "v5e:4x4" in str(told.value)


def test_without_libtpu_a_topology_ends_with_2_and_one_sentence():
    without_libtpu = (
        "import runpy, sys; sys.modules['libtpu'] = None; runpy.run_module('jmoe.compile', run_name='__main__')"
    )
    command = [sys.executable, "-c", without_libtpu, "--config=configs/quickstart.py", "--topology=v5e:2x2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "[tpu]" in done.stderr and "Traceback" not in done.stderr
