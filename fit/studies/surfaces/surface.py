"""IsoFLOP surfaces of the loss over parameters and sparsity, Abnar et al. (2025, arXiv 2501.12370).

At each budget

  L = a_1 x + a_2 x^2 + b_1 z + b_2 z^2 + c_1 x z + c_2 (x z)^2 + d,  x = ln n_total, z = -ln(1 - sparsity)

At a fixed sparsity it is a parabola in x, at a fixed size one in z. So the best x or z alone, within the range that was
run, is the parabola's lowest point or an end. For the best of both, z is searched, with the best size at each z in
closed form. Refits to random parts of the runs show how sure it is. Each refit also predicts the runs that it has not
seen.

Axes: n runs; 7 coefficients, in the order above; refits.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitting.isoflop import least_squares
from fit.results import Record

REFITS = 100
FITTED_SHARE = 0.8  # of the runs, in each refit
FEWEST_RUNS = 9  # at a budget: the coefficients and two more
GRID = 257  # points of the search over z
REFINED = 6  # how often these are laid around the best one


def z_of(sparsity: Numbers) -> Array:
    """-ln(1 - sparsity)."""
    return -np.log1p(-np.asarray(sparsity, float))


def sparsity_of(z: Numbers) -> Array:
    """1 - e^-z."""
    return -np.expm1(-np.asarray(z, float))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestModel(Record):
    """The model of the least loss on a surface.

    Attributes:
      n_total: All its parameters.
      sparsity: The share of its experts that a token does not use.
      loss: In nats per token.
      at_edge: Which of n_total and sparsity lie at the end of the range that was run.
    """

    n_total: float
    sparsity: float
    loss: float
    at_edge: list[str]


@dataclasses.dataclass(frozen=True)
class Surface:
    """A fitted surface.

    Attributes:
      coefficients: [7].
      size, sparsity: (lowest, highest) that were run.
    """

    coefficients: Array
    size: tuple[float, float]
    sparsity: tuple[float, float]

    def loss(self, n_total: Numbers, sparsity: Numbers) -> Array:
        """Loss in nats per token; the arguments broadcast together."""
        return self._at(np.log(n_total), z_of(sparsity))

    def _at(self, x: Array, z: Array) -> Array:
        """Loss at x and z."""
        a1, a2, b1, b2, c1, c2, d = self.coefficients
        return (a1 + a2 * x) * x + (b1 + b2 * z) * z + (c1 + c2 * x * z) * x * z + d

    def best_size(self, sparsity: Numbers) -> tuple[Array, Array]:
        """(n_total, loss) of the best size at each sparsity."""
        z = z_of(sparsity)
        a1, a2, _, _, c1, c2, _ = self.coefficients
        x = _lowest(a2 + c2 * z**2, a1 + c1 * z, np.log(self.size), lambda x: self._at(x, z))
        return np.exp(x), self._at(x, z)

    def best_sparsity(self, n_total: Numbers, within: Sequence[Numbers] | None = None) -> tuple[Array, Array]:
        """(sparsity, loss) of the best sparsity at each size.

        Args:
          n_total: the sizes.
          within: (lowest, highest) sparsity, instead of those of the runs.
        """
        x = np.log(np.asarray(n_total, float))
        ends = z_of(np.array(within or self.sparsity))
        _, _, b1, b2, c1, c2, _ = self.coefficients
        z = _lowest(b2 + c2 * x**2, b1 + c1 * x, ends, lambda z: self._at(x, z))
        return sparsity_of(z), self._at(x, z)

    def best(self) -> BestModel:
        """The best of both size and sparsity."""
        z_ends = z_of(np.array(self.sparsity))
        low, high = z_ends
        for _ in range(REFINED):
            z = np.linspace(low, high, GRID)
            i = int(np.argmin(self.best_size(sparsity_of(z))[1]))
            low = z[max(i - 1, 0)]
            high = z[min(i + 1, GRID - 1)]
        sparsity = float(np.clip(sparsity_of(z[i]), *self.sparsity))
        n_total, loss = map(float, self.best_size(sparsity))
        at_edge = []
        if _is_at_end(np.log(n_total), np.log(self.size)):
            at_edge.append("n_total")
        if _is_at_end(z[i], z_ends):
            at_edge.append("sparsity")
        return BestModel(n_total=n_total, sparsity=sparsity, loss=loss, at_edge=at_edge)


def _is_at_end(value: float, ends: Array | Sequence[float]) -> bool:
    """Whether a value is one of the ends, but for rounding."""
    return min(abs(value - end) for end in ends) < 1e-6 * max(1.0, abs(value))


def _lowest(square: Array, slope: Array, ends: Array, value: Callable[[Array], Array]) -> Array:
    """Where square v^2 + slope v is least for v within ends: the lowest point, or an end.

    Args:
      square, slope: of the parabolas; they broadcast together.
      ends: [2, ...].
      value: the parabolas' values, of v.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = np.where(square > 0, -slope / (2 * square), ends[0])
    candidates = np.stack(np.broadcast_arrays(np.clip(vertex, *ends), ends[0], ends[1]))
    return np.take_along_axis(candidates, np.argmin(value(candidates), axis=0)[None], axis=0)[0]


def fit(n_total: Array, sparsity: Array, loss: Array) -> Surface:
    """Fits a Surface to runs [n] by least squares."""
    x = np.log(n_total)
    z = z_of(sparsity)
    coefficients, _ = least_squares((x, x**2, z, z**2, x * z, (x * z) ** 2, np.ones(1)), loss)
    return Surface(coefficients, (n_total.min(), n_total.max()), (sparsity.min(), sparsity.max()))


def refits(n_total: Array, sparsity: Array, loss: Array, seed: int = 0) -> tuple[list[Surface], Array]:
    """Fits surfaces to random parts of the runs [n].

    Returns:
      (surfaces fitted to FITTED_SHARE of the runs, [REFITS] correlation of predicted and measured loss on the others;
      NaN where fewer than 3 are left).
    """
    rng = np.random.default_rng(seed)
    surfaces = []
    correlation = []
    n_fitted = max(FEWEST_RUNS - 2, round(FITTED_SHARE * len(loss)))
    for _ in range(REFITS):
        fitted, left_out = np.split(rng.permutation(len(loss)), [n_fitted])
        surface = dataclasses.replace(
            fit(n_total[fitted], sparsity[fitted], loss[fitted]),
            size=(n_total.min(), n_total.max()),
            sparsity=(sparsity.min(), sparsity.max()),
        )
        surfaces.append(surface)
        predicted = surface.loss(n_total[left_out], sparsity[left_out])
        enough = len(left_out) > 2 and np.ptp(predicted) > 0 and np.ptp(loss[left_out]) > 0
        correlation.append(np.corrcoef(predicted, loss[left_out])[0, 1] if enough else np.nan)
    return surfaces, np.array(correlation)
