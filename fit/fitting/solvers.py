"""The only module that knows jaxopt: least squares and L-BFGS from many starts at once; compiled programs kept.

jaxopt solves grids of thousands of starts, and L-BFGS. A few starts are solved by the Levenberg-Marquardt method below,
which ends sooner; so is all of it where jaxopt does not import, as it will some day with a newer jax.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import warnings
from collections.abc import Callable, Generator, Iterable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import ArrayLike

from fit.aliases import Array
from fit.fitting.problem import PER_START, Data, Residuals

PACKAGES = ("jax", *["jaxopt"] * (importlib.util.find_spec("jaxopt") is not None), "numpy", "scipy")  # in law.json
# Halves the time to compile, and programs run as fast: XLA fuses them, so LLVM has little to add.
COMPILER = {"xla_backend_optimization_level": 1}
Solve = Callable[[Any, Data], Iterable[ArrayLike]]  # (x, objectives, gradient norms) from x [k, n]
SMALL_GRADIENT, DAMPING, LARGEST_DAMPING = 1e-13, 1e-3, 2.0**32  # of Levenberg-Marquardt
SMALL_GAIN = 1e-14  # it ends where a step promises to lower the objective by less than this share


@functools.cache
def jaxopt() -> ModuleType | None:
    """The package, or None where it does not import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it says on import that it is no longer maintained
        try:
            import jaxopt
        except (ImportError, AttributeError):  # what a module raises that asks for a part of jax which is gone
            return None
        return jaxopt


def axes(data: Data) -> dict[str, int | None]:
    """in_axes of data, of which the entries PER_START have a leading axis of the starts."""
    return {name: 0 if name in PER_START else None for name in data}


def _of_jaxopt(solver: Any) -> Solve:
    """A solver of jaxopt, compiled for a batch of starts."""

    def solve_start(x: jax.Array, data: Data) -> tuple:
        x, state = solver.run(x, data)
        return x, state.value, state.error

    return jax.jit(lambda x, data: jax.vmap(solve_start, (0, axes(data)))(x, data), compiler_options=COMPILER)


@functools.cache
def least_squares(residuals: Residuals, maxiter: int, grid: bool) -> Solve:
    """Levenberg-Marquardt on 0.5 sum residuals(x, data)^2 from a batch of starts.

    Returns run(x [batch, n], data) -> (x [batch, n], objective [batch], gradient norm [batch]), compiled. The entries
    PER_START of data have a leading axis of the batch too; all starts share the others. grid: whether there are
    thousands of starts.
    """
    if not grid or (package := jaxopt()) is None:
        return jax.jit(functools.partial(levenberg_marquardt, residuals, maxiter), compiler_options=COMPILER)
    solver = package.LevenbergMarquardt(
        residuals,
        maxiter=maxiter,
        tol=SMALL_GRADIENT,
        damping_parameter=DAMPING,
        solver="cholesky",
        materialize_jac=True,
        implicit_diff=False,
    )
    return _of_jaxopt(solver)


def levenberg_marquardt(residuals: Residuals, maxiter: int, x: jax.Array, data: Data) -> tuple[jax.Array, ...]:
    """least_squares from k starts x [k, n]: (x [k, n], objective [k], gradient norm [k]).

    Algorithm 6.18 of Madsen and Nielsen, Introduction to Optimization and Data Fitting (2010). A step to where the
    objective is not finite is refused like any other that leads upward. The starts are an axis of the loop's own, as
    jax.vmap of a loop over one start takes twice as long to trace.
    """
    slopes = jax.vmap(jax.jacfwd(lambda x, data: (residuals(x, data),) * 2, has_aux=True), (0, axes(data)))

    def where(which: jax.Array, new: Any, old: Any) -> Any:
        """new for the starts `which` [k], else old."""
        return jax.tree.map(lambda a, b: jnp.where(jnp.expand_dims(which, range(1, jnp.ndim(a))), a, b), new, old)

    def step(state: tuple) -> tuple:
        """Looks at the point that was tried, takes it or not, and says which to try next."""
        i, going, (tried, promised, here, damping, growth) = state
        jacobian, values = slopes(tried, data)
        there = (
            tried,
            0.5 * jnp.sum(values**2, axis=1),
            jnp.einsum("krn,kr->kn", jacobian, values),
            jnp.einsum("krn,krm->knm", jacobian, jacobian),
        )
        gain = (here[1] - there[1]) / promised
        better = (i == 0) | (gain > 0)
        here = where(better, there, here)
        damping = where(
            better,
            damping * jnp.maximum(1 / 3, 1 - (2 * gain - 1) ** 3),
            jnp.minimum(damping * growth, LARGEST_DAMPING),
        )
        x, value, gradient, normal = here
        damping = jnp.where(i == 0, DAMPING * normal.max(axis=(1, 2)), damping)
        damped = normal + damping[:, None, None] * jnp.eye(x.shape[1])
        moved = -cho_solve(cho_factor(damped), gradient[..., None])[..., 0]
        promised = 0.5 * jnp.sum(moved * (damping[:, None] * moved - gradient), axis=1)  # by the linear model
        growth = where(better, jnp.full_like(growth, 2.0), jnp.minimum(2 * growth, LARGEST_DAMPING))
        after = where(going, (x + moved, promised, here, damping, growth), state[2])
        far = jnp.linalg.norm(gradient, axis=1) > SMALL_GRADIENT
        return i + 1, going & far & ~(promised <= SMALL_GAIN * value), after

    k, n = x.shape
    ones = jnp.ones(k)
    nowhere = x, jnp.inf * ones, jnp.full_like(x, jnp.inf), jnp.zeros((k, n, n))
    begin = 0, ones > 0, (x, jnp.nan * ones, nowhere, ones, 2 * ones)
    end: Any = jax.lax.while_loop(lambda state: (state[0] <= maxiter) & state[1].any(), step, begin)
    x, value, gradient, _ = end[2][2]
    return x, value, jnp.linalg.norm(gradient, axis=1)


@functools.cache
def lbfgs(residuals: Residuals, maxiter: int, grid: bool) -> Solve:
    """As least_squares, by L-BFGS on the same objective: slower by far, but what the paper used."""

    def objective(x: jax.Array, data: Data) -> jax.Array:
        """Half the sum of squared residuals at x [n]."""
        return 0.5 * jnp.sum(residuals(x, data) ** 2)

    if (package := jaxopt()) is None:
        return functools.partial(_scipy_lbfgs, jax.jit(jax.value_and_grad(objective)), maxiter)
    solver = package.LBFGS(
        objective, maxiter=maxiter, tol=1e-10, linesearch="zoom", history_size=20, implicit_diff=False
    )
    return _of_jaxopt(solver)


def _scipy_lbfgs(objective: Callable[[Array, Data], tuple], maxiter: int, x: Array, data: Data) -> tuple[Array, ...]:
    """lbfgs where there is no jaxopt: scipy's, one start after another."""
    import scipy.optimize  # only here: it takes a third of a second

    ends = []
    for i, start in enumerate(x):
        if i and np.array_equal(start, x[i - 1]):  # a row that fills the batch up
            ends.append(ends[-1])
            continue
        data_of_start = data | {name: data[name][i] for name in PER_START}
        options = dict(maxiter=maxiter, maxcor=20, ftol=0, gtol=1e-10)
        ends.append(
            scipy.optimize.minimize(
                _as_numpy, start, (objective, data_of_start), jac=True, method="L-BFGS-B", options=options
            )
        )
    return tuple(
        np.array(part) for part in zip(*((end.x, end.fun, np.linalg.norm(end.jac)) for end in ends), strict=True)
    )


def _as_numpy(x: Array, objective: Callable[[Array, Data], tuple], data: Data) -> list[Array]:
    """[objective, gradient] at x as arrays of NumPy, which scipy needs."""
    return [np.asarray(value) for value in objective(x, data)]


SOLVERS = {"lm": least_squares, "lbfgs": lbfgs}


@contextlib.contextmanager
def kept() -> Generator[None]:
    """In this context JAX keeps compiled programs in compiled/ in $JMOE_CACHE, else $XDG_CACHE_HOME/jmoe, else
    ~/.cache/jmoe, or in JAX_COMPILATION_CACHE_DIR if that is set. If the folder cannot be written, JAX compiles each
    time."""
    base = os.environ.get("JMOE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/jmoe"
    try:
        path = pathlib.Path(base).expanduser() / "compiled"
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
