"""What a compiled step takes and sends on one device of a mesh, for any shape of model: read off compiled steps.

memory.py has the same for the paper's recipe, where attention keeps scores and a token uses one expert.
"""

import dataclasses
import functools

from fit.aliases import Json
from fit.planning import memory

BF16 = 2  # bytes of a bfloat16
FP32 = 4  # bytes of a float32
STATE = 16  # bytes of a parameter: weight, two moments, gradient
ACCUMULATED = 6  # where a batch comes in parts, the sum of its gradients and a copy of the weight in bfloat16
LOGITS = 2**26  # bytes of the logits that the loss makes at a time, at least (jmoe/model/loss.py)
PASSES = {"full": 3, "dots": 3, "none": 2}  # how often tokens travel: forward, perhaps again, backward
GATHERS = {"full": 3, "dots": 3, "none": 2}  # how often a microbatch gathers each weight


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a model on a mesh. Counts of parameters are of all blocks together.

    Attributes:
      shape: fields of config.model.
      sequence: tokens in a row.
      mesh: devices of the axes (data, expert, model).
      remat: as config.remat.
      flash: whether attention keeps no scores.
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
        n_heads = self.shape["n_heads"]
        head_dim = self.shape.get("head_dim") or self.d_model // n_heads
        return n_heads * head_dim, (self.shape.get("n_kv_heads") or n_heads) * head_dim

    @property
    def experts(self) -> int:
        """Parameters of the experts that tokens choose from."""
        return 3 * self.d_model * self.d_expert * self.shape["n_experts"] * self.n_mixtures

    @functools.cached_property
    def others(self) -> int:
        """Parameters of blocks but for these experts."""
        queries, keys = self.head_units
        n_blocks = self.shape["n_blocks"]
        attention = 2 * self.d_model * (queries + keys) * n_blocks
        dense_layers = 3 * self.d_model * self.shape["d_ff"] * (n_blocks - self.n_mixtures)
        shared_experts = 3 * self.d_model * self.d_expert * self.shape.get("n_shared_experts", 0) * self.n_mixtures
        return attention + dense_layers + shared_experts

    @property
    def embedding_and_head(self) -> int:
        """Parameters of embedding and head."""
        return self.shape["vocab_size"] * self.d_model * (1 if self.shape.get("tied_embeddings") else 2)

    @functools.cached_property
    def stored(self) -> float:
        """Parameters whose weights, moments and gradients a device keeps."""
        data, expert, model = self.mesh
        return (self.experts / (expert * model) + self.others / model + self.embedding_and_head) / data

    @functools.cached_property
    def gathered(self) -> tuple[float, float]:
        """(parameters of a block, of the head) that a device gathers to work with them."""
        _, expert, model = self.mesh
        block = self.others / self.shape["n_blocks"] / model
        block += self.experts / max(self.n_mixtures, 1) / (expert * model)
        return block, self.shape["vocab_size"] * self.d_model

    @functools.cached_property
    def token_bytes(self) -> tuple[float, float]:
        """(bytes that blocks keep, bytes of the block at work) of a token on each device of its row of the mesh."""
        _, _, model = self.mesh
        queries, keys = self.head_units
        hidden = self.shape["d_ff"]
        if self.n_mixtures:
            hidden = self.d_expert * (self.top_k + self.shape.get("n_shared_experts", 0))
        whole_width, spread_width, scores = memory.REMAT[self.remat]
        n_blocks = self.shape["n_blocks"]
        d_model = self.d_model
        # the paper's block has 13 d units of queries, keys, values, their sum and the layer: more or fewer take as much
        relative_units = (2 * queries + 2 * keys + 3 * hidden) / (13 * d_model)
        kept = spread_width * n_blocks * d_model * relative_units
        at_work = memory.AT_WORK * d_model * max(relative_units, 1)
        if not self.flash:
            n_scores = self.sequence * self.shape["n_heads"]
            kept += scores * n_blocks * n_scores
            at_work += memory.SCORES * n_scores
        dispatched = 2 * BF16 * self.top_k * d_model if self.n_mixtures else 0
        return whole_width * n_blocks * d_model + kept / model, at_work / model + dispatched

    def device_bytes(self, tokens_at_once: int, in_parts: bool) -> float:
        """Memory of a device in a step.

        Args:
          tokens_at_once: on the whole mesh.
          in_parts: whether these are a part of a batch, so that gradients are summed over parts.

        Returns:
          Bytes.
        """
        data, expert, _ = self.mesh
        tokens = tokens_at_once / (data * expert)
        kept, at_work = self.token_bytes
        block, head = self.gathered
        vocab_size = self.shape["vocab_size"]
        rows_of_logits = min(tokens, max(LOGITS / (FP32 * vocab_size), 2 * self.d_model))
        in_block = at_work * tokens + (BF16 + FP32) * block
        in_loss = FP32 * rows_of_logits * vocab_size + (BF16 + FP32) * head
        state = STATE + ACCUMULATED if in_parts else STATE
        return state * self.stored + kept * tokens + max(in_block, in_loss)

    def sent_bytes(self, batch_tokens: int, tokens_at_once: int) -> float:
        """Bytes that a device sends in a step of `batch_tokens`, `tokens_at_once` of them at a time."""
        data, expert, model = self.mesh
        tokens = batch_tokens / (data * expert)
        d_model = self.d_model
        passes = PASSES[self.remat]
        n_gathered = self.stored * data
        bytes_of_a_weight = GATHERS[self.remat] * BF16 + FP32
        weights = bytes_of_a_weight * n_gathered * _leaving(data) * batch_tokens / tokens_at_once
        copies = 2 * FP32 * (self.others / model + self.embedding_and_head) / data * _leaving(expert)
        all_to_all = 2 * passes * BF16 * self.top_k * d_model * self.n_mixtures * tokens * _leaving(expert)
        sums = 4 * passes * BF16 * d_model * self.shape["n_blocks"] * tokens * _leaving(model)
        return weights + copies + all_to_all + sums


def parameters(shape: Json) -> int:
    """Parameters of a model, without norms and routers. shape: fields of config.model."""
    step = Step(shape, 1, (1, 1, 1), "full", True)
    return step.experts + step.others + step.embedding_and_head


def _leaving(n_devices: int) -> float:
    """The share of what n_devices exchange that leaves a device."""
    return (n_devices - 1) / n_devices
