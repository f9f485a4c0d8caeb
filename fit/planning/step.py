"""What a compiled step takes and sends on one device of a mesh, for any shape of model: read off compiled steps.

memory.py has the same for the paper's recipe, where attention keeps scores and a token uses one expert.
"""

import dataclasses
import functools

from fit.aliases import Json
from fit.planning import memory

NARROW, WIDE = 2, 4  # bytes of a bfloat16 and of a float32
PASSES = {"full": 3, "dots": 3, "none": 2}  # how often tokens travel: forward, perhaps again, backward
GATHERS = {"full": 3, "dots": 3, "none": 2}  # how often a microbatch gathers each weight


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a model (shape: fields of config.model) in rows of `sequence` on a mesh (data, expert, model).

    remat: as config.remat. flash: whether attention keeps no scores. Counts of parameters are of all blocks together.
    """

    shape: Json
    sequence: int
    mesh: tuple[int, int, int]
    remat: str
    flash: bool

    @property
    def d_model(self) -> int:
        """Units of width."""
        return self.shape["d_model"]

    @property
    def n_mixtures(self) -> int:
        """How many blocks have a mixture."""
        if self.shape["n_experts"] == 1:
            return 0
        return self.shape["n_blocks"] - self.shape.get("n_dense_blocks", 0)

    @property
    def d_expert(self) -> int:
        """Hidden units of an expert."""
        return self.shape.get("d_expert") or self.shape["d_ff"]

    @property
    def top_k(self) -> int:
        """Experts that a token chooses."""
        return self.shape.get("top_k", 1)

    @functools.cached_property
    def head_units(self) -> tuple[int, int]:
        """Units of all heads of queries, and of those of keys."""
        heads = self.shape["n_heads"]
        size = self.shape.get("head_dim") or self.d_model // heads
        return heads * size, (self.shape.get("n_kv_heads") or heads) * size

    @property
    def experts(self) -> int:
        """Parameters of the experts that tokens choose from."""
        return 3 * self.d_model * self.d_expert * self.shape["n_experts"] * self.n_mixtures

    @functools.cached_property
    def others(self) -> int:
        """Parameters of blocks but for these experts."""
        queries, keys = self.head_units
        shared = 3 * self.d_model * self.d_expert * self.shape.get("n_shared_experts", 0)
        n_blocks = self.shape["n_blocks"]
        dense = 3 * self.d_model * self.shape["d_ff"] * (n_blocks - self.n_mixtures)
        return 2 * self.d_model * (queries + keys) * n_blocks + dense + shared * self.n_mixtures

    @property
    def ends(self) -> int:
        """Parameters of embedding and head."""
        return self.shape["vocab_size"] * self.d_model * (1 if self.shape.get("tied_embeddings") else 2)

    def least_bytes(self) -> float:
        """Bytes of a device without any token: parameters, moments and gradients, and the weights at work."""
        data, expert, model = self.mesh
        state = memory.state_bytes(self.experts, self.others, self.ends, expert, model) / data
        n_blocks = self.shape["n_blocks"]
        block = self.others / n_blocks / model + self.experts / max(self.n_mixtures, 1) / (expert * model)
        gathered = 0.0
        if data > 1:
            gathered = (NARROW + WIDE) * max(block, self.ends / 2)
        return state + gathered

    def token_bytes(self) -> float:
        """Bytes that a token takes on each device of its row of the mesh."""
        _, _, model = self.mesh
        queries, keys = self.head_units
        hidden = self.d_expert * (self.top_k + self.shape.get("n_shared_experts", 0))
        if not self.n_mixtures:
            hidden = self.shape["d_ff"]
        everywhere, width, scores = memory.REMAT[self.remat]
        n_blocks, d = self.shape["n_blocks"], self.d_model
        # what the paper's shape has in units of width: 4 d of queries, keys and values, 3 x 3 d of the layer
        wide = (queries + 2 * keys + queries + 3 * hidden) / (13 * d)
        at_work = memory.AT_WORK * d * max(wide, 1)
        left = width * n_blocks * d * wide
        of_scores = 0.0
        if not self.flash:
            of_scores = (scores * n_blocks + memory.SCORES) * self.sequence * self.shape["n_heads"]
        dispatched = 2 * NARROW * self.top_k * d if self.n_mixtures else 0
        return everywhere * n_blocks * d + (at_work + left + of_scores) / model + dispatched

    def device_bytes(self, at_once: int, several: bool) -> float:
        """Bytes of a device with `at_once` tokens on the mesh; several: whether they are a part of a batch."""
        data, expert, _ = self.mesh
        return self.least_bytes() + self.token_bytes() * at_once / (data * expert)

    def sent_bytes(self, batch: int, at_once: int) -> float:
        """Bytes that a device sends in a step of `batch` tokens, `at_once` of them at a time."""
        data, expert, model = self.mesh
        tokens, d, n_blocks = batch / (data * expert), self.d_model, self.shape["n_blocks"]
        stored = self.experts / (expert * model) + self.others / model + self.ends
        weights = (GATHERS[self.remat] * NARROW + WIDE) * stored * _leaving(data) * batch / at_once
        copies = 2 * WIDE * (self.others / model + self.ends) / data * _leaving(expert)
        travels = 2 * PASSES[self.remat] * NARROW * self.top_k * d * self.n_mixtures * tokens * _leaving(expert)
        sums = 4 * PASSES[self.remat] * NARROW * d * n_blocks * tokens * _leaving(model)
        return weights + copies + travels + sums


def parameters(shape: Json) -> int:
    """Parameters of a model, without norms and routers."""
    step = Step(shape, 1, (1, 1, 1), "full", True)
    return step.experts + step.others + step.ends


def _leaving(n_devices: int) -> float:
    """The share of what n_devices exchange that leaves a device."""
    return (n_devices - 1) / n_devices
