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
from fit.studies.architecture_search import near_models, published, triads
from fit.studies.architecture_search.architecture import BuiltModel
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
        models: those near it.
    """

    flops: float
    m_over_active: float
    total_over_active: float
    models: near_models.NearModels

    @property
    def triad(self) -> triads.Triad:
        """(M, N_a, N) of the cell."""
        return published.triad_at(self.flops, self.m_over_active, self.total_over_active)


def cells() -> Iterator[Cell]:
    """Yields every cell of the grid."""
    for point in itertools.product(published.BUDGETS, published.M_OVER_ACTIVE, published.TOTAL_OVER_ACTIVE):
        flops, m_over_active, total_over_active = point
        models = near_models.models_near(published.triad_at(*point), published.family_at(flops))
        yield Cell(flops, m_over_active, total_over_active, models)


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each cell that has a model."""
    return CONFIG, [overrides(cell.models.middle.shape, cell.flops) for cell in cells() if cell.models.by_width]


def sizes(shape: ModelShape, flops: float, seq_len: int) -> dict:
    """Returns a shape as overrides, with the tokens of the budget `flops`."""
    model = BuiltModel.of(shape, flops, seq_len)
    return {f"model.{name}": model[name] for name in SHAPE_FIELDS} | {"n_tokens": (model.n_tokens,)}


def overrides(shape: ModelShape, flops: float) -> dict:
    """Returns `sizes`, with the learning rate and batch that the paper uses at that budget."""
    i = published.nearest_budget(flops)
    seq_len = near_models.PAPER_GRID.seq_len
    return sizes(shape, flops, seq_len) | {
        "optimizer.lr_law.constant": round(math.log(published.LEARNING_RATE[i]), 6),
        "batch_tokens": ((0, published.BATCH_ROWS[i] * seq_len),),
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
        widths = cell.models.by_width
        if widths:
            middle = cell.models.middle
            shape = middle.shape
            words = (
                f"d_model {shape.d_model} of {min(widths)} to {max(widths)}, "
                f"{shape.n_dense_blocks} + {shape.n_mixtures} blocks, d_expert {shape.d_expert}, {middle.off:.1%} off"
            )
        else:
            why = near_models.why_none(cell.triad, published.family_at(cell.flops), cell.models.nearest)
            words = f"none: {why}"
        print(f"{cell.flops:8.0e} {cell.m_over_active:5} {cell.total_over_active:5}  {words}")


if __name__ == "__main__":
    main()
