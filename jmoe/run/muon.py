"""Muon for the matrices of the blocks, Adam for all else: embedding, head, routers and norms.

Muon (Jordan 2024, github.com/KellerJordan/muon) as optax has it: Nesterov momentum, orthogonalised by five steps of
Newton-Schulz, whose products have the backend's default precision. A matrix is what maps one vector to another: each
expert's, the queries' of all heads, the keys', the values', the heads' way out. Its update has Adam's root mean square,
so that Adam's rates and decay serve both (Liu et al. 2025, arXiv 2502.16982, Sec. 2.2).
"""

import math

import jax
import optax
from jax.sharding import PartitionSpec as P
from optax.contrib import MuonDimensionNumbers, MuonState, scale_by_muon

from jmoe.config import weights
from jmoe.model import sharding

RMS = 0.2  # of an update


def scale_by_muon_and_adam(config) -> optax.GradientTransformation:
    """Updates of the trained parameters as init_params names them, of rate 1 and without weight decay."""
    table = weights.table(config.model)
    is_matrix = lambda path: len(path) > 1 and table[path[0].key][path[1].key].role in weights.MATRICES
    label = lambda path, _: "muon" if is_matrix(path) else "adam"
    adam = optax.scale_by_adam(config.optimizer.b1, config.optimizer.b2)
    return optax.partition(
        {"muon": _muon(table), "adam": adam}, lambda params: jax.tree_util.tree_map_with_path(label, params)
    )


def _muon(table) -> optax.GradientTransformation:
    """optax's on a tree of matrices alone, each whole where it is orthogonalised, and its update's RMS set."""
    one = scale_by_muon(weight_dimension_numbers=lambda tree: jax.tree_util.tree_map_with_path(_dimensions, tree))

    def local(grads, state):
        moves = jax.tree_util.tree_map_with_path(lambda path, x: _moves(path, x, _axes(table, path)), grads)
        there = lambda tree: jax.tree.map(_whole, tree, moves)
        back = lambda tree: jax.tree.map(_spread, tree, moves)
        updates, state = one.update(there(grads), state._replace(mu=there(state.mu)))
        updates = jax.tree_util.tree_map_with_path(lambda path, x: _rms_factor(path, x) * x, updates)
        return back(updates), state._replace(mu=back(state.mu))

    def update(grads, state, params=None):
        stored = jax.tree_util.tree_map_with_path(lambda path, _: P(*_axes(table, path)), grads)
        specs = stored, MuonState(P(), stored, P())
        return sharding.per_device(local, jax.sharding.get_abstract_mesh(), specs, specs)(grads, state)

    return optax.GradientTransformation(one.init, update)


def _axes(table, path) -> tuple[str | None, ...]:
    """The mesh axes that the axes of a stacked weight are stored spread over."""
    return None, *table[path[0].key][path[1].key].axes


def _dimensions(path, _=None) -> MuonDimensionNumbers:
    """The axes into and out of the matrices in an array of them, counted from the last."""
    into = (-4,), (-2, -1)
    known = {"qkv": into, "q": into, "kv": into, "out": ((-3, -2), (-1,))}
    return MuonDimensionNumbers(*known.get(path[-1].key, ((-2,), (-1,))))


def _rms_factor(path, x) -> float:
    """The entries of an orthogonal matrix of m x n have an RMS of 1 / sqrt(max(m, n))."""
    return RMS * math.sqrt(max(math.prod(x.shape[i] for i in axes) for axes in _dimensions(path)))


def _moves(path, x, mesh_axes) -> list[tuple[str, int, int | None]]:
    """What makes the matrices whole of which this device has the parts `x`: (mesh axis, axis of x that is spread over
    it and splits matrices, axis of layers or the like that is spread instead; None: every device gets all).

    An exchange leaves each device with some of the matrices; only where no axis divides do all do the same work.
    """
    split = {i % x.ndim for axes in _dimensions(path) for i in axes}
    n_left, moves = {i: x.shape[i] for i in range(x.ndim) if i not in split}, []
    for i in sorted(split):
        if (axis := mesh_axes[i]) and (size := jax.lax.axis_size(axis)) > 1:
            other = next((j for j in n_left if n_left[j] % size == 0), None)
            if other is not None:
                n_left[other] //= size
            moves.append((axis, i, other))
    return moves


def _whole(x, moves):
    for name, axis, other in moves:
        if other is None:
            x = jax.lax.all_gather(x, name, axis=axis, tiled=True)
        else:
            x = jax.lax.all_to_all(x, name, other, axis, tiled=True)
    return x


def _spread(x, moves):
    """The inverse of _whole."""
    for name, axis, other in reversed(moves):
        if other is None:
            size = x.shape[axis] // jax.lax.axis_size(name)
            x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(name) * size, size, axis)
        else:
            x = jax.lax.all_to_all(x, name, axis, other, tiled=True)
    return x
