"""Trains several small models of equal shapes in one compiled step, each with its own seed, learning rate and budgets.

Their states lie in one stack, and the step is mapped over its leading axis M (jmoe/model/__init__.py), so that they
share every kernel. Each model keeps its own workdir, checkpoints and logs, and becomes the model that it would become
alone, within float tolerance: the others do not affect it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jmoe.config.check import check_config
from jmoe.config.fields import alike
from jmoe.cost import memory
from jmoe.errors import Interrupted, UserError
from jmoe.model import sharding
from jmoe.run import loop, step


def train(configs, workdirs, stop_signal=lambda: 0, on_failure=lambda m, error: None) -> list:
    """`jmoe.train.train` of each config in its workdir, all in one compiled step.

    A config of None leaves its place in the stack empty, so that the program, and every bit of the others, stays the
    same when some models are done. When model m fails, on_failure(m, UserError) is called at once; the others go on.

    Returns:
      for each config its results, None, or the UserError that it failed with.

    Raises:
      UserError: the configs differ in more than their own fields (jmoe/config/fields.py). Interrupted: `stop_signal()`
        gave a signal number, and every model is saved.
    """
    first = next(config for config in configs if config is not None)
    for config in configs:
        if config is None:
            continue
        check_config(config)
        if alike(config) != alike(first):
            raise UserError("models trained together must have equal configs but for seed, learning rate and budgets")
    mesh = sharding.make_mesh(first)
    outcomes, stopped = [None] * len(configs), None
    with jax.set_mesh(mesh), memory.explained(first, mesh, len(configs)):
        stack, eval_step = _Stack(first, mesh, len(configs)), step.make_eval_step(first, mesh)
        running = {
            m: loop.steps(config, workdirs[m], mesh, eval_step, stop_signal)
            for m, config in enumerate(configs)
            if config is not None
        }
        answers = dict.fromkeys(running)
        while running:
            asked = {}
            for m, work in list(running.items()):
                try:
                    asked[m] = work.send(answers[m])
                    continue
                except StopIteration as end:
                    outcomes[m] = end.value
                except UserError as error:
                    outcomes[m] = error
                    on_failure(m, error)
                except Interrupted as signal:
                    stopped = signal
                del running[m]
            answers = stack.step(asked)
    if stopped:
        raise Interrupted("stopped; every model is saved; the same command resumes", stopped.signum)
    return outcomes


class _Stack:
    """(params, opt_state) of M models with a leading axis M, and the step that trains any of them at once."""

    def __init__(self, config, mesh, n_models: int):
        self._n_models, self._train_step = n_models, make_train_step(config, mesh)

        def empty(a):
            spec = jax.sharding.PartitionSpec(None, *a.sharding.spec)
            return jnp.zeros((n_models, *a.shape), a.dtype, device=jax.NamedSharding(mesh, spec))

        self.state = jax.tree.map(empty, step.abstract_state(config, mesh))

    def step(self, asked: dict) -> dict:
        """Makes the steps in `asked`, {m: what its loop.steps yielded}; returns {m: what to send to its loop.steps}.

        If batches differ in size, one step is made for each size.
        """
        answers = {}
        for size in sorted({batch.shape for _, batch, _ in asked.values()}):
            rates, active, batches = np.zeros(self._n_models, np.float32), np.zeros(self._n_models, bool), {}
            for m, (state, batch, rate) in asked.items():
                if batch.shape == size:
                    if not isinstance(state, _Row):
                        self.state = _put(self.state, tuple(state), m)
                    batches[m], rates[m], active[m] = batch, rate, True
            filler = next(iter(batches.values()))
            batches = [batches.get(m, filler) for m in range(self._n_models)]
            *self.state, metrics = self._train_step(*self.state, batches, rates, active)
            self.state = tuple(self.state)
            metrics = functools.cache(functools.partial(jax.device_get, metrics))
            answers |= {m: (_Row(self, m), functools.partial(_of, metrics, m)) for m in np.flatnonzero(active).tolist()}
        return answers


class _Row:
    """The state of model m, which stays in the stack; unpacking it copies it out."""

    def __init__(self, stack: _Stack, m: int):
        self._stack, self._m = stack, m

    def __iter__(self):
        return iter(_take(self._stack.state, self._m))


def make_train_step(config, mesh):
    """The compiled step (params, opt_state, list of M batches [B, T + 1], learning rates [M], active [M]) -> (params,
    opt_state, metrics), trees with a leading axis M of models; those that are not active stay as they are.

    `config` gives the shapes and the optimizer's constants, which all models share.
    """
    train_step = jax.vmap(step.make_train_step(config, mesh))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step_of_all(params, opt_state, batches, learning_rates, active):
        *state, metrics = train_step(params, opt_state, jnp.stack(batches), learning_rates)
        keep = lambda new, old: jnp.where(active.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
        return *jax.tree.map(keep, tuple(state), (params, opt_state)), metrics

    return step_of_all


@functools.partial(jax.jit, donate_argnums=0)
def _put(stacked, one, m):
    return jax.tree.map(lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, m, 0), stacked, one)


@jax.jit
def _take(stacked, m):
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, m, 0, keepdims=False), stacked)


def _of(metrics, m: int):
    return jax.tree.map(lambda a: a[m], metrics())
