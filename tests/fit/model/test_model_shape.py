"""ModelShape counts what the trainer builds, for every config and published model, and for grids of shapes at once."""

import dataclasses
import importlib

import helpers
import numpy as np
import pytest

from fit.model import reference_model
from fit.model.shape import ModelShape
from jmoe.config import counts
from tests.jmoe.config.test_counts import MODELS

CONFIGS = sorted(path.stem for path in (helpers.ROOT / "configs").glob("*.py") if path.stem != "__init__")
DENSE = ModelShape(128, 4, n_heads=2, n_kv_heads=1, head_dim=64, d_ff=384, vocab_size=512)


def assert_counts(shape, model):
    """Those of jmoe/config/counts.py, which tests/jmoe/config/test_counts.py compares with the trainer's arrays."""
    assert shape.n_total == counts.n_total(model)
    assert shape.n_active == counts.n_active(model)
    for roles, mine in (
        (("router",), shape.routers),
        (("expert",), shape.routed_weights),
        (("attention", "dense"), shape.dense_weights),
        (("embedding", "head"), shape.embedding_and_head),
        (("embedding",), shape.looked_up),
    ):
        assert mine == counts.n_exact(model, roles=roles), roles
    if (model.norm, model.qk_norm) in (("layer", "none"), ("rms", "head")):
        bias_of_routers = counts.n_exact(model, roles=("bias",))
        exact = shape.exact_parameters(model.norm == "rms", model.final_norm)
        assert exact == counts.n_exact(model) - bias_of_routers
    assert shape.kv_elements(4096) == counts.kv_elements(model, 4096)
    flops = counts.matmul_flops_per_token(model, 4096)
    assert 3 * shape.forward_flops(4096) == sum(flops.values())
    assert shape.flops_per_token(4096) == flops["parameters"] + flops["attention"] / 2


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_of_a_config_are_the_trainers(name):
    model = importlib.import_module(f"configs.{name}").get_config().model
    assert_counts(ModelShape.of_config(model.to_dict()), model)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_counts_of_a_small_model_are_the_trainers(config):
    assert_counts(ModelShape.of_config(config.model.to_dict()), config.model)


@pytest.mark.parametrize("name", reference_model.PUBLISHED)
def test_a_published_model_with_grouped_heads_counts_as_the_trainer_would_build_it(name):
    """Those with other attention, or with layers that differ, cannot be built."""
    published = reference_model.read(name)
    shape = published.shape
    assert (shape.n_active, shape.n_total) == (published.n_active, published.n_total)
    if np.any(shape.latent_attention):
        return
    model = MODELS["dense"].copy_and_resolve_references().model
    names = [field.name for field in dataclasses.fields(shape) if field.name not in ("matrices", "latent_attention")]
    model.update({name: getattr(shape, name) for name in names})
    assert_counts(shape, model)


def test_a_grid_of_shapes_is_one_object():
    """Every count of a grid is that of its shapes one by one."""
    rng = np.random.default_rng(0)
    size = (5, 7)
    grid = dataclasses.replace(
        DENSE,
        d_model=128 * rng.integers(1, 9, size),
        n_blocks=rng.integers(3, 9, (7,)),
        n_experts=rng.choice([1, 8, 64], size),
        d_expert=64.0 * rng.integers(1, 9, size),
        top_k=rng.integers(1, 4, size),
        n_shared_experts=rng.integers(0, 3, size),
        n_dense_blocks=rng.integers(0, 2, size),
        tied_embeddings=rng.random(size) < 0.5,
    )
    names = ("n_total", "n_active", "routers", "dense_weights", "looked_up", "chosen_share", "attention_weights")
    of_grid = [np.broadcast_to(getattr(grid, name), size) for name in names]
    of_grid += [grid.forward_flops(512), grid.flops_per_token(512), grid.kv_elements(512) + 0 * grid.d_model]
    for index in np.ndindex(size):
        fields = {name: np.broadcast_to(value, size)[index] for name, value in vars(grid).items() if name in FIELDS}
        one = ModelShape(**fields)
        alone = [getattr(one, name) for name in names]
        alone += [one.forward_flops(512), one.flops_per_token(512), one.kv_elements(512)]
        assert [values[index] for values in of_grid] == alone


FIELDS = [field.name for field in dataclasses.fields(ModelShape)]


def test_whole_numbers_stay_whole_however_large():
    """A plan of billions of billions of tokens has more parameters than 64 bits hold."""
    huge = dataclasses.replace(DENSE, d_model=2**22, n_blocks=2**17, n_heads=2**15, n_kv_heads=8, d_ff=3 * 2**22)
    assert huge.n_total == 2**17 * (2 * 2**22 * 64 * (2**15 + 8) + 9 * 2**44) + 2 * 2**22 * 512 > 2**63
