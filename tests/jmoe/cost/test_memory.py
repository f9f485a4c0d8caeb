"""What a step may take and what a device has: chips by name, and the microbatch that makes a step fit."""

import dataclasses
import types

import jax
import pytest

from configs import quickstart
from jmoe.cost import chips, memory, report
from jmoe.cost.topologies import topology_devices


def small(n_experts):
    config = quickstart.get_config()
    config.model.d_model, config.model.n_blocks, config.model.n_heads = 32, 1, 4
    config.model.n_experts, config.model.group_tokens, config.data.seq_len = n_experts, 512, 64
    config.batch_tokens = ((0, 4_096), (8_192, 8_192))
    return config


@pytest.mark.parametrize(
    "kind, name",
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("TPU7x", "tpu7x"),
        ("TPU v4", "v4"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5e", "v5e"),
        ("TPU v6 lite", "v6e"),
        ("TPU v6e", "v6e"),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA H100 96GB HBM3", None),
        ("TPU v3", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("cpu", None),
    ],
)
def test_chips_are_told_by_their_names(kind, name):
    device = types.SimpleNamespace(device_kind=kind)
    assert chips.of_device(device) == chips.CHIPS.get(name)


def test_every_chip_says_who_states_its_peaks():
    assert all(chip.source and min(chip.flops, chip.capacity, chip.bandwidth) > 0 for chip in chips.CHIPS.values())


def test_ones_own_peaks_take_the_place_of_the_published():
    config = quickstart.get_config()
    for kind, chip in (("NVIDIA H100 PCIe", chips.CHIPS["H100-PCIe"]), ("Gadget 9", chips.Chip())):
        device = types.SimpleNamespace(device_kind=kind)
        assert chips.of_device(device, config.chip) == (chip if chip.flops else None)
        config.chip.flops, config.chip.capacity = 1e15, 3e9
        assert chips.of_device(device, config.chip) == dataclasses.replace(chip, flops=1e15, capacity=3e9)
        config.chip.flops = config.chip.capacity = 0.0


def test_a_step_that_does_not_fit_names_the_microbatch_that_does():
    """Judged by a capacity of one's own, on a device that no list knows."""
    config = small(1)
    devices = jax.devices()[:1]
    peak = memory.of_step(memory.compile_step(memory.with_microbatches(config, 1_024), devices)[1])["peak"]
    config.chip.capacity = float(peak)
    assert not report.measure(config, devices)["fits"]
    found, told = report.smaller(config, devices)
    assert found == {"microbatch_tokens": 1_024, "peak": peak} and "--config.microbatch_tokens=1024" in told


def test_microbatches_halve_while_they_divide():
    config = small(8)
    assert memory.microbatches(config, 2) == [4_096, 2_048, 1_024]  # two groups of 512 tokens
    assert memory.microbatches(memory.with_microbatches(config, 2_048), 1) == [1_024, 512]


def test_a_slice_of_the_seventh_generation_has_two_devices_a_chip():
    pytest.importorskip("libtpu", reason="without libtpu: it alone knows topologies (the [tpu] extra)")
    devices = topology_devices("tpu7x:2x2x1")
    assert len(devices) == 8 and chips.of_device(devices[0]).capacity == 96 * 2**30
