"""The mixture with a capacity: every expert has a fixed number of slots, and drops what does not fit.

An expert serves the choices of a group in the order of J, first choices before second ones, and drops those beyond its
capacity. A dropped choice adds nothing to its token, which the residual carries on (Fedus et al. 2021).

Axes (jmoe/model/__init__.py): C slots of an expert, D, E, F, G, I units of any kind, J choices of a group, L = E C
slots, N, S, X.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from jmoe.model import permute, routing
from jmoe.model.experts import swiglu
from jmoe.model.permute import UNASSIGNED, ExpertWeights, Slots


def moe_with_capacity(
    x_GSD: Float[Array, "1 S D"],
    gate_GJ: Float[Array, "1 J"],
    slots: Slots,
    weights: ExpertWeights,
) -> Float[Array, "1 S D"]:
    """The sum of each token's chosen experts, weighted by their gates.

    Args:
      x_GSD: all tokens of this device, as one group.
      gate_GJ: of each choice.
      slots: of that group, from assign_slots_of_groups.
      weights: of this device's experts.
    """
    rows_GLD, row_gates_GL1 = permute.dispatch(x_GSD, gate_GJ, slots)
    outputs_GLD = _experts(rows_GLD, row_gates_GL1, weights)
    return permute.combine(outputs_GLD, slots)


def assign_slots_of_groups(
    expert_GJ: Int[Array, "G J"], n_tokens: int, n_experts: int, capacity: int
) -> tuple[Slots, Float[Array, " G"]]:
    """Assigns slots in each group, and numbers choices and slots as those of one group of all `n_tokens` tokens.

    In the one group the choices are in the order of `permute.flatten_groups`, and the slots in the order [E, G, C].

    Args:
      expert_GJ: the expert of each choice.
      n_tokens: of all groups together.
      n_experts: E.
      capacity: C, slots of an expert in each group.

    Returns:
      Slots of that one group, where an expert's slots of all groups lie together;
      drop_rate_G, the share of choices dropped in each group.
    """
    n_groups = len(expert_GJ)
    top_k = expert_GJ.size // n_tokens
    group_tokens = n_tokens // n_groups
    choice_GL, slot_GJ = assign_slots(expert_GJ, n_experts, capacity)
    is_empty_GL = choice_GL == UNASSIGNED
    is_dropped_GJ = slot_GJ == UNASSIGNED
    drop_rate_G = jnp.mean(is_dropped_GJ, axis=-1, dtype=jnp.float32)

    # choice [turn, token] of a group is choice [turn, group, token] of all; turn 0 has the first choices
    group_G1 = jnp.arange(n_groups)[:, None]
    turn_GL, token_GL = jnp.divmod(choice_GL, group_tokens)
    choice_of_all_GL = turn_GL * n_tokens + group_G1 * group_tokens + token_GL
    choice_of_all_GL = jnp.where(is_empty_GL, UNASSIGNED, choice_of_all_GL)

    # slot [expert, place] of a group is slot [expert, group, place] of all
    slot_expert_GJ, place_GJ = jnp.divmod(slot_GJ, capacity)
    slot_of_all_GJ = (slot_expert_GJ * n_groups + group_G1) * capacity + place_GJ
    slot_of_all_GJ = jnp.where(is_dropped_GJ, UNASSIGNED, slot_of_all_GJ)

    choice_GEC = choice_of_all_GL.reshape(n_groups, n_experts, capacity)
    choice_of_slot_1L = choice_GEC.swapaxes(0, 1).reshape(1, -1)
    slot_of_choice_1J = permute.flatten_groups(slot_of_all_GJ, top_k)
    return permute.make_slots(choice_of_slot_1L, slot_of_choice_1J, n_tokens), drop_rate_G


def assign_slots(
    expert_GJ: Int[Array, "G J"], n_experts: int, capacity: int, start: int | Int[Array, ""] = 0
) -> tuple[Int[Array, "G L"], Int[Array, "G J"]]:
    """Assigns slots by a sort: each expert serves its choices in their order, from number `start` on, until it is full.

    Args:
      expert_GJ: the expert of each choice; `n_experts` where the choice is of no expert.
      n_experts: E.
      capacity: C. Slot e C + c is slot c of expert e.
      start: how many choices of each expert to pass over.

    Returns:
      choice_of_slot_GL: the choice in each slot, UNASSIGNED where the slot is empty;
      slot_of_choice_GJ: the slot of each choice, UNASSIGNED where the choice is dropped.
    """
    return slots_of_sorted(routing.sort_by_expert(expert_GJ, n_experts), expert_GJ, capacity, start)


def slots_of_sorted(
    choices: routing.SortedChoices, expert_GJ: Int[Array, "G J"], capacity: int, start: int | Int[Array, ""] = 0
) -> tuple[Int[Array, "G L"], Int[Array, "G J"]]:
    """assign_slots of choices that are sorted already: those of expert_GJ."""
    n_choices = expert_GJ.shape[1]
    n_experts = choices.count_GE.shape[1]
    place_GJ = choices.place_GJ - start
    count_GE = choices.count_GE - start
    first_GE = choices.first_GE + start
    fits_GJ = (expert_GJ < n_experts) & (place_GJ >= 0) & (place_GJ < capacity)
    slot_of_choice_GJ = jnp.where(fits_GJ, expert_GJ * capacity + place_GJ, UNASSIGNED)

    place_C = jnp.arange(capacity)
    # where the choice in each slot stands in order_GJ; of an empty slot it is any, which is_filled_GL leaves out
    sorted_GEC = jnp.minimum(first_GE[:, :, None] + place_C, n_choices - 1)
    choice_GL = jnp.take_along_axis(choices.order_GJ, sorted_GEC.reshape(len(expert_GJ), -1), axis=-1)
    is_filled_GL = (place_C < count_GE[:, :, None]).reshape(choice_GL.shape)
    return jnp.where(is_filled_GL, choice_GL, UNASSIGNED), slot_of_choice_GJ


def _experts(
    rows_GLD: Float[Array, "1 L D"], row_gates_GL1: Float[Array, "1 L 1"], weights: ExpertWeights
) -> Float[Array, "1 L D"]:
    """Passes every slot through its expert, which may be on another device of the expert axis.

    Within this function E are the experts of this device, and N the slots of one expert that come from each device.
    """
    n_local_experts = len(weights[0])
    n_devices = jax.lax.axis_size("expert")

    def to_experts(a_GLI: Num[Array, "1 L I"]) -> Num[Array, "E X N I"]:
        """Sends slots to the devices of their experts."""
        received_XENI = permute.exchange(a_GLI).reshape(n_devices, n_local_experts, -1, a_GLI.shape[2])
        return received_XENI.swapaxes(0, 1)

    def merge_devices(a_EXNI: Num[Array, "E X N I"]) -> Num[Array, "E N I"]:
        """The slots of each expert, X N from all devices together."""
        return a_EXNI.reshape(n_local_experts, -1, a_EXNI.shape[3])

    rows_EXND = to_experts(rows_GLD)
    gates_EXN1 = to_experts(row_gates_GL1)
    outputs_END = swiglu(merge_devices(rows_EXND), *weights, merge_devices(gates_EXN1))
    outputs_XEND = outputs_END.reshape(rows_EXND.shape).swapaxes(0, 1)
    return permute.exchange(outputs_XEND.reshape(rows_GLD.shape))
