"""A coordinate check of config.parametrization: by how much ten steps change the activations of several widths.

    python -m benchmarks.width_transfer --picture=results/tuned/mup.png
    python -m benchmarks.width_transfer --rates=0.005,0.015

Two blocks of four experts learn one batch of random bytes at one rate, as in Tensor Programs V (arXiv 2203.03466),
Fig. 5: with "standard" the change grows with the width, with "mup" it does not. With --rates only "mup" and AdamW are
measured, at other rates: four experts and a dense model, with a norm before the head and without one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from configs import quickstart
from jmoe.model import attention, parameters, sharding, transformer
from jmoe.run import step

PICTURE = flags.DEFINE_string("picture", "results/tuned/mup.png", "Picture to write.")
OTHER_RATES = flags.DEFINE_list("rates", [], "Rates of AdamW to measure mup at, instead of the picture.")
WIDTHS = (64, 128, 256, 512)
ENDS = (WIDTHS[0], WIDTHS[-1])
TICKS = (0.2, 0.5, 1, 2, 4)
RATES = {"adamw": 0.005, "muon": 0.02}
N_STEPS = 10


def config_of(
    d_model: int, parametrization: str, optimizer: str, n_experts: int = 4, final_norm: bool = True
) -> ConfigDict:
    """Returns the config of one of the models."""
    config = quickstart.get_config()
    config.model.update(d_model=d_model, n_blocks=2, n_heads=d_model // 16, d_ff=2 * d_model, norm="rms")
    config.model.update(n_experts=n_experts, final_norm=final_norm)
    config.model.group_tokens = 64
    config.data.seq_len = 32
    config.batch_tokens = ((0, 512),)
    config.optimizer.name = optimizer
    config.parametrization = parametrization
    config.mup_base.update(d_model=64, n_blocks=2, head_dim=16)
    return config


@functools.cache
def changes(  # noqa: PLR0913  most have a default
    d_model: int,
    parametrization: str,
    optimizer: str,
    n_experts: int = 4,
    final_norm: bool = True,
    rate: float | None = None,
) -> dict[str, float]:
    """Returns the RMS change by N_STEPS of the last residual stream and of the logits, on one device.

    rate: by default that of RATES.
    """
    config = config_of(d_model, parametrization, optimizer, n_experts, final_norm)
    if rate is None:
        rate = RATES[optimizer]
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    without_norm = config.copy_and_resolve_references()
    without_norm.model.final_norm = False

    def local(params: dict, tokens_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        bare = {name: x for name, x in params.items() if name != "final_norm"}
        x_BTD, head_DV, _ = transformer.apply(bare, tokens_BT, without_norm, False)
        normed_BTD = attention.norm(x_BTD, params["final_norm"]["scale"]) if final_norm else x_BTD
        return x_BTD, normed_BTD @ head_DV

    with jax.set_mesh(mesh):
        specs = parameters.parameter_specs(config.model, mesh.shape), sharding.TOKENS
        activations = jax.jit(sharding.per_device(local, mesh, specs, (sharding.TOKENS, sharding.TOKENS)))
        params = jax.jit(lambda: parameters.init_params(config))()
        opt_state = jax.jit(step.make_optimizer(config).init)(params)
        train_step = step.make_train_step(config, mesh)
        batch = jnp.asarray(np.random.default_rng(0).integers(257, size=(16, 33)), jnp.int32)
        batch = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
        before = jax.device_get(activations(params, batch[:, :-1]))
        for _ in range(N_STEPS):
            params, opt_state, _ = train_step(params, opt_state, batch, np.float32(rate))
        after = jax.device_get(activations(params, batch[:, :-1]))
    return {name: rms_difference(a, b) for name, a, b in zip(("residual stream", "logits"), before, after, strict=True)}


def rms_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the root mean square of a - b."""
    return float(np.sqrt(np.mean((np.float64(a) - b) ** 2)))


def print_at_rates(rates: list[float]) -> None:
    """Prints how "mup" and AdamW change the logits of the narrowest and the widest model at these rates."""
    for rate in rates:
        for final_norm in (True, False):
            for n_experts in (4, 1):
                values = [changes(d, "mup", "adamw", n_experts, final_norm, rate)["logits"] for d in ENDS]
                norm = "norm" if final_norm else "no norm"
                print(f"rate {rate:g}, E = {n_experts}, {norm:7} {values[0]:.2f} {values[1]:.2f}", flush=True)


def main(_: object) -> None:
    """Prints the changes, and draws them."""
    if OTHER_RATES.value:
        print_at_rates([float(rate) for rate in OTHER_RATES.value])
        return
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for i, optimizer in enumerate(RATES):
        for j, parametrization in enumerate(("standard", "mup")):
            by_width = [changes(d_model, parametrization, optimizer) for d_model in WIDTHS]
            for k, name in enumerate(by_width[0]):
                values = [changes_of_width[name] for changes_of_width in by_width]
                print(
                    f"{optimizer:6} {parametrization:9} {name:16} " + " ".join(f"{x:.3f}" for x in values), flush=True
                )
                style = dict(color=f"C{j}", linestyle="-:"[k], marker="o", markersize=3)
                axes[i].plot(WIDTHS, values, **style, label=f"{parametrization}, {name}")
        axes[i].set(xscale="log", yscale="log", xlabel="d_model", title=f"{optimizer}, rate {RATES[optimizer]}")
        axes[i].set_xticks(WIDTHS, WIDTHS)
        axes[i].set_yticks(TICKS, TICKS)
        axes[i].minorticks_off()
    axes[0].set_ylabel(f"RMS of the change in {N_STEPS} steps")
    axes[0].legend(fontsize="small")
    figure.savefig(PICTURE.value, dpi=100)


if __name__ == "__main__":
    app.run(main)
