"""One Switch layer against a dense one of equal active FLOPs and against the peers' one-hot dispatch:

    python -m benchmarks.moe_layer [--json=PATH]

Forward and backward, gradients of tokens and weights, T tokens in one group, capacity factor 1, in float32 on a CPU and
bfloat16 elsewhere. The arms take turns in one process, each call timed after one that is not; times are medians, ratios
medians of the rounds' ratios.
"""

import functools

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import measure
from jmoe.cost import chips
from jmoe.model import dispatch, routing, sharding

N_TOKENS = flags.DEFINE_integer("n_tokens", 8192, "Tokens, all in one group.")
D_MODEL = flags.DEFINE_integer("d_model", 256, "Width of the layer.")
D_FF = flags.DEFINE_integer("d_ff", 768, "Width of an expert.")
EXPERTS = flags.DEFINE_multi_integer("n_experts", [4, 8, 32], "Numbers of experts.")

NOTES = """\
model FLOPs = 18 T d ff + 6 T d E (three matrices of one expert and the router, forward and twice backward), without
padding, dropped tokens' work counted as done; MFU = model FLOPs / (seconds x peak), GFLOP/s where no peak is published.
temp MiB: XLA's temporaries of the compiled forward and backward. x dense: this arm over the dense layer."""


def one_hot_switch(x_ND, router_DE, gate_EDF, up_EDF, down_EFD, capacity: int):
    """dispatch.mixture by einsums with one-hot dispatch [T, E, C], as in Mesh TensorFlow and its heirs."""
    n_experts = router_DE.shape[1]
    routed = routing.route(routing.logits_of(x_ND, router_DE)[None])
    expert_N, gate_N, metrics = jax.tree.map(lambda a: a[0], routed)
    choice_NE = jax.nn.one_hot(expert_N, n_experts, dtype=jnp.int32)
    position_NE = (jnp.cumsum(choice_NE, axis=0) - 1) * choice_NE
    slot_NC = jax.nn.one_hot(jnp.sum(position_NE, axis=1), capacity, dtype=x_ND.dtype)
    dispatch_NEC = choice_NE[:, :, None].astype(x_ND.dtype) * slot_NC[:, None, :]
    combine_NEC = dispatch_NEC * gate_N[:, None, None].astype(x_ND.dtype)
    slots_ECD = jnp.einsum("nec,nd->ecd", dispatch_NEC, x_ND)
    y_ND = jnp.einsum("nec,ecd->nd", combine_NEC, dispatch.swiglu(slots_ECD, gate_EDF, up_EDF, down_EFD))
    return y_ND, metrics["load_balance"] + metrics["router_z"]


def main(_):
    n, d, f = N_TOKENS.value, D_MODEL.value, D_FF.value
    device = jax.devices()[0]
    dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
    explicit = (jax.sharding.AxisType.Explicit,) * 3
    mesh = jax.make_mesh((1, 1, 1), sharding.AXES, axis_types=explicit, devices=[device])
    keys = iter(jax.random.split(jax.random.key(0), 100))
    normal = lambda *shape: jax.random.normal(next(keys), shape, dtype) / shape[-2] ** 0.5
    x_ND, dy_ND = normal(n, d) * n**0.5, normal(n, d)

    def arm(layer, weights):
        """Forward and backward of layer(x, *weights) -> y, auxiliary loss; compiled."""

        def both(x_ND, dy_ND, *weights):
            def loss(x_ND, *weights):
                y_ND, auxiliary = layer(x_ND, *weights)
                return jnp.sum(y_ND * dy_ND).astype(jnp.float32) + auxiliary, y_ND

            # with the outputs, or the last product of the forward pass would not be needed and left out
            grads, y_ND = jax.grad(loss, argnums=tuple(range(len(weights) + 1)), has_aux=True)(x_ND, *weights)
            return y_ND, *grads

        replicated = jax.sharding.PartitionSpec()
        both = sharding.per_device(both, mesh, (replicated,) * (len(weights) + 2), (replicated,) * (len(weights) + 2))
        compiled = jax.jit(both).lower(x_ND, dy_ND, *weights).compile()
        return functools.partial(compiled, x_ND, dy_ND, *weights), compiled.memory_analysis().temp_size_in_bytes

    def mixture(x_ND, router_DE, *weights):
        y_ND, metrics = dispatch.mixture(x_ND, router_DE, weights, group_tokens=n, capacity_factor=1.0)
        return y_ND, metrics["load_balance"] + metrics["router_z"]

    with jax.set_mesh(mesh):
        arms, temps, flops = {}, {}, {}

        def add(name, n_experts, layer, weights):
            arms[name], temps[name] = arm(layer, weights)
            flops[name] = 18 * n * d * f + (6 * n * d * n_experts if n_experts > 1 else 0)

        add("dense", 1, lambda *args: (dispatch.swiglu(*args), 0.0), [normal(d, f), normal(d, f), normal(f, d)])
        for e in EXPERTS.value:
            weights = [normal(d, e).astype(jnp.float32), normal(e, d, f), normal(e, d, f), normal(e, f, d)]
            add(f"switch E={e}", e, mixture, weights)
            add(f"one-hot E={e}", e, functools.partial(one_hot_switch, capacity=n // e), weights)
        apart = max(
            float(jnp.max(jnp.abs(a - b)))
            for e in EXPERTS.value
            for a, b in zip(arms[f"switch E={e}"](), arms[f"one-hot E={e}"]())
        )
        seconds, cpu = measure.in_turn(arms, measure.ROUNDS.value, settle=True)

    chip = chips.of_device(device)
    rows = []
    for name, times in seconds.items():
        median = sorted(times)[len(times) // 2]
        rate = flops[name] / median
        rows.append(
            {
                "layer": name,
                "ms": median * 1e3,
                "x dense": measure.ratio(seconds, name, "dense"),
                "x dense, CPU time": measure.ratio(cpu, name, "dense"),
                "MFU" if chip else "GFLOP/s": rate / chip.flops if chip else rate / 1e9,
                "temp MiB": temps[name] / 2**20,
                "temp x dense": temps[name] / temps["dense"],
            }
        )
    notes = f"{NOTES}\nlargest difference between switch and one-hot, outputs and gradients: {apart:.2g}"
    measure.show(rows, notes, measure.JSON.value)


if __name__ == "__main__":
    app.run(main)
