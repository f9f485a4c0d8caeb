"""The memory that training takes, on one device of a mesh or over all chips.

The constants are those of fit/model/step_counts.py for a dense block of the paper's recipe, whose width tells all else.
Steps that jmoe.compile compiled for TPUs (widths of 512 to 2,048, 1 to 16 experts, rows of 512, several `remat` and
meshes) take this within 15%.

A mesh has the axes data, expert and model. It spreads

  weights of experts                        over all three
  weights of attention and dense layers     over data and model
  weights of embedding and head             over data
  tokens                                    over data and expert
  heads and hidden units                    over model

The planner page computes the same in counts.js. Numbers of models may be arrays, which broadcast together.
"""

import math
from typing import Any

from fit.aliases import Numbers
from fit.model import layout, step_counts

STATE = step_counts.KEPT  # bytes of a parameter
# bytes of a token in the block at work, for each unit of width: 2 d of queries and keys, 3 d hidden units
AT_WORK = step_counts.WIDTH_AT_WORK + 2 * step_counts.HEADS_AT_WORK + 3 * step_counts.HIDDEN_AT_WORK
SCORES = step_counts.SCORES_AT_WORK  # the same for each score of attention
# By config.remat, bytes of a token that each block leaves: of a unit of width on all of the model axis and spread over
# it, of a score.
REMAT = {
    remat: (step_counts.LEFT_WHOLE[remat], step_counts.LEFT_SPREAD[remat], step_counts.LEFT_SCORES[remat])
    for remat in layout.REMATS
}
ROW = 512  # tokens at work on each chip, at least
GROUP = 8192  # tokens at work on all chips, at least: those that the paper's recipe routes together


def token_bytes(
    remat: tuple[float, ...], d_model: Numbers, n_blocks: Numbers, n_heads: Numbers, sequence: float, model: int
) -> Numbers:
    """Bytes that a token takes on each device of the model axis.

    Args:
      remat: a value of REMAT.
      d_model, n_blocks, n_heads: of the model; they broadcast together.
      sequence: tokens in a row.
      model: devices of the model axis.
    """
    whole_width, spread_width, scores = remat
    of_width = (spread_width * n_blocks + AT_WORK) * d_model
    of_scores = (scores * n_blocks + SCORES) * sequence * n_heads
    return whole_width * n_blocks * d_model + (of_width + of_scores) / model


def state_bytes(experts: Numbers, blocks: Numbers, embedding_and_head: Numbers, expert: int, model: int) -> Numbers:
    """Bytes of parameters, moments and gradients on a row of the data axis: `data` times those of a device.

    Args:
      experts, embedding_and_head, blocks: parameters of the experts, of embedding and head, and of all else.
      expert, model: devices of these axes.
    """
    return STATE * (experts / (expert * model) + blocks / model + embedding_and_head)


def least_tokens(data: int, expert: int) -> int:
    """The fewest tokens of a step on a mesh."""
    return max(ROW * data * expert, GROUP)


def device_bytes(state: Numbers, token: Numbers, n_tokens: float, data: int, expert: int) -> Numbers:
    """Bytes of a step of n_tokens on each device.

    Args:
      state: from state_bytes.
      token: from token_bytes.
      n_tokens: at once on the whole mesh.
      data, expert: devices of these axes.
    """
    return state / data + token * n_tokens / (data * expert)


def fewest(state: Any, token: Any, memory: float, expert: int) -> float:
    """The shortest data axis whose devices hold the smallest step; infinite where none does.

    Args:
      state, token: as for device_bytes.
      memory: bytes of a device.
      expert: devices of the expert axis.
    """
    room = memory - ROW * token
    if room <= 0:
        return math.inf
    n_devices = max(state / room, (state + GROUP * token / expert) / memory)
    # less a rounding error: a model may be exactly as large as the chips' memory
    return math.ceil(n_devices * (1 - 1e-12))


def step_bytes(
    n_parameters: Numbers, d_model: Numbers, n_blocks: Numbers, n_heads: Numbers, n_tokens: float, sequence: float
) -> Numbers:
    """Bytes over all chips of a compiled step of the paper's recipe, with n_tokens at once in rows of `sequence`."""
    token = token_bytes(REMAT["full"], d_model, n_blocks, n_heads, sequence, 1)
    return device_bytes(state_bytes(0, n_parameters, 0, 1, 1), token, n_tokens, 1, 1)
