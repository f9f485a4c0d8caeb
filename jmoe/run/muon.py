"""Muon for the matrices of the blocks, Adam for all else: embedding, head, routers and norms.

Muon (Jordan 2024, github.com/KellerJordan/muon) as optax has it: Nesterov momentum, orthogonalised by five steps of
Newton-Schulz, whose products have the backend's default precision. A matrix is what maps one vector to another: each
expert's; those of all heads' queries, keys and values; attention's output. Its update has Adam's root mean square,
so that Adam's rates and decay serve both (Liu et al. 2025, arXiv 2502.16982, Sec. 2.2).
"""

import dataclasses
import math
from typing import Any, cast

import jax
import optax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers, MuonState, scale_by_muon

from jmoe.config import counts
from jmoe.model import sharding
from jmoe.model.param import Description
from jmoe.model.transformer import describe

RMS = 0.2  # of an update


def scale_by_muon_and_adam(config: ConfigDict) -> optax.GradientTransformation:
    """Updates of the trained parameters, of rate 1 and without weight decay."""
    descriptions = describe(config.model)

    def optimizer_of(path: tuple, _: Array) -> str:
        return "muon" if _described(descriptions, path).kind.role in counts.MATRICES else "adam"

    def labels(params: dict) -> dict:
        return jax.tree_util.tree_map_with_path(optimizer_of, params)

    adam = optax.scale_by_adam(config.optimizer.b1, config.optimizer.b2)
    return optax.partition({"muon": _muon(descriptions), "adam": adam}, labels)


def _described(descriptions: dict, path: tuple) -> Description:
    """The description of the parameter at a path of jax.tree_util."""
    description: Any = descriptions
    for key in path:
        description = description[key.key]
    return description


def _muon(descriptions: dict) -> optax.GradientTransformation:
    """optax's Muon on a tree of matrices. Each is gathered where it is orthogonalised, and its update's RMS is set."""

    def dimensions(tree: optax.Params) -> optax.Params:
        return jax.tree_util.tree_map_with_path(lambda path, _: _dimensions(_described(descriptions, path)), tree)

    optimizer = scale_by_muon(weight_dimension_numbers=dimensions)

    def update_on_device(grads: dict, state: MuonState) -> tuple[dict, MuonState]:
        moves = jax.tree_util.tree_map_with_path(lambda path, x: _moves(x, _described(descriptions, path)), grads)

        def scaled(path: tuple, x: Float[Array, "..."]) -> Float[Array, "..."]:
            return _rms_factor(x, _described(descriptions, path)) * x

        whole_grads = jax.tree.map(_gather_matrices, grads, moves)
        whole_state = state._replace(mu=jax.tree.map(_gather_matrices, state.mu, moves))
        whole_updates, optax_state = optimizer.update(whole_grads, whole_state)
        new_state = cast(MuonState, optax_state)
        scaled_updates = jax.tree_util.tree_map_with_path(scaled, whole_updates)
        new_state = new_state._replace(mu=jax.tree.map(_spread_matrices, new_state.mu, moves))
        return jax.tree.map(_spread_matrices, scaled_updates, moves), new_state

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        mesh = jax.sharding.get_abstract_mesh()

        def spec_of(path: tuple, _: Array) -> P:
            return _described(descriptions, path).spec(mesh.shape)

        stored = jax.tree_util.tree_map_with_path(spec_of, updates)
        state_specs = jax.tree.map(lambda _: P(), state)._replace(mu=stored)
        specs = (stored, state_specs)
        return sharding.per_device(update_on_device, mesh, specs, specs)(updates, state)

    return optax.GradientTransformation(optimizer.init, update)


def _dimensions(description: Description) -> MuonDimensionNumbers:
    """The axes into and out of the matrices in an array of them, counted from the last."""
    return MuonDimensionNumbers(description.kind.in_axes, description.kind.out_axes)


def _rms_factor(x: Float[Array, "..."], description: Description) -> float:
    """The factor that gives an orthogonalised update the root mean square RMS.

    The entries of an orthogonal matrix of m x n have one of 1 / sqrt(max(m, n)).
    """
    n_in = math.prod(x.shape[axis] for axis in description.kind.in_axes)
    n_out = math.prod(x.shape[axis] for axis in description.kind.out_axes)
    return RMS * math.sqrt(max(n_in, n_out))


@dataclasses.dataclass(frozen=True)
class Move:
    """One exchange that makes matrices whole, of which each device has parts.

    Attributes:
      mesh_axes: over whose devices the matrices are split.
      axis: the axis of the array that is spread over them.
      other_axis: the axis, of layers or the like, that is spread over them instead; None: every device gets all.
    """

    mesh_axes: tuple[str, ...]
    axis: int
    other_axis: int | None


def _moves(x: Float[Array, "..."], description: Description) -> list[Move]:
    """The exchanges that assemble whole matrices from this device's parts `x`.

    After an exchange each device has some of the matrices. Only if no axis divides do all devices do the same work.
    """
    kind = description.kind
    mesh = jax.sharding.get_abstract_mesh().shape
    matrix_axes = {axis % x.ndim for axis in (*kind.in_axes, *kind.out_axes)}
    n_left = {axis: x.shape[axis] for axis in range(x.ndim) if axis not in matrix_axes}
    moves = []
    for axis in sorted(matrix_axes):
        mesh_axes = sharding.wide(description.mesh_axes(axis, mesh))
        if not mesh_axes:
            continue
        size = jax.lax.axis_size(mesh_axes)
        other_axis = next((other for other in n_left if n_left[other] % size == 0), None)
        if other_axis is not None:
            n_left[other_axis] //= size
        moves.append(Move(mesh_axes, axis, other_axis))
    return moves


def _gather_matrices(x: Float[Array, "..."], moves: list[Move]) -> Float[Array, "..."]:
    """Whole matrices from this device's parts `x`: some of them, or all where a move has no other axis."""
    for move in moves:
        if move.other_axis is None:
            x = jax.lax.all_gather(x, move.mesh_axes, axis=move.axis, tiled=True)
        else:
            x = jax.lax.all_to_all(x, move.mesh_axes, move.other_axis, move.axis, tiled=True)
    return x


def _spread_matrices(x: Float[Array, "..."], moves: list[Move]) -> Float[Array, "..."]:
    """The inverse of _gather_matrices."""
    for move in reversed(moves):
        if move.other_axis is None:
            size = x.shape[move.axis] // jax.lax.axis_size(move.mesh_axes)
            start = jax.lax.axis_index(move.mesh_axes) * size
            x = jax.lax.dynamic_slice_in_dim(x, start, size, move.axis)
        else:
            x = jax.lax.all_to_all(x, move.mesh_axes, move.axis, move.other_axis, tiled=True)
    return x
