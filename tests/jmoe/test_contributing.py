"""The patches in CONTRIBUTING.md: each applies to a copy of the code, trains there, and does what it says."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import helpers
import pytest

PATCHES = re.findall(r"```diff\n(.*?)```", (helpers.ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
NAMES = ("gelu", "expert_choice", "lion")

TRAIN = """
import jax
import numpy as np

from configs import quickstart
from jmoe.config import counts
from jmoe.model import parameters, sharding
from jmoe.run import step

def train(config, n_steps=4):
    '''(initial parameters, metrics of each step) on one batch.'''
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    batch = np.random.default_rng(0).integers(257, size=(8, 33)).astype(np.int32)
    with jax.set_mesh(mesh):
        params = initial = parameters.init_params(config)
        initial = jax.device_get(initial)
        assert sum(x.size for x in jax.tree.leaves(params)) == counts.n_exact(config.model)
        opt_state = jax.jit(step.make_optimizer(config).init)(params)
        train_step, history = step.make_train_step(config, mesh), []
        for _ in range(n_steps):
            params, opt_state, metrics = train_step(params, opt_state, batch, np.float32(1e-2))
            history.append(jax.device_get(metrics))
    losses = [metrics["loss"] for metrics in history]
    assert losses[-1] < losses[0], losses
    return initial, history

config = quickstart.get_config()
config.model.update(d_model=16, n_blocks=1, n_heads=2, group_tokens=64)
config.data.seq_len, config.batch_tokens = 32, ((0, 256),)
"""

GELU = """
config.model.mlp = "gelu"
initial, _ = train(config)
assert set(initial["blocks"]["mlp"]) == {"up", "down"}
"""

EXPERT_CHOICE = """
from jmoe.model import routing

config.model.update(n_experts=4, top_k=2, capacity_factor=1.0, balance="expert_choice")
_, history = train(config)
for metrics in history:
    assert metrics["max_load"] == metrics["min_load"] == 1  # every expert takes its capacity

logits = np.random.default_rng(1).normal(size=(3, 16, 4)).astype(np.float32)
expert_GJ, gate_GJ, _ = jax.jit(lambda logits: routing.expert_choice(logits, 5))(logits)
for group in range(3):
    probability = np.exp(logits[group]) / np.exp(logits[group]).sum(axis=1, keepdims=True)
    for expert in range(4):
        of_tokens = np.asarray(expert_GJ[group]).reshape(4, 16)[expert]
        taken = np.flatnonzero(of_tokens == expert)
        assert set(taken) == set(np.argsort(-probability[:, expert])[:5])
        gates = np.asarray(gate_GJ[group]).reshape(4, 16)[expert]
        np.testing.assert_allclose(gates[taken], probability[taken, expert], rtol=1e-5)
"""

LION = """
config.optimizer.update(name="lion", weight_decay=0.0)
initial, _ = train(config)
with jax.set_mesh(sharding.make_mesh(config, jax.devices()[:1])):
    optimizer = step.make_optimizer(config)
    grads = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape).astype(np.float32), initial)
    updates, state = optimizer.update(grads, optimizer.init(initial), initial)
# the first update of Lion is the sign of the gradient (Chen et al. 2023, Alg. 2)
jax.tree.map(lambda update, grad: np.testing.assert_array_equal(update, np.sign(grad)), updates, grads)
moments = [x for x in jax.tree.leaves(state) if x.size > 1]
assert sum(x.size for x in moments) == counts.n_exact(config.model)  # one moment, where Adam has two
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="without git: no patch of CONTRIBUTING.md is applied")
@pytest.mark.parametrize("i", range(3), ids=NAMES)
def test_a_patch_of_contributing_applies_and_trains(i, tmp_path):
    patch, checks = list(zip(PATCHES, (GELU, EXPERT_CHOICE, LION), strict=True))[i]
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("jmoe", "configs"):
        shutil.copytree(helpers.ROOT / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "fit" / "model").mkdir(parents=True)
    shutil.copy(helpers.ROOT / "fit" / "model" / "divisibility.json", tmp_path / "fit" / "model")
    environment = helpers.environment() | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONPATH": str(tmp_path)}
    command = ["git", "apply", "-"]
    subprocess.run(command, cwd=tmp_path, env=environment, input=patch, text=True, check=True)
    program = tmp_path / "checks.py"
    program.write_text(textwrap.dedent(TRAIN + checks))
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
