"""Several TPU slices by libtpu's own descriptions of them: meshes, refusals, what crosses the network between them."""

import importlib.util
import math
import subprocess
import sys

import helpers
import jax
import numpy as np
import pytest

from configs import joint_moe, quickstart
from jmoe import compile as compile_lib
from jmoe.cost import report, report_text
from jmoe.cost.topologies import topology_devices
from jmoe.errors import UserError
from jmoe.model import sharding
from tests.jmoe.model.test_model import train_steps

NO_LIBTPU = importlib.util.find_spec("libtpu") is None
pytestmark = pytest.mark.skipif(NO_LIBTPU, reason="without libtpu: it is the TPU's compiler")


def config_for(expert: int, model: int):
    """A config that divides over any mesh of this file."""
    config = joint_moe.get_config()
    config.model.d_model, config.model.n_experts = 1_024, 8
    config.model.group_tokens = 512
    config.batch_tokens = ((0, 131_072),)  # 256 rows
    config.mesh.expert, config.mesh.model = expert, model
    return config


def slices_of(devices: np.ndarray) -> list[int]:
    return [getattr(device, "slice_index", 0) for device in devices.flat]


@pytest.mark.parametrize("size, n_slices", [("v5e:2x4", 4), ("v5p:4x4x4", 2), ("v6e:2x4", 2), ("v4:2x2x2", 2)])
def test_only_the_slice_axis_crosses_slices(size, n_slices):
    devices = topology_devices(size, n_slices)
    of_slice = math.prod(int(n) for n in size.partition(":")[2].split("x"))
    assert len(devices) == n_slices * of_slice
    for expert, model in [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)]:
        mesh = sharding.make_mesh(config_for(expert, model), devices)
        sizes = {"slice": n_slices, "data": of_slice // (expert * model), "expert": expert, "model": model}
        assert dict(mesh.shape) == sizes
        assert set(mesh.devices.flat) == set(devices)
        for group in mesh.devices:  # the devices of one place on the slice axis
            assert len(set(slices_of(group))) == 1
        assert len(set(slices_of(mesh.devices[:, 0, 0, 0]))) == n_slices


@pytest.mark.parametrize("capacity_factor", [1.0, 0.0])
def test_a_step_over_slices_is_the_step_on_one_device(capacity_factor):
    """With and without a capacity, in two microbatches: the same loss, gradient norm and next parameters."""
    config = quickstart.get_config()
    config.model.update(d_model=16, n_blocks=2, n_heads=2, n_experts=4, top_k=2, group_tokens=64)
    config.model.capacity_factor = capacity_factor or None
    config.data.seq_len = 32
    config.batch_tokens = ((0, 1_024),)
    config.microbatch_tokens = 512
    config.mesh.expert = 2
    explicit = jax.sharding.AxisType.Explicit
    of_slices = np.array(jax.devices()[:8]).reshape(2, 2, 2, 1)
    meshes = [
        jax.sharding.Mesh(of_slices, (sharding.SLICE, *sharding.AXES), axis_types=(explicit,) * 4),
        jax.sharding.Mesh(of_slices[0, :1, :1], sharding.AXES, axis_types=(explicit,) * 3),
    ]
    ((metrics,), params, _), ((expected_metrics,), expected_params, _) = (
        train_steps(config, mesh, 1, 1e-3) for mesh in meshes
    )
    assert metrics["loss"] == pytest.approx(expected_metrics["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(expected_metrics["grad_norm"], rel=1e-4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), params, expected_params)


@pytest.mark.parametrize("expert, model", [(8, 1), (4, 2), (1, 8)])
def test_an_expert_group_that_would_span_slices_is_refused(expert, model):
    devices = topology_devices("v5e:2x2", 2)
    words = (
        f"mesh.expert={expert} times config.mesh.model={model} does not divide the 4 devices of each of the 2 slices"
    )
    with pytest.raises(UserError, match=words):
        sharding.make_mesh(config_for(expert, model), devices)
    sharding.make_mesh(config_for(expert, model), topology_devices("v5e:2x4", 2))


def test_machines_with_gpus_are_no_slices():
    """jax numbers them by slice_index too, and an expert group may span them."""
    machines = [type("Gpu", (), {"platform": "gpu", "slice_index": i // 8}) for i in range(16)]
    assert sharding.count_slices(machines) == 1
    assert sharding.count_slices(jax.devices()) == 1


def test_what_crosses_the_network_between_slices_is_counted_and_reported(not_kept):
    """The sum over all devices of 4,096 numbers of each: between slices, each device sends its part of them."""
    config = config_for(1, 1)
    mesh = sharding.make_mesh(config, topology_devices("v5e:2x2", 2))
    summed = sharding.per_device(sharding.total, mesh, (sharding.tokens(mesh),), sharding.REPLICATED)
    x = jax.ShapeDtypeStruct((8, 4_096), np.float32, sharding=jax.NamedSharding(mesh, sharding.tokens(mesh)))
    with jax.set_mesh(mesh):
        compiled = jax.jit(summed).lower(x).compile()
    made = report.report(config, mesh, compiled, None)
    assert (made["n_slices"], made["n_devices"]) == (2, 8)
    assert made["each_between_slices"] and all(one["group"] == 2 for one in made["each_between_slices"])
    assert all(one["group"] <= 4 for one in made["each_collective"])  # all others stay within a slice
    # the four devices of a slice send its sums of 4,096 float32 at least once, and at most four times
    sent = sum(kind["bytes"] for kind in made["between_slices"].values())
    assert 4_096 * 4 / 4 <= sent <= 4_096 * 4
    assert f"between 2 slices     number   sent, {sent / 1_000:.4g} kB in all" in report_text.table(
        made, "2 slices of v5e:2x2"
    )


def test_slices_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="--n_slices=2 is for TPU slices, found --topology=H100:8"):
        compile_lib._devices("H100:8", 2)
    with pytest.raises(UserError, match="--n_slices=2 needs --topology"):
        compile_lib._devices(None, 2)


INTERLEAVED = """
import sys
import jax
import numpy as np
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jmoe.model import sharding
from jmoe.text import batches
order = [0, 2, 1, 3]  # of the devices: two of each process, in turns
devices = np.array(sorted(jax.devices(), key=lambda device: device.id))[order].reshape(4, 1, 1)
mesh = jax.sharding.Mesh(devices, sharding.AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 3)
own = batches._local_rows(mesh, 8)
everything = np.arange(8 * 3).reshape(8, 3)
array = batches._spread(everything[own], own, mesh, 8)
whole = jax.jit(lambda x: x, out_shardings=jax.NamedSharding(mesh, sharding.REPLICATED))(array)
assert (np.asarray(whole.addressable_data(0)) == everything).all()
print()
print(own.tolist())
"""


def test_a_process_whose_devices_are_not_side_by_side_reads_its_own_rows():
    """As on v5e:4x4, where a process has two chips of each of two rows of the torus."""
    address = f"127.0.0.1:{helpers.free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", INTERLEAVED, address, str(i)],
            env=helpers.environment(2),
            cwd=helpers.ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [text.splitlines()[-1] for text in said] == ["[0, 1, 4, 5]", "[2, 3, 6, 7]"]
