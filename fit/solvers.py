"""The only module that knows jaxopt: least squares and L-BFGS from many starts at once."""

import functools
import warnings

import jax
import jax.numpy as jnp

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # jaxopt says on import that it is no longer maintained
    import jaxopt


# Half the time to compile, and the program runs as fast: XLA fuses it, LLVM has little to add.
COMPILER = {"xla_backend_optimization_level": 1}


def _batched(solver, batched):
    def one(x, data):
        x, state = solver.run(x, data)
        return x, state.value, state.error

    def run(x, data):
        return jax.vmap(one, in_axes=(0, {name: 0 if name in batched else None for name in data}))(x, data)

    return jax.jit(run, compiler_options=COMPILER)


@functools.cache
def least_squares(residuals, batched, maxiter):
    """Levenberg-Marquardt on 0.5 sum residuals(x, data)^2 from a batch of starts.

    Returns run(x [batch, n], data) -> (x [batch, n], objective [batch], gradient norm [batch]), compiled. `batched` names
    the entries of the dictionary data that have a leading axis of the batch too; all starts share the others.
    """
    return _batched(
        jaxopt.LevenbergMarquardt(
            residuals,
            maxiter=maxiter,
            tol=1e-13,
            damping_parameter=1e-3,
            solver="cholesky",
            materialize_jac=True,
            implicit_diff=False,
        ),
        batched,
    )


@functools.cache
def lbfgs(residuals, batched, maxiter):
    """As least_squares, by L-BFGS on the same objective: slower by far, but what the paper used."""
    return _batched(
        jaxopt.LBFGS(
            lambda x, data: 0.5 * jnp.sum(residuals(x, data) ** 2),
            maxiter=maxiter,
            tol=1e-10,
            linesearch="zoom",
            history_size=20,
            implicit_diff=False,
        ),
        batched,
    )


SOLVERS = {"lm": least_squares, "lbfgs": lbfgs}
