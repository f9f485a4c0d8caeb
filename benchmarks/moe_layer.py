"""A mixture of experts, compared with a dense layer of equal active FLOPs, one-hot dispatch and transformers' block:

    python -m benchmarks.moe_layer [--json=PATH]

Forward and backward, gradients of tokens and weights, capacity factor 1, in float32 on a CPU and bfloat16 elsewhere.
Top-1 arms have their T tokens in one group, fine-grained ones (k of E experts of another width) in groups of T / k:
one-hot dispatch in a single group would take k times the time and the memory. --dropless adds layers without a
capacity. On a CPU with torch and transformers, their Mixtral block of the same sizes is an arm; it drops nothing. The
arms take turns in one process, with an untimed call before each timed one. Times are medians, and ratios are medians of
the rounds' ratios.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import measure
from jmoe.cost import chips
from jmoe.model import experts, moe_layer, routing, sharding

N_TOKENS = flags.DEFINE_integer("n_tokens", 8192, "Number of tokens, all in one group.")
D_MODEL = flags.DEFINE_integer("d_model", 256, "Width of the layer.")
D_FF = flags.DEFINE_integer("d_ff", 768, "Width of an expert.")
EXPERTS = flags.DEFINE_multi_integer("n_experts", [4, 8, 32], "Number of experts of a top-1 layer.")
FINE = flags.DEFINE_multi_string("fine", ["64,8,96", "256,8,96"], "E,k,width of a fine-grained layer; '' for none.")
DROPLESS = flags.DEFINE_multi_string("dropless", [], "E,k,width of a layer that drops nothing.")

Layer = Callable[..., tuple[jax.Array, Any]]  # (x, *weights) -> (y, auxiliary loss)

NOTES = """\
model FLOPs = 18 T d k ff + 6 T d E (three matrices of k experts and the router, forward and twice backward), without
padding, dropped tokens' work counted as done; MFU = model FLOPs / (seconds x peak), GFLOP/s where no peak is published.
temp MiB: XLA's temporaries of the compiled forward and backward. x dense: this arm over the dense layer."""


def one_hot(
    x_ND: jax.Array,
    router_DE: jax.Array,
    gate_EDF: jax.Array,
    up_EDF: jax.Array,
    down_EFD: jax.Array,
    group_tokens: int,
    top_k: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """Returns moe_layer.moe_layer by einsums with one-hot dispatch [G, J, E, C], as Mesh TensorFlow does it."""
    n_tokens, d_model = x_ND.shape
    n_experts = router_DE.shape[1]
    capacity = group_tokens * top_k // n_experts
    x_GSD = x_ND.reshape(-1, group_tokens, d_model)
    expert_GJ, gate_GJ, metrics = routing.route(routing.router_logits(x_GSD, router_DE), top_k=top_k)
    choice_GJE = jax.nn.one_hot(expert_GJ, n_experts, dtype=jnp.int32)
    position_GJE = (jnp.cumsum(choice_GJE, axis=1) - 1) * choice_GJE
    slot_GJC = jax.nn.one_hot(jnp.sum(position_GJE, axis=2), capacity, dtype=x_ND.dtype)

    def by_choice(a: jax.Array) -> jax.Array:
        return a.astype(x_ND.dtype).reshape(len(x_GSD), top_k, group_tokens, -1)

    product = "gjse,gjsc->gsec"  # over the choices of a token
    dispatch_GSEC = jnp.einsum(product, by_choice(choice_GJE), by_choice(slot_GJC))
    gated_GJE = choice_GJE * gate_GJ[:, :, None]
    combine_GSEC = jnp.einsum(product, by_choice(gated_GJE), by_choice(slot_GJC))
    slots_EGCD = jnp.einsum("gsec,gsd->egcd", dispatch_GSEC, x_GSD)
    outputs = experts.swiglu(slots_EGCD.reshape(n_experts, -1, d_model), gate_EDF, up_EDF, down_EFD)
    y_GSD = jnp.einsum("gsec,egcd->gsd", combine_GSEC, outputs.reshape(slots_EGCD.shape))
    return y_GSD.reshape(n_tokens, d_model), jnp.mean(metrics["load_balance"] + metrics["router_z"])


def torch_mixtral(n_tokens: int, d_model: int, width: int, n_experts: int, top_k: int) -> Callable[[], None] | None:
    """Returns forward and backward of transformers' Mixtral block on random numbers; None without it."""
    try:
        import torch
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    except ImportError:
        return None
    sizes = dict(hidden_size=d_model, intermediate_size=width, num_local_experts=n_experts, num_experts_per_tok=top_k)
    layer = MixtralSparseMoeBlock(MixtralConfig(**sizes))
    x = torch.randn(1, n_tokens, d_model)
    dy = torch.randn(1, n_tokens, d_model)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=d_model**-0.5)
    x.requires_grad_()

    def forward_and_backward() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        y = layer(x)
        (y[0] if isinstance(y, tuple) else y).backward(dy)

    return forward_and_backward


def mixture(
    x_ND: jax.Array,
    router_DE: jax.Array,
    *weights: jax.Array,
    capacity_factor: float | None = 1.0,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """Returns the outputs of moe_layer.moe_layer, and the sum of its auxiliary losses."""
    y_ND, metrics = moe_layer.moe_layer(x_ND, router_DE, weights, capacity_factor=capacity_factor, **options)
    return y_ND, metrics["load_balance"] + metrics["router_z"]


def dense(*arguments: jax.Array) -> tuple[jax.Array, float]:
    """Returns the outputs of a dense layer, and no auxiliary loss."""
    return experts.swiglu(*arguments), 0.0


@dataclasses.dataclass(frozen=True)
class Arm:
    """A layer to be timed.

    Attributes:
        run: starts forward and backward, and returns arrays to wait for.
        temp_bytes: bytes of XLA's temporaries; None if XLA does not compile the layer.
        flops: model FLOPs of forward and backward.
    """

    run: Callable[[], Any]
    temp_bytes: int | None
    flops: float


class Arms:
    """The layers to be timed, in the order in which they were added.

    Attributes:
        by_name: all arms.
    """

    def __init__(self, mesh: jax.sharding.Mesh, dtype: jnp.dtype, n_tokens: int, d_model: int) -> None:
        self.by_name: dict[str, Arm] = {}
        self._mesh = mesh
        self._dtype = dtype
        self._n_tokens = n_tokens
        self._d_model = d_model
        self._keys = iter(jax.random.split(jax.random.key(0), 100))
        self._x_ND = self._normal(n_tokens, d_model) * n_tokens**0.5
        self._dy_ND = self._normal(n_tokens, d_model)

    def _normal(self, *shape: int) -> jax.Array:
        return jax.random.normal(next(self._keys), shape, self._dtype) / shape[-2] ** 0.5

    def dense_weights(self, width: int) -> list[jax.Array]:
        """Draws gate, up and down of a dense layer of this width."""
        d = self._d_model
        return [self._normal(d, width), self._normal(d, width), self._normal(width, d)]

    def expert_weights(self, n_experts: int, width: int) -> list[jax.Array]:
        """Draws router, gate, up and down of experts of this width."""
        e, d = n_experts, self._d_model
        router_DE = self._normal(d, e).astype(jnp.float32)
        return [router_DE, self._normal(e, d, width), self._normal(e, d, width), self._normal(e, width, d)]

    def flops(self, n_experts: int, active_width: int) -> float:
        """Returns the model FLOPs of a layer, as NOTES count them."""
        router = 6 * self._n_tokens * self._d_model * n_experts if n_experts > 1 else 0
        return 18 * self._n_tokens * self._d_model * active_width + router

    def add(self, name: str, layer: Layer, weights: list[jax.Array], n_experts: int, active_width: int) -> None:
        """Compiles and adds a layer of `n_experts` experts, of which a token uses `active_width` hidden units."""

        def forward_and_backward(x_ND: jax.Array, dy_ND: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
            def loss(x_ND: jax.Array, *weights: jax.Array) -> tuple[jax.Array, jax.Array]:
                y_ND, auxiliary = layer(x_ND, *weights)
                return jnp.sum(y_ND * dy_ND).astype(jnp.float32) + auxiliary, y_ND

            # returns the outputs too: otherwise the last product of the forward pass is not needed and is left out
            grads, y_ND = jax.grad(loss, argnums=tuple(range(len(weights) + 1)), has_aux=True)(x_ND, *weights)
            return y_ND, *grads

        specs = (jax.sharding.PartitionSpec(),) * (len(weights) + 2)  # all replicated
        step = sharding.per_device(forward_and_backward, self._mesh, specs, specs)
        arguments = (self._x_ND, self._dy_ND, *weights)
        compiled = jax.jit(step).lower(*arguments).compile()
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
        self.by_name[name] = Arm(
            functools.partial(compiled, *arguments), temp_bytes, self.flops(n_experts, active_width)
        )


def triples(texts: list[str]) -> list[tuple[int, int, int]]:
    """Parses texts "E,k,width"; empty ones are left out."""
    parsed = []
    for text in texts:
        if text:
            n_experts, top_k, width = (int(part) for part in text.split(","))
            parsed.append((n_experts, top_k, width))
    return parsed


def add_mixture(arms: Arms, n_experts: int, top_k: int, width: int) -> tuple[str, str]:
    """Adds a mixture, its one-hot form and, on a CPU, torch's; returns the names of the first two."""
    what = f"E={n_experts}"
    if top_k > 1:
        what += f" k={top_k} ff={width}"
    names = (f"switch {what}" if top_k == 1 else f"mixture {what}", f"one-hot {what}")
    weights = arms.expert_weights(n_experts, width)
    for name, layer in zip(names, (mixture, one_hot), strict=True):
        layer = functools.partial(layer, group_tokens=N_TOKENS.value // top_k, top_k=top_k)
        arms.add(name, layer, weights, n_experts, top_k * width)
    if jax.devices()[0].platform == "cpu":
        block = torch_mixtral(N_TOKENS.value, D_MODEL.value, width, n_experts, top_k)
        if block:
            arms.by_name[f"torch Mixtral {what}"] = Arm(block, None, arms.by_name[names[0]].flops)
    return names


def main(_: object) -> None:
    """Times the layers, and prints a row for each."""
    device = jax.devices()[0]
    dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
    explicit = (jax.sharding.AxisType.Explicit,) * 3
    mesh = jax.make_mesh((1, 1, 1), sharding.AXES, axis_types=explicit, devices=[device])
    d_ff = D_FF.value
    with jax.set_mesh(mesh):
        arms = Arms(mesh, dtype, N_TOKENS.value, D_MODEL.value)
        arms.add("dense", dense, arms.dense_weights(d_ff), 1, d_ff)
        sizes = [(n_experts, 1, d_ff) for n_experts in EXPERTS.value] + triples(FINE.value)
        pairs = [add_mixture(arms, *size) for size in sizes]
        for n_experts, top_k, width in triples(DROPLESS.value):
            layer = functools.partial(mixture, capacity_factor=None, top_k=top_k)
            weights = arms.expert_weights(n_experts, width)
            arms.add(f"dropless E={n_experts} k={top_k} ff={width}", layer, weights, n_experts, top_k * width)
        run = {name: arm.run for name, arm in arms.by_name.items()}
        largest_difference = max(
            float(jnp.max(jnp.abs(a - b)))
            for ours, theirs in pairs
            for a, b in zip(run[ours](), run[theirs](), strict=True)
        )
        seconds, cpu = measure.in_turn(run, measure.ROUNDS.value, settle=True)
    rows = [row_of(name, arm, arms.by_name["dense"], seconds, cpu) for name, arm in arms.by_name.items()]
    notes = f"{NOTES}\nlargest difference between ours and one-hot, outputs and gradients: {largest_difference:.2g}"
    measure.show(rows, notes, measure.JSON.value)


def row_of(
    name: str, arm: Arm, dense_arm: Arm, seconds: dict[str, list[float]], cpu: dict[str, list[float]]
) -> dict[str, Any]:
    """Returns the row of an arm."""
    median = sorted(seconds[name])[len(seconds[name]) // 2]
    rate = arm.flops / median
    chip = chips.of_device(jax.devices()[0])
    return {
        "layer": name,
        "ms": median * 1e3,
        "x dense": measure.ratio(seconds, name, "dense"),
        "x dense, CPU time": measure.ratio(cpu, name, "dense"),
        "MFU" if chip else "GFLOP/s": rate / chip.flops if chip else rate / 1e9,
        "temp MiB": arm.temp_bytes and arm.temp_bytes / 2**20,
        "temp x dense": arm.temp_bytes and arm.temp_bytes / dense_arm.temp_bytes,
    }


if __name__ == "__main__":
    app.run(main)
