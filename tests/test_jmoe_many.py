"""Several models in one step against each of them alone."""

import jax
import jax.numpy as jnp
import numpy as np

from configs import quickstart
from jmoe import many, sharding
from jmoe.step import init_params, make_optimizer, make_train_step


def test_each_model_is_what_it_would_be_alone():
    config = quickstart.get_config()
    config.model.d_model, config.model.n_experts, config.model.group_tokens = 16, 4, 64
    config.data.seq_len, config.batch_tokens = 32, ((0, 256),)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    rng = np.random.default_rng(0)
    batches = jnp.asarray(rng.integers(257, size=(4, 3, 8, 33)), jnp.int32)  # steps, models, rows
    rates = np.float32([[1e-3, 1e-2, 3e-2]] * 3 + [[1e-3, 0.0, 3e-2]])  # the second one is at its end earlier

    def start(seed):
        config.seed = seed
        params = jax.jit(lambda: init_params(config))()
        return params, make_optimizer(config.optimizer).init(params)

    with jax.set_mesh(mesh):
        alone = []
        one_step = make_train_step(config, mesh)
        for m in range(3):
            state, history = start(m), []
            for batch, rate in zip(batches[:, m], rates[:, m]):
                *state, metrics = one_step(*state, batch, rate)
                history.append(metrics)
            alone.append((state, many.stack(history)))
        state, history = many.stack([start(m) for m in range(3)]), []
        step = many.make_train_step(config, mesh)
        for batch, rate in zip(batches, rates):
            *state, metrics = step(*state, batch, rate)
            history.append(metrics)
        together = list(zip(many.unstack(tuple(state)), map(many.stack, zip(*map(many.unstack, history)))))
    losses = [metrics["loss"] for _, metrics in alone]
    assert min(abs(losses[0] - losses[1])) > 1e-3  # different models, or the test would show nothing
    for (one_state, one_metrics), (state, metrics) in zip(alone, together):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5), one_metrics, metrics)
        for one, other in zip(jax.tree.leaves(one_state[0]), jax.tree.leaves(state[0])):
            # as a whole: where a gradient is almost zero, Adam makes a step of its rounding error
            assert np.linalg.norm(other - one) < 2e-4 * np.linalg.norm(one)
    assert step._cache_size() == one_step._cache_size() == 1
