"""Decoder-only Transformer: pre-norm blocks of attention and a dense layer or a mixture of experts.

Axes (jmoe/model/__init__.py): B, D, E, F, H, K, N, P, T (when generating, new positions), U (positions of the cache),
V, Y parts of a projection, such as keys and values.

Each module owns its parameters: initial values, sharding and kind stand beside each `param` (jmoe/model/param.py).
Modules are made from (config.model, rngs) and are pytrees: vmap stacks blocks along a leading axis of layers, a scan
runs each stack with remat. Steps and checkpoints hold a plain tree of the parameters, by the names of the attributes:
{"embed", "blocks": {"attention": {"qkv", "out"}, "mlp": {"gate", "up", "down"}, ...}, ...}.

Calls run inside sharding.per_device, on a device's own part of rows, heads, d_ff and experts. Parameters are float32
and are cast before the blocks run; norms, attention (but for "flash"), RoPE and router compute in float32.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict, FrozenConfigDict

from jmoe.config import counts
from jmoe.model import attention, kernels, param, sharding
from jmoe.model.documents import Documents, find_documents
from jmoe.model.embedding import embed, lookup
from jmoe.model.experts import swiglu
from jmoe.model.moe_layer import moe_layer
from jmoe.model.remat import with_remat

STACKS = ("dense_blocks", "blocks")  # of equal blocks, in the order in which they run
Cache = tuple[Float[Array, "... B U P K"], Float[Array, "... B U P K"]]  # keys and values of positions 0, 1, ...
Metrics = dict[str, Array]  # routing.METRICS; {} of a dense layer


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm with a bias if `with_bias`."""

    def __init__(self, d: int, rngs: nnx.Rngs, with_bias: bool = False) -> None:
        self.scale = param.param(rngs, (d,), (None,), param.NORM, constant=1.0)
        self.bias = param.param(rngs, (d,), (None,), param.NORM, constant=0.0) if with_bias else None

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        bias_D = None if self.bias is None else self.bias[...]
        return attention.norm(x_BTD, self.scale[...], bias_D)


class Attention(nnx.Module):
    """Causal attention of n_heads heads; n_heads / n_kv_heads of them share keys and values.

    One weight makes queries, keys and values where they have equally many heads, else two do. With qk_norm "head" a
    scale [K] norms each head's queries and keys by itself. With "projection" a scale [heads, K] norms all heads.
    """

    def __init__(self, model: FrozenConfigDict, rngs: nnx.Rngs) -> None:
        self.model = model
        d = model.d_model
        n_heads, n_kv_heads, head_dim = counts.heads(model)
        qk_norm = model.qk_norm
        n_query_parts = 1 if qk_norm == "none" else 0  # a norm of queries hides the size of their weights

        def projection(n_parts: int, n_heads: int, n_query_parts: int) -> nnx.Param:
            kind = param.Kind("attention", n_query_parts=n_query_parts, in_axes=(-4,), out_axes=(-2, -1))
            shape = (d, n_parts, n_heads, head_dim)
            return param.param(rngs, shape, ("data", None, "model", None), kind, variance=model.init_scale / d)

        if n_kv_heads == n_heads:
            self.qkv = projection(3, n_heads, n_query_parts)
            self.q = None
            self.kv = None
        else:
            self.qkv = None
            self.q = projection(1, n_heads, n_query_parts)
            self.kv = projection(2, n_kv_heads, 0)
        out_kind = param.Kind("attention", adds_to_residual=True, in_axes=(-3, -2), out_axes=(-1,))
        out_shape = (n_heads, head_dim, d)
        variance = model.init_scale / (n_heads * head_dim)
        self.out = param.param(rngs, out_shape, ("model", None, "data"), out_kind, variance=variance)

        query_norm = param.Kind("norm", float32=True, n_query_parts=1)
        if qk_norm == "none":
            self.q_norm = None
            self.k_norm = None
        elif qk_norm == "head":
            self.q_norm = param.param(rngs, (head_dim,), (None,), query_norm, constant=1.0)
            self.k_norm = param.param(rngs, (head_dim,), (None,), param.NORM, constant=1.0)
        else:
            axes = ("model", None)
            self.q_norm = param.param(rngs, (n_heads, head_dim), axes, query_norm, constant=1.0)
            self.k_norm = param.param(rngs, (n_kv_heads, head_dim), axes, param.NORM, constant=1.0)

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        start: int | Int[Array, ""] = 0,
        cache: Cache | None = None,
        documents: Documents | None = None,
    ) -> tuple[Float[Array, "N D"], Cache | None]:
        """Attends from normed rows to themselves, or to a cache.

        Args:
          x_BTD: normed rows.
          start: the position of the first token, where there is a cache.
          cache: (k_BUPK, v_BUPK). The keys and values of the rows are put there, and the rows see all up to their own.
          documents: of the rows, where a token sees only its own; with a cache there are none.

        Returns:
          y_ND, to be summed over the model axis, since this device has H of the heads; and the cache.
        """
        b, t, d = x_BTD.shape
        flash = self.model.attention == "flash" and cache is None
        dtype = jnp.bfloat16 if flash else jnp.float32
        q_BTHK, k_BTPK, v_BTPK = self._project(x_BTD)
        q_BTHK, k_BTPK = self._norm_queries_and_keys(q_BTHK, k_BTPK)
        document_BT = None
        position_BT = None
        if documents is not None:
            document_BT = sharding.vary(documents.number_BT, ("model",))
            position_BT = sharding.vary(documents.position_BT, ("model",))
        q_BTHK = attention.rope(q_BTHK, self.model.rope_base, start, dtype, position_BT)
        k_BTPK = attention.rope(k_BTPK, self.model.rope_base, start, dtype, position_BT)
        v_BTPK = v_BTPK.astype(dtype)
        if flash and self.q_norm is None and sharding.platform() == "gpu":
            # kept in place of the projections, of the same size: the backward pass does not make them of these again
            q_BTHK, k_BTPK, v_BTPK = (checkpoint_name(a, attention.SAVED) for a in (q_BTHK, k_BTPK, v_BTPK))
        with jax.named_scope("attention"):  # its name in a profile
            if cache is not None:
                k_BUPK = jax.lax.dynamic_update_slice(cache[0], k_BTPK, (0, start, 0, 0))
                v_BUPK = jax.lax.dynamic_update_slice(cache[1], v_BTPK, (0, start, 0, 0))
                cache = (k_BUPK, v_BUPK)
                y_BTHK = attention.exact(q_BTHK, k_BUPK, v_BUPK, start)
            elif flash:
                y_BTHK = attention.flash(q_BTHK, k_BTPK, v_BTPK, document_BT)
            else:
                kernels.note("attention", "XLA in float32, all positions at once")
                y_BTHK = attention.exact(q_BTHK, k_BTPK, v_BTPK, 0, document_BT, document_BT)
        y_BTI = y_BTHK.astype(x_BTD.dtype).reshape(b, t, -1)  # I: of all heads
        out_HKD = sharding.gathered(self.out)
        return (_rows(y_BTI) @ out_HKD.reshape(-1, d)).reshape(b * t, d), cache

    def _project(
        self, x_BTD: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T P K"], Float[Array, "B T P K"]]:
        """q_BTHK, k_BTPK and v_BTPK."""
        b, t, d = x_BTD.shape
        parts = []
        for projection in (self.qkv, self.q, self.kv):
            if projection is None:
                continue
            weight_DYHK = sharding.gathered(projection)
            y_BTYHK = (_rows(x_BTD) @ weight_DYHK.reshape(d, -1)).reshape(b, t, *weight_DYHK.shape[1:])
            for part in range(y_BTYHK.shape[2]):
                parts.append(y_BTYHK[:, :, part])
        q_BTHK, k_BTPK, v_BTPK = parts
        return q_BTHK, k_BTPK, v_BTPK

    def _norm_queries_and_keys(
        self, q_BTHK: Float[Array, "B T H K"], k_BTPK: Float[Array, "B T P K"]
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B T P K"]]:
        if self.q_norm is None or self.k_norm is None:
            return q_BTHK, k_BTPK
        q_scale = sharding.gathered(self.q_norm)
        k_scale = sharding.gathered(self.k_norm)
        if self.model.qk_norm == "head":
            return attention.norm(q_BTHK, q_scale), attention.norm(k_BTPK, k_scale)
        # over all heads, those of other devices too
        norm = functools.partial(
            attention.norm, axis=(-2, -1), average=functools.partial(sharding.mean, axes=("model",))
        )
        return norm(q_BTHK, q_scale), norm(k_BTPK, k_scale)


def _rows(x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"] | Float[Array, "N D"]:
    """x_BTD in the shape in which a product with weights makes no copy of it.

    The gradient of the weights sums over B and T. A TPU sums over both axes in place, and would copy the array to merge
    them. CPUs and GPUs would copy it to sum over two axes.
    """
    return x_BTD if sharding.platform() == "tpu" else x_BTD.reshape(-1, x_BTD.shape[-1])


class MLP(nnx.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate x) * up x).

    With `n_experts`, the weights of as many of them, along a leading axis that is spread over the expert axis.
    """

    def __init__(self, model: FrozenConfigDict, width: int, rngs: nnx.Rngs, n_experts: int = 0) -> None:
        d = model.d_model
        if n_experts:
            leading = (n_experts,)
            leading_axes = ("expert",)
            kind = param.EXPERT
            out_kind = param.EXPERT_OUT
        else:
            leading = ()
            leading_axes = ()
            kind = param.DENSE
            out_kind = param.DENSE_OUT
        shape = (*leading, d, width)
        axes = (*leading_axes, "data", "model")
        variance = model.init_scale / d
        # the fan-in counts the hidden units of all experts, as of one layer, as in the authors' code
        out_variance = model.init_scale / (max(n_experts, 1) * width)
        out_shape = (*leading, width, d)
        out_axes = (*leading_axes, "model", "data")
        self.gate = param.param(rngs, shape, axes, kind, variance=variance)
        self.up = param.param(rngs, shape, axes, kind, variance=variance)
        self.down = param.param(rngs, out_shape, out_axes, out_kind, variance=out_variance)

    def __call__(self, x_ND: Float[Array, "N D"], training: bool = True) -> tuple[Float[Array, "N D"], Metrics]:
        """y_ND of normed rows, to be summed over the model axis; and no metrics."""
        return swiglu(x_ND, *self.weights()), {}

    def weights(self) -> tuple[Float[Array, "... D F"], Float[Array, "... D F"], Float[Array, "... F D"]]:
        """gate, up and down of this device, gathered along the data axis."""
        return sharding.gathered(self.gate), sharding.gathered(self.up), sharding.gathered(self.down)


class MoE(nnx.Module):
    """A mixture: a router chooses top_k of n_experts for each token, and shared experts serve every token.

    With `counts_choices`, its metrics in training have how many choices each expert got (`chosen`).
    """

    def __init__(self, model: FrozenConfigDict, rngs: nnx.Rngs, counts_choices: bool = False) -> None:
        self.model = model
        self.counts_choices = counts_choices
        d = model.d_model
        n_experts = model.n_experts
        width = model.d_expert or model.d_ff
        n_shared = model.n_shared_experts
        self.router = param.param(rngs, (d, n_experts), (None, None), param.ROUTER, variance=model.init_scale / d)
        if model.balance == "bias":
            self.router_bias = param.param(rngs, (n_experts,), (None,), param.BIAS, constant=0.0)
        else:
            self.router_bias = None
        self.experts = MLP(model, width, rngs, n_experts)
        self.shared = MLP(model, n_shared * width, rngs) if n_shared else None

    def __call__(self, x_ND: Float[Array, "N D"], training: bool = True) -> tuple[Float[Array, "N D"], Metrics]:
        """y_ND of normed rows, to be summed over the model axis, and routing.METRICS.

        Without `training` nothing is dropped, and all tokens are one group.
        """
        model = self.model
        y_ND, metrics = moe_layer(
            x_ND,
            self.router[...],
            self.experts.weights(),
            bias_E=None if self.router_bias is None else self.router_bias[...],
            top_k=model.top_k,
            normalize=model.normalize_gates,
            score_fn=model.scores,
            group_tokens=model.group_tokens if training else None,
            capacity_factor=model.capacity_factor if training else None,
            counts_choices=training and self.counts_choices,
        )
        if self.shared is not None:
            shared_ND, _ = self.shared(x_ND)
            y_ND += shared_ND
        return y_ND, metrics


class Block(nnx.Module):
    """Attention and then a dense layer or a mixture, each after a norm and added to the residual stream."""

    def __init__(self, model: FrozenConfigDict, mixture: bool, rngs: nnx.Rngs, counts_choices: bool = False) -> None:
        with_bias = model.norm == "layer"
        self.attention_norm = Norm(model.d_model, rngs, with_bias)
        self.attention = Attention(model, rngs)
        self.mlp_norm = Norm(model.d_model, rngs, with_bias)
        self.mlp = MoE(model, rngs, counts_choices) if mixture else MLP(model, model.d_ff, rngs)

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        training: bool,
        start: int | Int[Array, ""] = 0,
        cache: Cache | None = None,
        documents: Documents | None = None,
    ) -> tuple[Float[Array, "B T D"], Metrics, Cache | None]:
        """x_BTD after the block, this device's routing.METRICS of it, and the cache with the new keys and values.

        Without `training` nothing is dropped. start, cache, documents: as of Attention.
        """
        y_ND, cache = self.attention(self.attention_norm(x_BTD), start, cache, documents)
        x_BTD = _add_to_residual(x_BTD, y_ND)
        y_ND, metrics = self.mlp(self.mlp_norm(x_BTD).reshape(y_ND.shape), training)
        return _add_to_residual(x_BTD, y_ND), metrics, cache


def _add_to_residual(x_BTD: Float[Array, "B T D"], y_ND: Float[Array, "N D"]) -> Float[Array, "B T D"]:
    """x_BTD plus the sum of y_ND over the devices of the model axis."""
    return x_BTD + sharding.total(y_ND, ("model",)).reshape(x_BTD.shape)


class Transformer(nnx.Module):
    """The decoder: embedding, leading dense blocks that a mixture may have, all other blocks, a norm, the head."""

    def __init__(self, model: ConfigDict, rngs: nnx.Rngs, counts_choices: bool = False) -> None:
        """Makes the modules; the same `rngs` give the same float32 parameters on any mesh.

        Args:
          model: config.model.
          rngs: its stream `params` gives the random keys.
          counts_choices: as of MoE.
        """
        self.model = model = FrozenConfigDict(model)
        d = model.d_model
        v = model.vocab_size
        tied = model.tied_embeddings
        n_dense = model.n_dense_blocks
        # a token picks one row; a tied embedding has the head's fan-in: its logits start as small as an untied head's,
        # and each block's norm copes with inputs of any size
        kind = param.HEAD if tied else param.EMBEDDING
        fan_in = d if tied else 1
        self.embed = param.param(rngs, (v, d), (None, "data"), kind, variance=model.init_scale / fan_in)
        self.dense_blocks = _stack(model, n_dense, False, rngs, counts_choices) if n_dense else None
        self.blocks = _stack(model, model.n_blocks - n_dense, model.n_experts > 1, rngs, counts_choices)
        self.final_norm = Norm(d, rngs) if model.final_norm else None
        if tied:
            self.head = None
        else:
            self.head = param.param(rngs, (d, v), ("data", None), param.HEAD, variance=model.init_scale / d)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        training: bool,
        remat: str = "full",
        unroll: bool = False,
        start: int | Int[Array, ""] = 0,
        caches: dict[str, Cache] | None = None,
        documents: Documents | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "D V"], Metrics, dict[str, Cache]]:
        """Runs all blocks.

        Args:
          tokens_BT: this device's rows.
          training: without it nothing is dropped.
          remat, unroll: as in config.
          start: with caches, the position of the first token.
          caches: by stack, with a leading axis of layers.
          documents: of the rows, where a token sees only its own.

        Returns:
          x_BTD before the head; head_DV; routing.METRICS along an axis of the layers that have a mixture; the caches.
        """

        def run_block(
            x_BTD: Float[Array, "B T D"], layer: tuple[Block, Cache | None]
        ) -> tuple[Float[Array, "B T D"], tuple[Metrics, Cache | None]]:
            block, cache = layer
            x_BTD, metrics, cache = block(x_BTD, training, start, cache, documents)
            return x_BTD, (metrics, cache)

        vocab_size = self.model.vocab_size
        if self.head is None:
            tied_VD = sharding.gathered(self.embed)
            x_BTD = lookup(tied_VD, tokens_BT, vocab_size)
        else:
            tied_VD = None
            x_BTD = embed(self.embed, tokens_BT, vocab_size)
        new_caches: dict[str, Cache] = {}
        for stack in STACKS:
            blocks = getattr(self, stack)
            if blocks is None:
                continue
            layers = (blocks, caches[stack] if caches else None)
            x_BTD, (metrics, cache) = jax.lax.scan(with_remat(run_block, remat), x_BTD, layers, unroll=unroll)
            if cache is not None:
                new_caches[stack] = cache
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        if tied_VD is None:
            assert self.head is not None  # else the embedding is tied
            head_DV = sharding.gathered(self.head)
        else:
            head_DV = tied_VD.T
        return x_BTD, head_DV, metrics, new_caches


def _stack(model: FrozenConfigDict, n_blocks: int, mixture: bool, rngs: nnx.Rngs, counts_choices: bool) -> Block:
    """`n_blocks` equal blocks as one, whose parameters have a leading axis of layers."""

    def block(key: Array) -> Block:
        return Block(model, mixture, nnx.Rngs(params=key), counts_choices)

    stacked = nnx.vmap(block, transform_metadata={nnx.PARTITION_NAME: None})
    return stacked(jax.random.split(rngs.params(), n_blocks))


def describe(model: ConfigDict) -> dict:
    """A param.Description of every parameter of config.model, as a tree by the names of the attributes."""
    return _describe(FrozenConfigDict(model))


@functools.cache
def _describe(model: FrozenConfigDict) -> dict:
    _, state = _abstract(model)
    tree = {}
    for path, parameter in nnx.to_flat_state(state):
        *parents, name = path
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = param.description(parameter)
    return tree


def with_params(params: dict, model: ConfigDict, counts_choices: bool = False) -> Transformer:
    """The Transformer of config.model with the tree `params`, as `cast` gives it.

    Args:
      params: inside of sharding.per_device, this device's part; its modules are made for that mesh.
      model: config.model.
      counts_choices: as of MoE.
    """
    graphdef, _ = _abstract(FrozenConfigDict(model), counts_choices)
    return nnx.merge(graphdef, nnx.State(params))


def _abstract(model: FrozenConfigDict, counts_choices: bool = False) -> tuple[nnx.GraphDef, nnx.State]:
    """The Transformer's structure, and its parameters without values."""

    def make() -> Transformer:
        return Transformer(model, nnx.Rngs(params=0), counts_choices)

    return nnx.split(nnx.eval_shape(make), nnx.Param)


def cast(params: dict, model: ConfigDict) -> dict:
    """Each parameter, cast to the type in which the model computes with it."""

    def cast_one(description: param.Description, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x if description.kind.float32 else x.astype(model.dtype)

    return jax.tree.map(cast_one, describe(model), params)


def apply(
    params: dict,
    tokens_BT: Int[Array, "B T"],
    config: ConfigDict,
    training: bool,
    end_of_text: int | None = None,
) -> tuple[Float[Array, "B T D"], Float[Array, "D V"], Metrics]:
    """x_BTD before the head, head_DV, and routing.METRICS with a leading axis of the layers that have a mixture.

    Args:
      params: this device's part of init_params' tree.
      tokens_BT: this device's rows.
      config: of the run.
      training: without it nothing is dropped.
      end_of_text: the token that ends a document, where a token sees only its own document; None: it sees its row.
    """
    counts_choices = bool(config.router_health)
    # cast once, outside the blocks: else their scan would move weights in both passes, and gradients, in float32
    transformer = with_params(cast(params, config.model), config.model, counts_choices)
    documents = None if end_of_text is None else find_documents(tokens_BT, end_of_text)
    x_BTD, head_DV, metrics, _ = transformer(tokens_BT, training, config.remat, config.unroll, documents=documents)
    return x_BTD, head_DV, metrics
