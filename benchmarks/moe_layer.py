"""A mixture of experts against a dense layer of equal active FLOPs, one-hot dispatch, and transformers' block:

    python -m benchmarks.moe_layer [--json=PATH]

Forward and backward, gradients of tokens and weights, capacity factor 1, in float32 on a CPU and bfloat16 elsewhere.
Top-1 arms have their T tokens in one group, fine-grained ones (k of E experts of another width) in groups of T / k:
one-hot dispatch in a single group would take k times the time and the memory. --dropless adds layers without a
capacity. On a CPU where torch and transformers
are installed, their Mixtral block of the same sizes is an arm; it drops nothing. The arms take turns in one process,
an untimed call before each timed one; times are medians, ratios medians of the rounds' ratios.
"""

import functools

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import measure
from jmoe.cost import chips
from jmoe.model import experts, moe_layer, routing, sharding

N_TOKENS = flags.DEFINE_integer("n_tokens", 8192, "Tokens, all in one group.")
D_MODEL = flags.DEFINE_integer("d_model", 256, "Width of the layer.")
D_FF = flags.DEFINE_integer("d_ff", 768, "Width of an expert.")
EXPERTS = flags.DEFINE_multi_integer("n_experts", [4, 8, 32], "Numbers of experts of top-1 layers.")
FINE = flags.DEFINE_multi_string("fine", ["64,8,96", "256,8,96"], "E,k,width of fine-grained layers; '' for none.")
DROPLESS = flags.DEFINE_multi_string("dropless", [], "E,k,width of layers that drop nothing.")

NOTES = """\
model FLOPs = 18 T d k ff + 6 T d E (three matrices of k experts and the router, forward and twice backward), without
padding, dropped tokens' work counted as done; MFU = model FLOPs / (seconds x peak), GFLOP/s where no peak is published.
temp MiB: XLA's temporaries of the compiled forward and backward. x dense: this arm over the dense layer."""


def one_hot(x_ND, router_DE, gate_EDF, up_EDF, down_EFD, group_tokens: int, top_k: int = 1):
    """moe_layer.moe_layer by einsums with one-hot dispatch [G, J, E, C], as in Mesh TensorFlow and its heirs."""
    (n, d_model), n_experts = x_ND.shape, router_DE.shape[1]
    capacity = group_tokens * top_k // n_experts
    x_GSD = x_ND.reshape(-1, group_tokens, d_model)
    expert_GJ, gate_GJ, metrics = routing.route(routing.router_logits(x_GSD, router_DE), top_k=top_k)
    choice_GJE = jax.nn.one_hot(expert_GJ, n_experts, dtype=jnp.int32)
    position_GJE = (jnp.cumsum(choice_GJE, axis=1) - 1) * choice_GJE
    slot_GJC = jax.nn.one_hot(jnp.sum(position_GJE, axis=2), capacity, dtype=x_ND.dtype)
    by_choice = lambda a: a.reshape(len(x_GSD), top_k, group_tokens, -1)
    product = "gjse,gjsc->gsec"  # over the choices of a token
    dispatch_GSEC = jnp.einsum(product, by_choice(choice_GJE).astype(x_ND.dtype), by_choice(slot_GJC))
    gated_GJE = choice_GJE * gate_GJ[:, :, None]
    combine_GSEC = jnp.einsum(product, by_choice(gated_GJE).astype(x_ND.dtype), by_choice(slot_GJC))
    slots_EGCD = jnp.einsum("gsec,gsd->egcd", dispatch_GSEC, x_GSD)
    served = experts.swiglu(slots_EGCD.reshape(n_experts, -1, d_model), gate_EDF, up_EDF, down_EFD)
    y_GSD = jnp.einsum("gsec,egcd->gsd", combine_GSEC, served.reshape(slots_EGCD.shape))
    return y_GSD.reshape(n, d_model), jnp.mean(metrics["load_balance"] + metrics["router_z"])


def torch_mixtral(n, d, f, n_experts: int, top_k: int):
    """Forward and backward of transformers' Mixtral block on random numbers, or None where it is not installed."""
    try:
        import torch
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    except ImportError:
        return None
    sizes = dict(hidden_size=d, intermediate_size=f, num_local_experts=n_experts, num_experts_per_tok=top_k)
    layer, x, dy = MixtralSparseMoeBlock(MixtralConfig(**sizes)), torch.randn(1, n, d), torch.randn(1, n, d)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=d**-0.5)
    x.requires_grad_()

    def both():
        layer.zero_grad(set_to_none=True)
        x.grad = None
        y = layer(x)
        (y[0] if isinstance(y, tuple) else y).backward(dy)

    return both


def main(_):
    n, d, f = N_TOKENS.value, D_MODEL.value, D_FF.value
    sizes = [(e, 1, f) for e in EXPERTS.value] + [tuple(map(int, one.split(","))) for one in FINE.value if one]
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

            # returns the outputs too: otherwise the last product of the forward pass is not needed and is left out
            grads, y_ND = jax.grad(loss, argnums=tuple(range(len(weights) + 1)), has_aux=True)(x_ND, *weights)
            return y_ND, *grads

        replicated = jax.sharding.PartitionSpec()
        both = sharding.per_device(both, mesh, (replicated,) * (len(weights) + 2), (replicated,) * (len(weights) + 2))
        compiled = jax.jit(both).lower(x_ND, dy_ND, *weights).compile()
        return functools.partial(compiled, x_ND, dy_ND, *weights), compiled.memory_analysis().temp_size_in_bytes

    def mixture(x_ND, router_DE, *weights, capacity_factor=1.0, **options):
        y_ND, metrics = moe_layer.moe_layer(x_ND, router_DE, weights, capacity_factor=capacity_factor, **options)
        return y_ND, metrics["load_balance"] + metrics["router_z"]

    with jax.set_mesh(mesh):
        arms, temps, flops = {}, {}, {}

        def add(name, n_experts, layer, weights, width=f):
            arms[name], temps[name] = arm(layer, weights)
            flops[name] = 18 * n * d * width + (6 * n * d * n_experts if n_experts > 1 else 0)

        add("dense", 1, lambda *args: (experts.swiglu(*args), 0.0), [normal(d, f), normal(d, f), normal(f, d)])
        pairs = []
        for e, k, width in sizes:
            weights = [normal(d, e).astype(jnp.float32), normal(e, d, width), normal(e, d, width), normal(e, width, d)]
            options, what = dict(group_tokens=n // k, top_k=k), f"E={e}" + (f" k={k} ff={width}" if k > 1 else "")
            pairs.append((f"switch {what}" if k == 1 else f"mixture {what}", f"one-hot {what}"))
            for name, layer in zip(pairs[-1], (mixture, one_hot)):
                add(name, e, functools.partial(layer, **options), weights, k * width)
            if device.platform == "cpu" and (block := torch_mixtral(n, d, width, e, k)):
                name = f"torch Mixtral {what}"
                arms[name], temps[name], flops[name] = block, None, flops[pairs[-1][0]]
        for e, k, width in [tuple(map(int, one.split(","))) for one in DROPLESS.value]:
            weights = [normal(d, e).astype(jnp.float32), normal(e, d, width), normal(e, d, width), normal(e, width, d)]
            layer = functools.partial(mixture, capacity_factor=None, top_k=k)
            add(f"dropless E={e} k={k} ff={width}", e, layer, weights, k * width)
        apart = max(
            float(jnp.max(jnp.abs(a - b))) for ours, theirs in pairs for a, b in zip(arms[ours](), arms[theirs]())
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
                "temp MiB": temps[name] and temps[name] / 2**20,
                "temp x dense": temps[name] and temps[name] / temps["dense"],
            }
        )
    notes = f"{NOTES}\nlargest difference between ours and one-hot, outputs and gradients: {apart:.2g}"
    measure.show(rows, notes, measure.JSON.value)


if __name__ == "__main__":
    app.run(main)
