"""config.parametrization = "mup": a coordinate check, the factors, and what stays as it is."""

import functools

import jax
import numpy as np
import pytest

from benchmarks import width_transfer
from jmoe.config import schema
from jmoe.config.check import check_config
from jmoe.errors import UserError
from jmoe.model import mup, parameters, sharding
from jmoe.run import step
from tests.jmoe.model.test_model import leaves_by_name, tiny


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_ten_steps_change_activations_alike_at_every_width(optimizer):
    """As those of d_model 64, with one rate, in the residual stream and the logits; not so in the standard one."""
    narrow = width_transfer.changes(64, "standard", optimizer)
    same = width_transfer.changes(128, "mup", optimizer)
    for name in narrow:
        assert 0.6 < same[name] / narrow[name] < 1.2, (name, narrow, same)
    if optimizer == "adamw":  # so the measure tells them apart
        wide = width_transfer.changes(128, "standard", optimizer)
        assert wide["residual stream"] > 1.5 * narrow["residual stream"] and wide["logits"] > 1.2 * narrow["logits"]


def mup_of(base=(64, 2, 16), optimizer="adamw", **model):
    config = tiny(4, **dict(d_model=256, n_heads=4, n_blocks=8) | model)
    config.parametrization, config.optimizer.name = "mup", optimizer
    config.mup_base.d_model, config.mup_base.n_blocks, config.mup_base.head_dim = base
    return config


def test_factors_of_a_wide_and_deep_model():
    """4 times as wide and deep as its base, heads 4 times as large: by hand from the tables of the papers."""
    factors = mup.factors(mup_of())
    blocks = dict(gate=1, up=1, down=1 / 4, out=1 / 4, router=1 / 2, scale=1, bias=1)
    of_rate = dict(gate=1 / 4, up=1 / 4, down=1 / 16, out=1 / 16, router=1 / 4, scale=1, bias=1)
    for tree, expected, ends in ((factors.initial, blocks, (1, 1 / 2)), (factors.rate, of_rate, (1, 1 / 4))):
        found = leaves_by_name(tree)
        assert {name: found[name] for name in expected} == expected
        assert (tree["embed"], tree["head"]) == ends
    np.testing.assert_allclose(factors.initial["blocks"]["attention"]["qkv"].ravel(), [1 / 2, 1, 1])
    np.testing.assert_allclose(factors.rate["blocks"]["attention"]["qkv"].ravel(), [1 / 8, 1 / 4, 1 / 4])
    rates = leaves_by_name(mup.factors(mup_of(optimizer="muon")).rate)
    assert {name: rates[name] for name in ("gate", "down", "router")} == dict(gate=1 / 2, down=1 / 8, router=1 / 4)
    factors = mup.factors(mup_of(qk_norm="head", n_kv_heads=2))  # norms hide the size of queries
    initial, rates = leaves_by_name(factors.initial), leaves_by_name(factors.rate)
    assert (initial["q_norm"], rates["q_norm"], initial["q"]) == (1 / 2, 1 / 2, 1)


def test_initial_values_are_the_standard_ones_times_their_factors():
    config = mup_of(n_blocks=4)
    scaled = parameters.init_params(config)
    config.parametrization = "standard"
    plain = parameters.init_params(config)

    def same(one, other):
        return np.testing.assert_allclose(one, other, rtol=1e-6)

    blocks, plain_blocks = leaves_by_name(scaled), leaves_by_name(plain)
    same(blocks["qkv"][:, :, 0], plain_blocks["qkv"][:, :, 0] / 2)
    same(blocks["qkv"][:, :, 1:], plain_blocks["qkv"][:, :, 1:])
    same(blocks["down"], plain_blocks["down"] / 2)
    same(scaled["head"], plain["head"] / 2)


def test_at_its_base_it_is_the_standard_parametrization():
    """Initial values and a step; and it is in no old record."""
    config = tiny(4)
    assert "parametrization" not in schema.record_of(config) and "mup_base" not in schema.record_of(config)
    config.mup_base.update(d_model=32, n_blocks=2, head_dim=16)
    mesh, found = sharding.make_mesh(config, jax.devices()[:1]), []
    with jax.set_mesh(mesh):
        for config.parametrization in ("standard", "mup"):
            params = parameters.init_params(config)
            optimizer = step.make_optimizer(config)
            state = jax.jit(optimizer.init)(params)
            updates, _ = jax.jit(optimizer.update)(params, state, params)
            found.append(jax.device_get((params, updates)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *found)


def test_a_tied_embedding_is_refused():
    config = mup_of(tied_embeddings=True)
    with pytest.raises(UserError, match="config.parametrization='mup' needs config.model.tied_embeddings=False"):
        check_config(config)
