"""The table of the decoder's weights. Initial values, sharding, casting and counting follow from it. Plain Python."""

import dataclasses
import math

from jmoe.config.schema import setting

MATRICES = "attention", "dense", "expert"  # roles of the blocks' weights that map one vector to another


@dataclasses.dataclass(frozen=True)
class Weight:
    """One array of the model; a weight of the blocks exists once for each block, stacked along a leading axis."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # the mesh axis that each axis is stored spread over, None for none
    role: str  # "embedding", "head", "attention", "dense", "expert", "router", "bias" or "norm"
    fan_in: int = 0  # initial values are random, of variance init_scale / fan_in; 0: they all are `constant`
    constant: float = 0.0
    float32: bool = False  # computes in float32; all others are cast to config.model.dtype before use

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def table(model) -> dict:
    """Name -> Weight of config.model, those of a block under its stack's name; random keys are drawn in this order.

    The fan-ins are those of the paper's authors' code. A tied embedding has the head's fan-in: its logits start as
    small as an untied head's, and each block's norm copes with inputs of any size.
    """
    d, v = model.d_model, model.vocab_size
    tied = setting(model, "tied_embeddings")
    role, fan_in = ("head", d) if tied else ("embedding", 1)  # a token picks one row
    weights = {"embed": Weight((v, d), (None, "data"), role, fan_in=fan_in)}
    weights |= {stack: _block(model, stack == "blocks" and model.n_experts > 1) for stack in stacks(model)}
    if setting(model, "final_norm"):
        weights["final_norm"] = _norm(d)
    return weights if tied else weights | {"head": Weight((d, v), ("data", None), "head", fan_in=d)}


def heads(model) -> tuple[int, int, int]:
    """(heads of queries, heads of keys and values, size of a head) of config.model."""
    head_dim = setting(model, "head_dim") or model.d_model // model.n_heads
    return model.n_heads, setting(model, "n_kv_heads") or model.n_heads, head_dim


def _attention(model) -> dict[str, Weight]:
    """One weight makes queries, keys and values where they have equally many heads, else two do."""
    d, (h, p, k) = model.d_model, heads(model)
    into = lambda n, heads: Weight((d, n, heads, k), ("data", None, "model", None), "attention", fan_in=d)
    weights = {"qkv": into(3, h)} if p == h else {"q": into(1, h), "kv": into(2, p)}
    weights["out"] = Weight((h, k, d), ("model", None, "data"), "attention", fan_in=h * k)
    if (qk_norm := setting(model, "qk_norm")) == "head":
        weights |= {"q_norm": _norm(k), "k_norm": _norm(k)}
    elif qk_norm == "projection":
        each = lambda heads: dataclasses.replace(_norm(k), shape=(heads, k), axes=("model", None))
        weights |= {"q_norm": each(h), "k_norm": each(p)}
    return weights


def stacks(model) -> dict[str, int]:
    """The stacks of equal blocks in the order in which they run, and how many blocks each has: the leading dense blocks
    that a mixture may have, and the others."""
    n_dense = setting(model, "n_dense_blocks")
    return ({"dense_blocks": n_dense} if n_dense else {}) | {"blocks": model.n_blocks - n_dense}


def _block(model, mixture: bool) -> dict[str, Weight]:
    d, e = model.d_model, model.n_experts
    f = setting(model, "d_expert") or model.d_ff if mixture else model.d_ff
    weights = {"attention_norm": _norm(d)} | _attention(model) | {"mlp_norm": _norm(d)}
    if setting(model, "norm") == "layer":
        weights |= {name: _norm(d, constant=0.0) for name in ("attention_norm_bias", "mlp_norm_bias")}
    if not mixture:
        return weights | _swiglu(d, f)
    weights["router"] = Weight((d, e), (None, None), "router", fan_in=d, float32=True)
    if setting(model, "balance") == "bias":
        weights["router_bias"] = Weight((e,), (None,), "bias", constant=0.0, float32=True)
    weights |= _swiglu(d, f, e)
    if n_shared := setting(model, "n_shared_experts"):
        weights |= {f"shared_{name}": weight for name, weight in _swiglu(d, n_shared * f).items()}
    return weights


def _swiglu(d: int, f: int, n_experts: int = 0) -> dict[str, Weight]:
    """SwiGLU's weights, of a dense layer or of a layer's `n_experts`."""
    role, lead, lead_axes = ("expert", (n_experts,), ("expert",)) if n_experts else ("dense", (), ())
    into = Weight((*lead, d, f), (*lead_axes, "data", "model"), role, fan_in=d)
    # its fan-in counts the hidden units of all experts, as of one layer
    down = Weight((*lead, f, d), (*lead_axes, "model", "data"), role, fan_in=max(n_experts, 1) * f)
    return {"gate": into, "up": into, "down": down}


def _norm(d: int, constant: float = 1.0) -> Weight:
    return Weight((d,), (None,), "norm", constant=constant, float32=True)


def each(model):
    """(how many there are, Weight) of every weight in the table."""
    for name, weight in table(model).items():
        if name in stacks(model):
            yield from ((stacks(model)[name], one) for one in weight.values())
        else:
            yield 1, weight
