"""A coordinate check of config.parametrization: what ten steps change in activations of models of several widths.

    python -m benchmarks.width_transfer --picture=results/tuned/mup.png

Two blocks of four experts learn one batch of random bytes at one rate, as in Tensor Programs V (arXiv 2203.03466),
Fig. 5: with "standard" the change grows with the width, with "mup" it does not.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from configs import quickstart
from jmoe.model import attention, parameters, sharding, transformer
from jmoe.run import step

PICTURE = flags.DEFINE_string("picture", "results/tuned/mup.png", "Picture to write.")
WIDTHS = 64, 128, 256, 512
RATES = {"adamw": 0.005, "muon": 0.02}
N_STEPS = 10


def config_of(d_model: int, parametrization: str, optimizer: str):
    config = quickstart.get_config()
    config.model.update(d_model=d_model, n_blocks=2, n_heads=d_model // 16, d_ff=2 * d_model, n_experts=4, norm="rms")
    config.model.group_tokens, config.data.seq_len, config.batch_tokens = 64, 32, ((0, 512),)
    config.optimizer.name, config.parametrization = optimizer, parametrization
    config.mup_base.update(d_model=64, n_blocks=2, head_dim=16)
    return config


@functools.cache
def changes(d_model: int, parametrization: str, optimizer: str) -> dict[str, float]:
    """RMS of what N_STEPS change in the residual stream after the last block, and in the logits; on one device."""
    config = config_of(d_model, parametrization, optimizer)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    without_norm = config.copy_and_resolve_references()
    without_norm.model.final_norm = False

    def local(params, tokens_BT):
        bare = {name: x for name, x in params.items() if name != "final_norm"}
        x_BTD, head_DV, _ = transformer.apply(bare, tokens_BT, without_norm, False)
        return x_BTD, attention.norm(x_BTD, params["final_norm"]["scale"]) @ head_DV

    with jax.set_mesh(mesh):
        specs = parameters.parameter_specs(config.model), sharding.TOKENS
        activations = jax.jit(sharding.per_device(local, mesh, specs, (sharding.TOKENS, sharding.TOKENS)))
        params = jax.jit(lambda: parameters.init_params(config))()
        opt_state = jax.jit(step.make_optimizer(config).init)(params)
        train_step = step.make_train_step(config, mesh)
        batch = jnp.asarray(np.random.default_rng(0).integers(257, size=(16, 33)), jnp.int32)
        batch = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
        before = jax.device_get(activations(params, batch[:, :-1]))
        for _ in range(N_STEPS):
            params, opt_state, _ = train_step(params, opt_state, batch, np.float32(RATES[optimizer]))
        after = jax.device_get(activations(params, batch[:, :-1]))
    rms = lambda one, other: float(np.sqrt(np.mean((np.float64(one) - other) ** 2)))
    return {name: rms(*pair) for name, *pair in zip(("residual stream", "logits"), before, after)}


def main(_):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for i, optimizer in enumerate(RATES):
        for j, parametrization in enumerate(("standard", "mup")):
            found = [changes(d_model, parametrization, optimizer) for d_model in WIDTHS]
            for k, name in enumerate(found[0]):
                values = [one[name] for one in found]
                print(
                    f"{optimizer:6} {parametrization:9} {name:16} " + " ".join(f"{x:.3f}" for x in values), flush=True
                )
                style = dict(color=f"C{j}", linestyle="-:"[k], marker="o", markersize=3)
                axes[i].plot(WIDTHS, values, **style, label=f"{parametrization}, {name}")
        axes[i].set(xscale="log", yscale="log", xlabel="d_model", title=f"{optimizer}, rate {RATES[optimizer]}")
        axes[i].set_xticks(WIDTHS, WIDTHS)
        axes[i].set_yticks(ticks := (0.2, 0.5, 1, 2, 4), ticks)
        axes[i].minorticks_off()
    axes[0].set_ylabel(f"RMS of the change in {N_STEPS} steps")
    axes[0].legend(fontsize="small")
    figure.savefig(PICTURE.value, dpi=100)


if __name__ == "__main__":
    app.run(main)
