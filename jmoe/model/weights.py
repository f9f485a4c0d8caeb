"""The table of the decoder's weights. Initial values, sharding, casting and counting follow from it. Plain Python."""

import math
from typing import NamedTuple


class Weight(NamedTuple):
    """One array of the model; a weight of the blocks exists once for each block, stacked along a leading axis."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # the mesh axis that each axis rests spread over, None for none
    role: str  # "embedding", "head", "attention", "dense", "expert", "router" or "norm"
    fan_in: int = 0  # initial values are random, of variance init_scale / fan_in; 0: they all are `constant`
    constant: float = 0.0
    float32: bool = False  # computes in float32; all others are cast to config.model.dtype where they are used

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def size_on_device(self, mesh: dict[str, int]) -> int:
        """Numbers that each device keeps, on a mesh of these sizes by axis."""
        return self.size // math.prod(mesh[axis] for axis in self.axes if axis)


def table(model) -> dict:
    """Name -> Weight of config.model, those of a block under "blocks"; random keys are drawn in this order.

    The fan-ins are those of the paper's authors' code.
    """
    d, v = model.d_model, model.vocab_size
    weights = {"embed": Weight((v, d), (None, "data"), "embedding", fan_in=1)}  # a token picks one row
    weights["blocks"] = _block(model)
    if model.get("final_norm", True):
        weights["final_norm"] = _norm(d)
    return weights | {"head": Weight((d, v), ("data", None), "head", fan_in=d)}


def _block(model) -> dict[str, Weight]:
    d, f, e, h = model.d_model, model.d_ff, model.n_experts, model.n_heads
    weights = {
        "attention_norm": _norm(d),
        "qkv": Weight((d, 3, h, d // h), ("data", None, "model", None), "attention", fan_in=d),
        "out": Weight((h, d // h, d), ("model", None, "data"), "attention", fan_in=d),
        "mlp_norm": _norm(d),
    }
    if model.get("norm", "rms") == "layer":
        weights |= {name: _norm(d, constant=0.0) for name in ("attention_norm_bias", "mlp_norm_bias")}
    role, lead, lead_axes = ("expert", (e,), ("expert",)) if e > 1 else ("dense", (), ())
    if e > 1:
        weights["router"] = Weight((d, e), (None, None), "router", fan_in=d, float32=True)
    into = Weight((*lead, d, f), (*lead_axes, "data", "model"), role, fan_in=d)
    # the experts' outputs count as one layer's
    down = Weight((*lead, f, d), (*lead_axes, "model", "data"), role, fan_in=e * f)
    return weights | {"gate": into, "up": into, "down": down}


def _norm(d: int, constant: float = 1.0) -> Weight:
    return Weight((d,), (None,), "norm", constant=constant, float32=True)


def each(model):
    """(how many there are, Weight) of every weight in the table."""
    for name, weight in table(model).items():
        if name == "blocks":
            yield from ((model.n_blocks, one) for one in weight.values())
        else:
            yield 1, weight
