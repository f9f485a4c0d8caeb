"""What fit counts of a step's traffic is what the trainer's program asks for: each gather, sum and trip of a token."""

import collections
import math

import jax
import jax.numpy as jnp
import pytest

from configs import joint_moe
from fit.model import step_counts
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from jmoe.model import sharding
from jmoe.model.parameters import init_params, parameter_shardings
from jmoe.run.step import gradient


def sent_bytes(jaxpr, mesh, times=1):
    """Bytes that leave a device, by (collective, axes), of a program's jaxpr."""
    found = collections.Counter()
    for eqn in jaxpr.eqns:
        n_runs = times * eqn.params.get("length", 1) if eqn.primitive.name == "scan" else times
        axes = eqn.params.get("axis_name", eqn.params.get("axes"))
        taken, made = (sum(v.aval.size * v.aval.dtype.itemsize for v in vs) for vs in (eqn.invars, eqn.outvars))
        if eqn.primitive.name == "all_gather":
            found["all_gather", axes] += n_runs * (made - taken)
        elif eqn.primitive.name == "reduce_scatter":
            found["reduce_scatter", axes] += n_runs * (taken - made)
        elif eqn.primitive.name == "psum_invariant" and tuple(axes) == ("expert",):
            found["psum", axes] += n_runs * 2 * taken * (mesh["expert"] - 1) / mesh["expert"]
        elif eqn.primitive.name == "all_to_all":
            size = math.prod(mesh[axis] for axis in ((axes,) if isinstance(axes, str) else axes))
            found["all_to_all", axes] += n_runs * taken * (size - 1) / size
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += sent_bytes(inner, mesh, n_runs)
    return found


def program_and_counts(remat, **model):
    """(bytes that the trainer's program sends by (collective, axes), what fit counts): a mixture over 4 x 2 devices, a
    batch in four parts. Nothing runs."""
    config = joint_moe.get_config()
    config.model.update(d_model=256, n_blocks=3, n_heads=4, d_ff=384, vocab_size=512, n_experts=4, group_tokens=64)
    config.model.update(model)
    config.model.dtype = "bfloat16"
    config.data.seq_len = 64
    config.remat, config.mesh.expert = remat, 2
    config.batch_tokens, config.microbatch_tokens = ((0, 4096),), 1024
    mesh = sharding.make_mesh(config, jax.devices()[:8])
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda: init_params(config))
        placed = parameter_shardings(mesh, config.model)
        params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, placed)
        rows = jax.NamedSharding(mesh, sharding.TOKENS)
        batch = jax.ShapeDtypeStruct((64, 65), jnp.int32, sharding=rows)
        program = jax.make_jaxpr(lambda p, b: gradient(p, b, config, mesh))(params, batch)
    layout = Layout(4096, 64, 4, 2, microbatch_tokens=1024, remat=remat, flash=False)
    counted = step_counts.count(ModelShape.of_config(config.model.to_dict()), layout, 8, gathers_between=False)
    return sent_bytes(program.jaxpr, mesh.shape), counted


@pytest.mark.parametrize("remat", ["full", "dots", "none"])
def test_a_step_sends_what_fit_counts(remat):
    found, counted = program_and_counts(remat)
    to_experts = found.pop(("all_to_all", "expert"))
    assert counted.all_to_all == pytest.approx(to_experts, rel=0.005)  # gates travel, too
    # of weights: those of experts over the data axis, all others over both; the embedding's rows are exchanged
    assert set(found) <= {(kind, ("data", "expert")) for kind in ("all_gather", "reduce_scatter", "all_to_all")} | {
        ("all_gather", ("data",)),
        ("reduce_scatter", ("data",)),
    }
    assert counted.weights + counted.gradients == pytest.approx(sum(found.values()), rel=0.01)
    assert counted.copies == 0


def test_weights_whose_width_does_not_divide_are_summed_over_the_expert_axis():
    """A width of 260 divides over 4 devices, not over 4 x 2: both devices of the expert axis store the same rows, and
    sum their gradients."""
    found, counted = program_and_counts("full", d_model=260, head_dim=64)
    copies = sum(sent for (kind, _), sent in found.items() if kind == "psum")
    assert counted.copies == pytest.approx(copies, rel=0.01) and copies > 0
    assert {axes for kind, axes in found if kind in ("all_gather", "reduce_scatter")} == {("data",)}
