"""Steps of few or narrow blocks through libtpu: they cost what they did, and what remat saves."""

import pytest

from configs import joint_moe
from tests.jmoe.cost.test_compile import FLASH, check_ceilings, compiled, expected_flops

NARROW = (
    "--config.model.d_model=1024",
    "--config.model.d_ff=3584",
    "--config.model.n_heads=8",
    "--config.model.n_kv_heads=2",
)


@pytest.mark.parametrize(
    "name, config, expert, capacity, n_tokens, narrow",
    [
        ("OLMoE, nothing dropped", "olmoe", 1, None, 98_304, ()),
        ("8 of 64, on 8 devices", "olmoe", 8, 1.25, 65_536, ()),
        ("Mixtral a quarter as wide, nothing dropped, on 8 devices", "mixtral", 8, None, 32_768, NARROW),
    ],
)
def test_experts_cost_what_they_did(name, config, expert, capacity, n_tokens, narrow, tmp_path, record_property):  # noqa: PLR0913
    """Two blocks: all experts on each of eight chips, or an eighth of them, to which rows travel."""
    sizes = "--config.model.n_blocks=2", f"--config.batch_tokens=((0, {n_tokens}),)", "--topology=v5e:2x4", *narrow
    spread = f"--config.mesh.expert={expert}", f"--config.model.capacity_factor={capacity}"
    flags = f"--config=configs/{config}.py", FLASH[0], *spread, *sizes
    report = compiled(config if expert == 1 else f"{config}-{expert}", tmp_path, record_property, *flags)
    assert report["fits"] and "all-to-all" in report["collectives"]  # of the embedding's rows, and of the experts'
    if capacity is None:
        assert report["experts"]["here"] == report["experts"]["least"]
    if capacity is None and expert > 1:  # what is said to be sent for the experts is sent
        sent = report["collectives"]["all-to-all"]["bytes"]
        embedded = 2 * n_tokens // 8 * 1_024 * 2 * 7 // 8  # slices of 128 numbers, forward and backward
        assert report["experts"]["here"]["sent_bytes"] == pytest.approx(sent - embedded, rel=0.02)
    check_ceilings(name, report)


def test_the_cheapest_remat_that_fits_is_named(tmp_path, record_property):
    """A dense model whose activations outgrow a v5e's 16 GiB with nothing recomputed; dots saves every matmul's."""
    config = joint_moe.get_config()
    config.model.update(d_model=128, n_blocks=8, vocab_size=257, attention="flash")
    n_tokens, seq_len = 1_048_576, config.data.seq_len
    sizes = "--config.model.d_model=128", "--config.model.n_blocks=8", "--config.model.vocab_size=257"
    batch = f"--config.batch_tokens=((0, {n_tokens}),)"
    compare = "--config=configs/joint_moe.py", FLASH[0], *sizes, batch, "--topology=v5e:2x2", "--compare_remat"
    report = compiled("remat", tmp_path, record_property, *compare)
    assert report["printed"].endswith("the cheapest that fits: --config.remat=dots\n")
    result = report["remat"]
    assert [name for name, report in result.items() if report["fits"]] == ["dots", "full"]
    matmuls = {name: result[name]["flops"]["matmul"] for name in ("dots", "full")}
    assert matmuls["full"] == pytest.approx(expected_flops(config, n_tokens / 4), rel=0.005)
    # run again by "full": of each layer all but the last matmul, and the forward kernel of attention
    layer = 4 * 128**2 + 2 * 128 * 384 + 2 * 128 * (seq_len + 512) / 2
    again = 2 * config.model.n_blocks * layer * n_tokens / 4
    assert matmuls["full"] - matmuls["dots"] == pytest.approx(again, rel=0.005)
    assert result["full"]["memory_bytes"]["peak"] < result["dots"]["memory_bytes"]["peak"]
    check_ceilings("dense", result["full"])
