"""Phase 1 of the holistic search (Wan et al. 2026): six budgets, six M/N_a and six N/N_a, at the median feasible width.

python -m launch.sweep --sweep=configs/sweeps/holistic_phase1.py --workdir=DIR --backend=slurm|gke
python -m configs.sweeps.holistic_phase1     # all 216 cells: the model of each, or why it has none
python -m fit holistic --runs=DIR/runs.csv

177 of the 216 cells have a buildable model within 5% of their M, N_a and N, by the trainer's counts. Nearly all of the
others require 30 times as many parameters as active ones. Each model trains on the budget's FLOPs: C / M tokens.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from ml_collections import ConfigDict

from fit.model.shape import ModelShape
from fit.studies.architecture_search import holistic
from jmoe.config import counts

CONFIG = "configs/holistic.py"
SHAPE_FIELDS = (
    "d_model",
    "n_blocks",
    "n_dense_blocks",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_expert",
    "n_experts",
    "top_k",
    "n_shared_experts",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A point of the grid and the models that can be built there.

    Attributes:
        flops: the budget C.
        m_over_active: M/N_a, FLOPs per token over active parameters.
        total_over_active: N/N_a.
        shapes: {width: (shape, its relative distance from the cell)}.
        nearest: the nearest (shape, distance) of all, also where none is near enough.
    """

    flops: float
    m_over_active: float
    total_over_active: float
    shapes: dict[int, holistic.Near]
    nearest: holistic.Near | None

    @property
    def triad(self) -> tuple[float, float, float]:
        """(M, N_a, N) of the cell."""
        return holistic.triad_of(self.flops, self.m_over_active, self.total_over_active)

    def median(self) -> holistic.Near:
        """The (shape, distance) of the median feasible width."""
        return self.shapes[holistic.median(self.shapes)]


def cells() -> Iterator[Cell]:
    """Yields every cell of the grid."""
    for point in itertools.product(holistic.BUDGETS, holistic.M_OVER_ACTIVE, holistic.TOTAL_OVER_ACTIVE):
        flops, m_over_active, total_over_active = point
        shapes, nearest = holistic.buildable(holistic.triad_of(*point), holistic.family_of(flops))
        yield Cell(flops, m_over_active, total_over_active, shapes, nearest)


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each cell that has a model."""
    return CONFIG, [overrides(cell.median()[0], cell.flops) for cell in cells() if cell.shapes]


def sizes(shape: ModelShape, flops: float, seq_len: int) -> dict:
    """Returns a shape as overrides, with the tokens of the budget `flops`."""
    model = holistic.model_of(shape, flops, seq_len)
    return {f"model.{name}": model[name] for name in SHAPE_FIELDS} | {"n_tokens": (model["n_tokens"],)}


def overrides(shape: ModelShape, flops: float) -> dict:
    """Returns `sizes`, with the learning rate and batch that the paper uses at that budget."""
    i = holistic.nearest_budget(flops)
    seq_len = holistic.PAPER_GRID.seq_len
    return sizes(shape, flops, seq_len) | {
        "optimizer.lr_law.constant": round(math.log(holistic.LEARNING_RATE[i]), 6),
        "batch_tokens": ((0, holistic.BATCH_ROWS[i] * seq_len),),
    }


def counted(model: ConfigDict, seq_len: int) -> tuple[float, int, int]:
    """Returns (M, N_a, N) of a config.model by the trainer's counter.

    The embedding does not count, and of each row's attention scores half do.
    """
    active = counts.n_active(model, embedding=False)
    scores = counts.matmul_flops_per_token(model, seq_len)["attention"]
    return 6 * active + scores / 2, active, counts.n_total(model, embedding=False)


def main() -> None:
    """Prints every cell."""
    print("       C M/N_a N/N_a  model")
    for cell in cells():
        if cell.shapes:
            shape, distance = cell.median()
            words = (
                f"d_model {shape.d_model} of {min(cell.shapes)} to {max(cell.shapes)}, "
                f"{shape.n_dense_blocks} + {shape.n_mixtures} blocks, d_expert {shape.d_expert}, {distance:.1%} off"
            )
        else:
            words = "none: " + holistic.why_none(cell.triad, holistic.family_of(cell.flops), cell.nearest)
        print(f"{cell.flops:8.0e} {cell.m_over_active:5} {cell.total_over_active:5}  {words}")


if __name__ == "__main__":
    main()
