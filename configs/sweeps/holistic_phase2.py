"""Phase 2 of the holistic search (Wan et al. 2026): at each budget's best M/N_a and N/N_a, every feasible width or nine
of them.

python -m launch.sweep --sweep=configs/sweeps/holistic_phase2.py --workdir=DIR --backend=slurm|gke
python -m fit holistic --runs=PHASE1/runs.csv --width_runs=DIR/runs.csv

The ratios are those of the paper, M/N_a as recovered from its tables. After a phase 1 of your own put the optima that
`fit holistic` prints in their place. The paper prints no grid of widths; these are ours.
"""

from configs.sweeps import holistic_phase1
from fit.architecture_search import holistic

RATIOS = dict(zip(holistic.BUDGETS, zip((10.8, 9.95, 9.18, 8.72, 8.35, 8.21), holistic.RATIO_USED)))
WIDTHS = 9


def get_sweep():
    """(config file, one dict of overrides for each model)."""
    jobs = []
    for flops, ratios in RATIOS.items():
        found, _ = holistic.buildable(holistic.triad_of(flops, *ratios), holistic.setting_of(flops))
        widths, last = sorted(found), len(found) - 1
        chosen = {widths[round(i * last / (WIDTHS - 1))] for i in range(WIDTHS)}
        jobs += [holistic_phase1.overrides(found[width][0], flops) for width in sorted(chosen)]
    return holistic_phase1.CONFIG, jobs
