"""The only module that knows jaxopt: least squares and L-BFGS from many starts at once; compiled programs kept."""

import contextlib
import functools
import os
import pathlib
import warnings

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # jaxopt says on import that it is no longer maintained
    import jaxopt


# Halves the time to compile, and programs run as fast: XLA fuses them, so LLVM has little to add.
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

    Returns run(x [batch, n], data) -> (x [batch, n], objective [batch], gradient norm [batch]), compiled. `batched`
    names the entries of the dictionary data that have a leading axis of the batch too; all starts share the others.
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


def cache_folder():
    """compiled/ in $JMOE_CACHE, else $XDG_CACHE_HOME/jmoe, else ~/.cache/jmoe (see WORKSPACE.md)."""
    base = os.environ.get("JMOE_CACHE")
    if not base:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jmoe"
    return pathlib.Path(base).expanduser() / "compiled"


@contextlib.contextmanager
def kept():
    """In this context JAX keeps compiled programs in cache_folder(), or in JAX_COMPILATION_CACHE_DIR if that is set. If
    the folder cannot be written, JAX compiles each time."""
    try:
        path = cache_folder()
        path.mkdir(parents=True, exist_ok=True)
        usable = os.access(path, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: no home
        usable = False
    if jax.config.jax_compilation_cache_dir or not usable:
        yield
        return
    wanted = dict(jax_compilation_cache_dir=str(path), jax_persistent_cache_min_compile_time_secs=0.1)
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX decides only once whether it has a cache
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
