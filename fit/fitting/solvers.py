"""Least squares and L-BFGS from many starts at once, and the folder of compiled programs.

Two methods of Levenberg-Marquardt are here. jaxopt's solves grids of thousands of starts; our own solves a few, for
which it compiles and ends sooner, and grids too where jaxopt does not import. L-BFGS is jaxopt's. This is the only
module that knows jaxopt.

Axes: k starts; n coefficients; r residuals.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import warnings
from collections.abc import Callable, Generator, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import ArrayLike

from fit.errors import UserError
from fit.fitting.problem import PER_START, Data, Residuals

_HAS_JAXOPT = importlib.util.find_spec("jaxopt") is not None
PACKAGES = ("jax", "jaxopt", "numpy", "scipy") if _HAS_JAXOPT else ("jax", "numpy", "scipy")  # in law.json
# Halves the time to compile, and programs run as fast: XLA fuses them, so LLVM has little to add.
COMPILER = {"xla_backend_optimization_level": 1}
Solve = Callable[[Any, Data], Iterable[ArrayLike]]  # (x, objectives, gradient norms) from x [k, n]
# Levenberg-Marquardt begins with this damping, keeps it below the largest, and ends at a gradient norm this small.
SMALL_GRADIENT = 1e-13
DAMPING = 1e-3
LARGEST_DAMPING = 2.0**32
SMALL_GAIN = 1e-14  # ours ends where a step promises to lower the objective by less than this share


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


def batch_axes(data: Data) -> dict[str, int | None]:
    """in_axes of data for jax.vmap: the entries PER_START have a leading axis of the starts."""
    return {name: 0 if name in PER_START else None for name in data}


def _compiled(solver: Any) -> Solve:
    """A solver of jaxopt, compiled for a batch of starts."""

    def solve_start(x: jax.Array, data: Data) -> tuple:
        x, state = solver.run(x, data)
        return x, state.value, state.error

    def solve_batch(x: jax.Array, data: Data) -> tuple:
        return jax.vmap(solve_start, (0, batch_axes(data)))(x, data)

    return jax.jit(solve_batch, compiler_options=COMPILER)


@functools.cache
def least_squares(residuals: Residuals, maxiter: int, grid: bool) -> Solve:
    """Levenberg-Marquardt on 0.5 sum residuals(x, data)^2 from a batch of starts.

    Args:
      residuals: of x [n] and the data of one start, [r].
      maxiter: the most steps from each start.
      grid: whether there are thousands of starts.

    Returns:
      run(x [k, n], data) -> (x [k, n], objective [k], gradient norm [k]), compiled. The entries PER_START of data have
      a leading axis of k; all starts share the others.
    """
    package = jaxopt() if grid else None
    if package is None:
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
    return _compiled(solver)


class _Points(NamedTuple):
    """Points and the objective there: x [k, n], value [k], gradient [k, n], and normal [k, n, n], which is J'J."""

    x: jax.Array
    value: jax.Array
    gradient: jax.Array
    normal: jax.Array


class _Search(NamedTuple):
    """Where the searches from k starts are.

    Attributes:
      tried: the points to try next, [k, n].
      promised: the decrease of the objective there by the linear model, [k].
      best: the best points so far.
      damping: of the next step, [k].
      growth: the factor by which a bad step raises the damping, [k].
    """

    tried: jax.Array
    promised: jax.Array
    best: _Points
    damping: jax.Array
    growth: jax.Array


def levenberg_marquardt(residuals: Residuals, maxiter: int, x: jax.Array, data: Data) -> tuple[jax.Array, ...]:
    """Our own Levenberg-Marquardt from the starts x [k, n]; arguments and results as of `least_squares`.

    Algorithm 6.18 of Madsen and Nielsen, Introduction to Optimization and Data Fitting (2010). A step to where the
    objective is not finite is refused like any other that leads upward. The starts are an axis of the loop's own, as
    jax.vmap of a loop over one start takes twice as long to trace.
    """

    def residuals_twice(x: jax.Array, data: Data) -> tuple[jax.Array, jax.Array]:
        values = residuals(x, data)
        return values, values

    jacobian_and_residuals = jax.vmap(jax.jacfwd(residuals_twice, has_aux=True), (0, batch_axes(data)))

    def evaluate(x: jax.Array) -> _Points:
        jacobian, values = jacobian_and_residuals(x, data)
        return _Points(
            x,
            0.5 * jnp.sum(values**2, axis=1),
            jnp.einsum("krn,kr->kn", jacobian, values),
            jnp.einsum("krn,krm->knm", jacobian, jacobian),
        )

    def step(state: tuple) -> tuple:
        """Evaluates the points that were to be tried, accepts or refuses them, and says which to try next."""
        i, going, search = state
        tried = evaluate(search.tried)
        gain = (search.best.value - tried.value) / search.promised
        better = (i == 0) | (gain > 0)
        best = _where(better, tried, search.best)
        damping = jnp.where(
            better,
            search.damping * jnp.maximum(1 / 3, 1 - (2 * gain - 1) ** 3),
            jnp.minimum(search.damping * search.growth, LARGEST_DAMPING),
        )
        damping = jnp.where(i == 0, DAMPING * best.normal.max(axis=(1, 2)), damping)
        growth = jnp.where(better, jnp.full_like(search.growth, 2.0), jnp.minimum(2 * search.growth, LARGEST_DAMPING))
        damped = best.normal + damping[:, None, None] * jnp.eye(best.x.shape[1])
        change = -cho_solve(cho_factor(damped), best.gradient[..., None])[..., 0]
        promised = 0.5 * jnp.sum(change * (damping[:, None] * change - best.gradient), axis=1)
        following = _Search(best.x + change, promised, best, damping, growth)
        far = jnp.linalg.norm(best.gradient, axis=1) > SMALL_GRADIENT
        promising = ~(promised <= SMALL_GAIN * best.value)
        return i + 1, going & far & promising, _where(going, following, search)

    def is_unfinished(state: tuple) -> jax.Array:
        i, going, _ = state
        return (i <= maxiter) & going.any()

    k, n = x.shape
    ones = jnp.ones(k)
    nowhere = _Points(x, jnp.inf * ones, jnp.full_like(x, jnp.inf), jnp.zeros((k, n, n)))
    start = _Search(x, jnp.nan * ones, nowhere, ones, 2 * ones)
    end: Any = jax.lax.while_loop(is_unfinished, step, (0, ones > 0, start))
    best = end[2].best
    return best.x, best.value, jnp.linalg.norm(best.gradient, axis=1)


def _where(which: jax.Array, new: Any, old: Any) -> Any:
    """new for the starts `which` [k], else old; both are trees of arrays with a leading axis of k."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(jnp.expand_dims(which, range(1, jnp.ndim(a))), a, b)

    return jax.tree.map(choose, new, old)


@functools.cache
def lbfgs(residuals: Residuals, maxiter: int, grid: bool) -> Solve:
    """L-BFGS on the same objective, as the paper used it: far slower. Arguments and results as of `least_squares`.

    Raises:
      UserError: where jaxopt does not import.
    """

    def objective(x: jax.Array, data: Data) -> jax.Array:
        """Half the sum of squared residuals at x [n]."""
        return 0.5 * jnp.sum(residuals(x, data) ** 2)

    package = jaxopt()
    if package is None:
        raise UserError("--solver=paper needs the package jaxopt, which does not import here; leave it out")
    solver = package.LBFGS(
        objective, maxiter=maxiter, tol=1e-10, linesearch="zoom", history_size=20, implicit_diff=False
    )
    return _compiled(solver)


SOLVERS = {"lm": least_squares, "lbfgs": lbfgs}


@contextlib.contextmanager
def compilation_cache() -> Generator[None]:
    """In this context JAX keeps compiled programs in a folder.

    It is compiled/ in $JMOE_CACHE, else in $XDG_CACHE_HOME/jmoe, else in ~/.cache/jmoe; JAX_COMPILATION_CACHE_DIR
    overrides all of them. Where the folder cannot be written, JAX compiles each time.
    """
    folder = _writable_cache_folder()
    if jax.config.jax_compilation_cache_dir or folder is None:
        yield
        return
    wanted = dict(jax_compilation_cache_dir=str(folder), jax_persistent_cache_min_compile_time_secs=0.1)
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()  # JAX decides only once whether it has a cache
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()


def _writable_cache_folder() -> pathlib.Path | None:
    """The folder of compiled programs, made where it is missing; None where nothing can be written there."""
    base = os.environ.get("JMOE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/jmoe"
    try:
        folder = pathlib.Path(base).expanduser() / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home
        return None
    return folder if os.access(folder, os.W_OK) else None
