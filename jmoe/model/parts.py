"""A mixture of several choices a token, all experts on this device: in parts of as many rows as there are tokens.

Axes (jmoe/model/__init__.py): D, E experts, those of a part too, F, G, J, L, N, Z parts, and R, here the slots of an
expert in all groups.
"""

import functools
import math

import jax
import jax.numpy as jnp

from jmoe.model import rows, sharding


def mixture(x_GSD, gate_GJ, choice_of_slot_GL, slot_of_choice_GJ, weights):
    """y_ND of several choices a token, all experts on this device, with as many rows at once as there are tokens.

    So the arrays between two moves of rows take as much memory as in a dense layer. The moved rows are not kept: the
    backward pass moves them again.
    """
    (n_groups, n_tokens, d_model), n_choices = x_GSD.shape, gate_GJ.shape[1]
    n_experts, top_k = len(weights[0]), n_choices // n_tokens
    n_slots = choice_of_slot_GL.shape[1] // n_experts  # of an expert in a group
    # an expert's slots R of all groups lie together; tokens and slots are numbered over all groups
    by_expert = lambda a_GL: a_GL.reshape(n_groups, n_experts, n_slots).swapaxes(0, 1).reshape(n_experts, -1)
    group_G1 = jnp.arange(n_groups)[:, None]
    empty_GL = choice_of_slot_GL == n_choices
    token_GL = jnp.where(empty_GL, n_groups * n_tokens, choice_of_slot_GL % n_tokens + group_G1 * n_tokens)
    expert_GJ, slot_GJ = jnp.divmod(slot_of_choice_GJ, n_slots)  # past the last expert where dropped
    slot_GJ += (expert_GJ * n_groups + group_G1) * n_slots
    slot_J = slot_GJ.reshape(n_groups, top_k, n_tokens).swapaxes(0, 1).reshape(-1)
    gate_GL = rows.move(gate_GJ[:, :, None], choice_of_slot_GL, slot_of_choice_GJ)[:, :, 0].astype(x_GSD.dtype)
    x_ND, gate_ER = (sharding.vary(a, "model") for a in (x_GSD.reshape(-1, d_model), by_expert(gate_GL)))
    return _parts(x_ND, gate_ER, weights, by_expert(token_GL), slot_J, top_k)


def _by_part(top_k: int, *arrays):
    """Each array [E, ...] split into gcd(E, top_k) parts."""
    part = lambda a: a.reshape(math.gcd(len(a), top_k), -1, *a.shape[1:])
    return jax.tree.map(part, arrays)


def _tokens(x_ND, token_ER):
    return rows.taken(x_ND[None], token_ER.reshape(1, -1)).reshape(*token_ER.shape, -1)


def _hidden(both_ERF):
    """SwiGLU's hidden units from the products with gate and up, which lie side by side in one array."""
    gate_ERF, up_ERF = jnp.split(both_ERF, 2, axis=-1)
    return jax.nn.silu(gate_ERF) * up_ERF


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _parts(x_ND, gate_ER, weights, token_ER, slot_J, top_k: int):
    """y_ND: passes the rows of token_ER through their experts and sums each token's slots. The gates scale the hidden
    units, which are narrower than the rows."""
    return _parts_forward(x_ND, gate_ER, weights, token_ER, slot_J, top_k)[0]


def _parts_forward(x_ND, gate_ER, weights, token_ER, slot_J, top_k):
    def one_part(args):
        token_ER, gate_ER, (gate_EDF, up_EDF, down_EFD) = args
        both_ERF = _tokens(x_ND, token_ER) @ jnp.concatenate([gate_EDF, up_EDF], axis=-1)
        return (_hidden(both_ERF) * gate_ER[:, :, None]) @ down_EFD, both_ERF

    slots_ZERD, both_ZERF = jax.lax.map(one_part, _by_part(top_k, token_ER, gate_ER, weights))
    y_GND = rows.sum_of_rows(slots_ZERD.reshape(1, -1, x_ND.shape[1]), slot_J[None], top_k)
    return y_GND[0], (x_ND, gate_ER, weights, token_ER, slot_J, both_ZERF)


def _parts_backward(top_k, residual, dy_ND):
    x_ND, gate_ER, weights, token_ER, slot_J, both_ZERF = residual

    def one_part(dslots_ZERD, args):
        z, token_ER, gate_ER, (gate_EDF, up_EDF, down_EFD), both_ERF = args
        dy_ERD = _tokens(dy_ND, token_ER)
        hidden_ERF, backward = jax.vjp(_hidden, both_ERF)
        dgated_ERF = jnp.einsum("erd,efd->erf", dy_ERD, down_EFD)
        ddown_EFD = jnp.einsum("erf,erd->efd", hidden_ERF * gate_ER[:, :, None], dy_ERD)
        (dboth_ERF,) = backward(dgated_ERF * gate_ER[:, :, None])
        dslots_ERD = jnp.einsum("erf,edf->erd", dboth_ERF, jnp.concatenate([gate_EDF, up_EDF], axis=-1))
        dgate_EDF, dup_EDF = jnp.split(jnp.einsum("erd,erf->edf", _tokens(x_ND, token_ER), dboth_ERF), 2, axis=-1)
        dslots_ZERD = jax.lax.dynamic_update_index_in_dim(dslots_ZERD, dslots_ERD, z, 0)
        return dslots_ZERD, (jnp.einsum("erf,erf->er", dgated_ERF, hidden_ERF), (dgate_EDF, dup_EDF, ddown_EFD))

    args = jnp.arange(len(both_ZERF)), *_by_part(top_k, token_ER, gate_ER, weights), both_ZERF
    # no constant to XLA, which would else share one array of zeros with the forward pass and keep it from then on
    zero = 0 * (both_ZERF[0, 0, 0, 0] + dy_ND[0, 0])
    dslots_ZERD = jnp.full((*both_ZERF.shape[:-1], x_ND.shape[1]), zero)
    dslots_ZERD, (dgate_ZER, dweights) = jax.lax.scan(one_part, dslots_ZERD, args)
    dx_GND = rows.sum_of_rows(dslots_ZERD.reshape(1, -1, x_ND.shape[1]), slot_J[None], top_k)
    dweights = jax.tree.map(lambda dw, w: dw.reshape(w.shape), dweights, weights)
    return dx_GND[0], dgate_ZER.reshape(gate_ER.shape), dweights, None, None


_parts.defvjp(_parts_forward, _parts_backward)
