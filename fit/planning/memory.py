"""The memory that training takes, on one device of a mesh or over all chips.

Read off compiled steps of the paper's recipe: 18 bytes a parameter (weight and moments of AdamW in float32, a copy in
bfloat16, gradients in float32), twice the blocks' inputs in bfloat16, for the block at work 29 bytes per token and unit
of width and 3 float32 arrays of attention scores, and what each block leaves where less than all is computed again.
Steps that jmoe.compile compiled for TPUs (widths of 512 to 2,048, 1 to 16 experts, rows of 512) take this within 6%;
with other `remat`, and on meshes with a model axis, within 15%.

On a mesh, data x expert x model, weights of experts are spread over all three axes, those of attention and dense layers
over data and model, embedding and head over data; tokens over data and expert; heads and hidden units over model.

The planner page has these functions, translated by fit/planner/formulas.py.
"""

import math
from typing import Any

from fit.aliases import Numbers

STATE = 18  # bytes of a parameter
AT_WORK, SCORES = 29, 12  # bytes of a token in the block at work: of a unit of width, of a score of attention
# By config.remat, bytes of a token that each block leaves: of a unit of width on all of the model axis and spread over
# it, of a score.
REMAT = {"full": (4, 0, 0), "dots": (5, 32, 0), "none": (34, 36, 12)}
ROW, GROUP = 512, 8192  # tokens at work at least: on each chip, and on all, which the paper's recipe routes together


def token_bytes(
    remat: tuple[float, ...], d_model: Numbers, n_blocks: Numbers, n_heads: Numbers, sequence: float, model: int
) -> Numbers:
    """Bytes that a token takes on each device of the model axis, in rows of `sequence`. remat: a value of REMAT."""
    everywhere, width, scores = remat
    of_width, of_scores = (width * n_blocks + AT_WORK) * d_model, (scores * n_blocks + SCORES) * sequence * n_heads
    return everywhere * n_blocks * d_model + (of_width + of_scores) / model


def state_bytes(experts: Numbers, blocks: Numbers, ends: Numbers, expert: int, model: int) -> Numbers:
    """Bytes of parameters, moments and gradients on a row of the data axis: a device's times `data`. experts, blocks,
    ends: parameters of experts, of embedding and head, and of all else."""
    return STATE * (experts / (expert * model) + blocks / model + ends)


def least_tokens(data: int, expert: int) -> int:
    """The fewest tokens of a step."""
    return max(ROW * data * expert, GROUP)


def device_bytes(state: Numbers, token: Numbers, n_tokens: float, data: int, expert: int) -> Numbers:
    """Bytes of a step of n_tokens on each device, by what state_bytes and token_bytes give."""
    return state / data + token * n_tokens / (data * expert)


def fewest(state: Any, token: Any, memory: float, expert: int) -> float:
    """The shortest data axis whose devices, of so many bytes, hold the smallest step; infinite where none does."""
    room = memory - ROW * token
    # less a rounding error: a model may be as large as the chips' memory
    share = 1 - 1e-12
    return math.ceil(max(state / room, (state + GROUP * token / expert) / memory) * share) if room > 0 else math.inf


def step_bytes(
    n_parameters: Numbers, d_model: Numbers, n_blocks: Numbers, n_heads: Numbers, n_tokens: float, sequence: float
) -> Numbers:
    """Bytes that a compiled step of the paper's recipe takes over all chips, n_tokens at once in rows of `sequence`."""
    token = token_bytes(REMAT["full"], d_model, n_blocks, n_heads, sequence, 1)
    return device_bytes(state_bytes(0, n_parameters, 0, 1, 1), token, n_tokens, 1, 1)
