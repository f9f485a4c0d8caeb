"""Counts without JAX against the parameters that the modules make."""

import math

import pytest

from configs import deepseek_v3_like, mixtral, olmoe, qwen3_moe
from jmoe.config import counts
from jmoe.model.transformer import describe
from tests.jmoe.model.test_model import tiny

FINE = dict(n_experts=8, top_k=2, d_expert=24)
MESH = {"data": 2, "expert": 4, "model": 2}
MODELS = {
    "dense": tiny(),
    "dense, RMSNorm, no last norm": tiny(norm="rms", final_norm=False),
    "grouped heads of their own size": tiny(n_heads=4, n_kv_heads=2, head_dim=12, qk_norm="head"),
    "norm over the projection": tiny(n_heads=4, n_kv_heads=2, qk_norm="projection"),
    "tied embeddings": tiny(tied_embeddings=True),
    "Switch": tiny(4),
    "shared experts": tiny(**FINE, n_shared_experts=2),
    "first blocks dense": tiny(**FINE, n_shared_experts=1, n_dense_blocks=1, n_blocks=3),
    "router bias": tiny(**FINE, balance="bias", scores="sigmoid"),
    "Mixtral": mixtral.get_config(),
    "OLMoE": olmoe.get_config(),
    "Qwen3-MoE": qwen3_moe.get_config(),
    "DeepSeek-V3-like": deepseek_v3_like.get_config(),
}


def parameters(tree):
    """Every description in a tree of dictionaries."""
    for branch in tree.values():
        if isinstance(branch, dict):
            yield from parameters(branch)
        else:
            yield branch


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_counts_are_those_of_the_modules(config):
    """Of each role, all of them and those that a device of a mesh stores."""
    described = list(parameters(describe(config.model)))
    roles = {description.kind.role for description in described}
    assert roles == {array.role for array in counts.arrays(config.model) if array.n_arrays}
    for role in roles:
        of_role = [description for description in described if description.kind.role == role]
        n_parameters = sum(math.prod(description.shape) for description in of_role)
        assert counts.n_exact(config.model, roles=(role,)) == n_parameters, role
        n_stored = 0
        for description in of_role:
            mesh_axes = [description.mesh_axes(axis, MESH) for axis in range(len(description.axes))]
            n_devices = math.prod(MESH[name] for names in mesh_axes for name in names)
            n_stored += math.prod(description.shape) // n_devices
        assert counts.n_exact(config.model, MESH, (role,)) == n_stored, role
    assert counts.n_exact(config.model) == sum(math.prod(description.shape) for description in described)
