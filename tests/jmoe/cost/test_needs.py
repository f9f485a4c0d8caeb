"""What a model is said to need, beside what libtpu's programs of healthy steps move and compute."""

import json

import pytest

from configs import joint_moe, mixtral, olmoe
from jmoe.cost import needs
from tests.jmoe.cost.test_ceilings import NARROW
from tests.jmoe.cost.test_compile import CEILINGS, model_5b


def two_blocks(config, expert: int, n_tokens: int):
    """The steps of test_ceilings.py."""
    config.model.attention, config.model.n_blocks = "flash", 2
    config.mesh.expert, config.batch_tokens = expert, ((0, n_tokens),)
    return config


def narrow_mixtral():
    config = two_blocks(mixtral.get_config(), 8, 32_768)
    for flag in NARROW:
        name, _, value = flag.removeprefix("--config.model.").partition("=")
        config.model[name] = int(value)
    return config


def dense():
    config = joint_moe.get_config()
    config.model.update(d_model=128, n_blocks=8, vocab_size=257, attention="flash")
    config.data.seq_len, config.batch_tokens = 2_048, ((0, 1_048_576),)
    return config


@pytest.mark.parametrize(
    "name, make, n_devices",
    [
        ("dense", dense, 4),
        ("Switch, 32 experts", model_5b, 16),
        ("OLMoE, nothing dropped", lambda: two_blocks(olmoe.get_config(), 1, 98_304), 8),
        ("8 of 64, on 8 devices", lambda: two_blocks(olmoe.get_config(), 8, 65_536), 8),
        ("Mixtral a quarter as wide, nothing dropped, on 8 devices", narrow_mixtral, 8),
    ],
)
def test_healthy_steps_take_about_what_their_models_need(name, make, n_devices):
    """Far from SICK, and not so much less that a sick step would seem healthy."""
    costs = json.loads(CEILINGS.read_text())["programs"][name]
    needed = needs.needs_of(make(), n_devices)
    assert 0.5 < costs["main_memory_bytes"] / needed.bytes < 1.5
    assert 0.4 < costs["matmul_flops"] / needed.flops < 1.2
