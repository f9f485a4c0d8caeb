"""Refits Step Law (Li et al. 2025, arXiv 2503.04715) to its public runs: 1,911 dense models and 708 mixtures over grids
of learning rate and batch. They state no licence, so they are not copied here; fetch them and give their folder:

    git clone --depth 1 https://github.com/step-law/steplaw /tmp/steplaw
    python -m benchmarks.refit_rates --data=/tmp/steplaw/data

It prints the coefficients of fit/planning/recipe/rates.py's STEP_LAW_REFIT, with intervals by leaving grids out; how
the best rates of the mixtures compare with Step Law by all and by active parameters; and how flat the loss is around
its best.
"""

import argparse
import csv
import dataclasses
import pathlib

import numpy as np

from fit.planning.recipe import rates

NEAR = 1.0025  # runs with a loss within 0.25% of the grid's best count as near-optimal, as in DeepSeek LLM
ROW = 2_048  # tokens in a row of the dense runs, whose table lacks it
LEAST_RUNS = 8  # of a grid
DRAWS = 1_000


@dataclasses.dataclass(frozen=True)
class Grid:
    """Runs of one model on one number of tokens.

    Attributes:
        active: active parameters outside embedding and head.
        total: all parameters outside embedding and head.
        n_tokens: training tokens.
        runs: float64 [n, 3] of peak learning rate, tokens in a batch, loss.
    """

    active: float
    total: float
    n_tokens: float
    runs: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """(rate, batch): geometric means over the near-optimal runs."""
        losses = self.runs[:, 2]
        near = self.runs[losses <= NEAR * losses.min(), :2]
        return np.exp(np.log(near).mean(axis=0))

    @property
    def inside(self) -> bool:
        """Whether the best run is not at an edge of the grid."""
        run = self.runs[self.runs[:, 2].argmin(), :2]
        return bool(np.all((run > self.runs[:, :2].min(axis=0)) & (run < self.runs[:, :2].max(axis=0))))

    def width(self, axis: int) -> float:
        """Returns the factor from the best run to the farthest near-optimal one that differs in one axis alone.

        It is the geometric mean of both directions. Axis 0 is the rate, 1 the batch.
        """
        best = self.runs[self.runs[:, 2].argmin()]
        same = self.runs[(self.runs[:, 1 - axis] == best[1 - axis]) & (self.runs[:, 2] <= NEAR * best[2]), axis]
        return float(np.sqrt(same.max() / same.min()))


def grids(path: pathlib.Path) -> list[Grid]:
    """Returns the grids of a table of step-law/steplaw."""
    runs_of: dict[tuple, list[list[float]]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            key = float(row.get("Na") or row["N"]), float(row["N"]), float(row["D"])
            batch = float(row["bs"]) * float(row.get("seq_len") or ROW)
            runs_of.setdefault(key, []).append([float(row["lr"]), batch, float(row["smooth loss"])])
    return [Grid(*key, np.array(runs)) for key, runs in sorted(runs_of.items()) if len(runs) >= LEAST_RUNS]


def fit(design: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns (ln constant, exponents) by least squares in logarithms."""
    return np.linalg.lstsq(design, values, rcond=None)[0]


def text_of_fit(name: str, columns: list[str], design: np.ndarray, values: np.ndarray) -> str:
    """Returns a power law in words, with intervals from grids drawn with replacement."""
    rng = np.random.default_rng(0)
    draws = [fit(design[i], values[i]) for i in (rng.integers(len(values), size=len(values)) for _ in range(DRAWS))]
    low, high = np.percentile(draws, [10, 90], axis=0)
    powers = fit(design, values)
    spread = np.std(design @ powers - values)
    terms = [f"{c}^{powers[i]:.3f} ({low[i]:.3f} to {high[i]:.3f})" for i, c in enumerate(columns, 1)]
    return f"{name} = {np.exp(powers[0]):.3g} {' '.join(terms)}; spread of ln {spread:.2f} over {len(values)} grids"


def main() -> None:
    """Prints the refit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path, help="Folder data/ of a clone of step-law/steplaw.")
    data = parser.parse_args().data
    dense, mixtures = (grids(data / f"{kind}_lr_bs_loss.csv") for kind in ("dense", "moe"))
    used = [grid for grid in dense if grid.inside]
    sizes = np.log([[np.e, grid.total, grid.n_tokens] for grid in used])
    rate, batch = np.log([grid.best for grid in used]).T
    print(text_of_fit("dense: rate", ["N", "D"], sizes, rate))
    print(text_of_fit("dense: batch", ["D"], sizes[:, [0, 2]], batch))
    for counted in ("total", "active"):
        factors = []
        for grid in mixtures:
            n = getattr(grid, counted)
            run = rates.CountedRun(n, n, grid.n_tokens, 0.0, rates.MIXTURE)
            factors.append(np.log(grid.best[0] / rates.STEP_LAW.learning_rate(run)))
        print(
            f"mixtures: best rate / Step Law by {counted} parameters: {np.exp(np.mean(factors)):.2f}, spread of ln "
            f"{np.std(factors):.2f} over {len(factors)} grids"
        )
    for axis, name in enumerate(("rate", "batch")):
        widths = [grid.width(axis) for grid in dense + mixtures]
        print(
            f"{name}: a factor of {np.median(widths):.2f} from the best costs less than 0.25% (median of {len(widths)})"
        )


if __name__ == "__main__":
    main()
