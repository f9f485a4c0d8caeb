"""Phase 1 of the holistic search (Wan et al. 2026): six budgets, six M/N_a, six N/N_a, the middle one of the feasible
widths.

python -m launch.sweep --sweep=configs/sweeps/holistic_phase1.py --workdir=DIR --backend=slurm|gke
python -m configs.sweeps.holistic_phase1     # all 216 cells: the model of each, or why it has none
python -m fit holistic --runs=DIR/runs.csv

177 of the 216 cells have a buildable model within 5% of their M, N_a and N, by the trainer's own counts; nearly all of
the others ask for 30 times as many parameters as active ones. Each model trains on the budget's FLOPs: C / M tokens.
"""

import itertools
import math

from fit.architecture_search import holistic
from jmoe.config import counts

CONFIG = "configs/holistic.py"


def cells():
    """((C, M/N_a, N/N_a), {width: (Shape, how far)}, nearest (Shape, how far) of all) of every cell."""
    grid = itertools.product(holistic.BUDGETS, holistic.M_OVER_ACTIVE, holistic.TOTAL_OVER_ACTIVE)
    for cell in grid:
        yield cell, *holistic.buildable(holistic.triad_of(*cell), holistic.setting_of(cell[0]))


def get_sweep():
    """(config file, one dict of overrides for each cell that has a model)."""
    return CONFIG, [overrides(found[holistic.median(found)][0], cell[0]) for cell, found, _ in cells() if found]


def sizes(shape, flops):
    """A whole Shape as overrides, with the tokens of the budget."""
    model = holistic.model_of(shape, flops)
    fields = ("d_model", "n_blocks", "n_dense_blocks", "n_heads", "n_kv_heads", "head_dim", "d_expert")
    fields += ("n_experts", "top_k", "n_shared_experts")
    return {f"model.{name}": model[name] for name in fields} | {"n_tokens": (model["n_tokens"],)}


def overrides(shape, flops):
    """`sizes`, and what the paper trains that budget with."""
    i = holistic.nearest_budget(flops)
    return sizes(shape, flops) | {
        "optimizer.lr_law.constant": round(math.log(holistic.LEARNING_RATE[i]), 6),
        "batch_tokens": ((0, holistic.BATCH_ROWS[i] * 8_192),),
    }


def counted(model, seq_len):
    """(M, N_a, N) of a config.model by the trainer's counter: no embedding, and half of each row's scores."""
    active = counts.n_active(model, embedding=False)
    scores = counts.matmul_flops_per_token(model, seq_len)["attention"]
    return 6 * active + scores / 2, active, counts.n_total(model, embedding=False)


def main():
    """Prints every cell."""
    print("       C M/N_a N/N_a  model")
    for (flops, x, y), found, nearest in cells():
        if found:
            shape, off = found[holistic.median(found)]
            words = (
                f"d_model {shape.d_model} of {min(found)} to {max(found)}, {shape.n_dense} + {shape.n_moe} blocks, "
                f"d_expert {shape.d_expert}, {off:.1%} off"
            )
        else:
            words = "none: " + holistic.why_none(holistic.triad_of(flops, x, y), holistic.setting_of(flops), nearest)
        print(f"{flops:8.0e} {x:5} {y:5}  {words}")


if __name__ == "__main__":
    main()
