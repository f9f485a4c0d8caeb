"""The holistic search at laptop size: phase 1 and phase 2 of configs/sweeps/holistic_phase1.py in one sweep, for 16
experts of which a token uses 2, one shared, and a dense block, on bytes.

python -m launch.sweep --sweep=configs/sweeps/holistic_small.py --workdir=runs/holistic
python -m fit holistic --runs=runs/holistic/runs.csv --width_runs=runs/holistic/runs.csv --out=runs/holistic/search.svg
python -m fit holistic --rank=runs/holistic/runs.csv --m_over_active=7.5,8.5,10 --total_over_active=2.2,3,3.8

Two budgets; each of 3 x 3 ratios at the least, the middle and the largest feasible width. One table serves all three: a
fit of the ratios takes every width, a fit of the width every ratio, which adds to their noise.
"""

import itertools

from configs.sweeps.holistic_phase1 import sizes
from fit.studies.architecture_search import near_models, triads

FAMILY = triads.family(n_heads=2, head_dim=16, n_kv_heads=1, n_experts=16, top_k=2)
GRID = near_models.SearchGrid(seq_len=128, width_multiple=4, expert_width_multiple=4, least_expert=8)
FLOPS_PER_TOKEN = {2e11: 400_000, 8e11: 800_000}  # budget: M
RATIOS = tuple(itertools.product((7.5, 8.5, 10.0), (2.2, 3.0, 3.8)))


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model."""
    jobs = []
    for (flops, m), (m_over_active, total_over_active) in itertools.product(FLOPS_PER_TOKEN.items(), RATIOS):
        triad = triads.of_ratios(m, m_over_active, total_over_active)
        models = near_models.models_near(triad, FAMILY, GRID)
        widths = models.by_width
        if widths:
            chosen = {min(widths), models.middle.shape.d_model, max(widths)}
            jobs += [sizes(widths[width].shape, flops, GRID.seq_len) for width in sorted(chosen)]
    return "configs/quickstart.py", jobs
