"""What a compiled step takes and sends on one device of a mesh, for any shape of model: read off compiled steps.

memory.py has the same for the paper's recipe, where attention keeps scores and a token uses one expert.
"""

import dataclasses
import functools

from fit.aliases import Json
from fit.planning import memory

NARROW, WIDE = 2, 4  # bytes of a bfloat16 and of a float32
# bytes of a parameter: weight, moments, gradient; where a batch comes in parts, their sum and a copy in bfloat16
STATE, SUMMED = 16, 6
LOGITS = 2**26  # bytes of the logits that the loss makes at a time, at least (jmoe/model/loss.py)
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

    @functools.cached_property
    def stored(self) -> float:
        """Parameters whose weights, moments and gradients a device keeps."""
        data, expert, model = self.mesh
        return (self.experts / (expert * model) + self.others / model + self.ends) / data

    @functools.cached_property
    def at_work(self) -> tuple[float, float]:
        """(parameters of a block, of the head) that a device gathers to work with them."""
        _, expert, model = self.mesh
        block = self.others / self.shape["n_blocks"] / model
        block += self.experts / max(self.n_mixtures, 1) / (expert * model)
        return block, self.shape["vocab_size"] * self.d_model

    @functools.cached_property
    def token_bytes(self) -> tuple[float, float]:
        """Bytes of a token on each device of its row of the mesh: (that blocks leave, of the block at work)."""
        _, _, model = self.mesh
        queries, keys = self.head_units
        hidden = self.shape["d_ff"]
        if self.n_mixtures:
            hidden = self.d_expert * (self.top_k + self.shape.get("n_shared_experts", 0))
        everywhere, width, scores = memory.REMAT[self.remat]
        n_blocks, d = self.shape["n_blocks"], self.d_model
        # the paper's block has 13 d units of queries, keys, values, their sum and the layer: more or fewer take as much
        wide = (2 * queries + 2 * keys + 3 * hidden) / (13 * d)
        left, at_work = width * n_blocks * d * wide, memory.AT_WORK * d * max(wide, 1)
        if not self.flash:
            each = self.sequence * self.shape["n_heads"]
            left += scores * n_blocks * each
            at_work += memory.SCORES * each
        dispatched = 2 * NARROW * self.top_k * d if self.n_mixtures else 0
        return everywhere * n_blocks * d + left / model, at_work / model + dispatched

    def device_bytes(self, at_once: int, several: bool) -> float:
        """Bytes of a device with `at_once` tokens on the mesh; several: whether they are a part of a batch."""
        data, expert, _ = self.mesh
        tokens = at_once / (data * expert)
        left, at_work = self.token_bytes
        block, head = self.at_work
        rows = min(tokens, max(LOGITS / (WIDE * self.shape["vocab_size"]), 2 * self.d_model))
        in_block = at_work * tokens + (NARROW + WIDE) * block
        in_loss = WIDE * rows * self.shape["vocab_size"] + (NARROW + WIDE) * head
        state = STATE + SUMMED if several else STATE
        return state * self.stored + left * tokens + max(in_block, in_loss)

    def sent_bytes(self, batch: int, at_once: int) -> float:
        """Bytes that a device sends in a step of `batch` tokens, `at_once` of them at a time."""
        data, expert, model = self.mesh
        tokens, d, n_blocks = batch / (data * expert), self.d_model, self.shape["n_blocks"]
        gathered = self.stored * data
        weights = (GATHERS[self.remat] * NARROW + WIDE) * gathered * _leaving(data) * batch / at_once
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
