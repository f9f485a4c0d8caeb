"""Phase 2 of the holistic search (Wan et al. 2026): at each budget's best ratios, every feasible width or nine of them.

python -m launch.sweep --sweep=configs/sweeps/holistic_phase2.py --workdir=DIR --backend=slurm|gke
python -m fit holistic --runs=PHASE1/runs.csv --width_runs=DIR/runs.csv

The ratios are the paper's, with M/N_a recovered from its tables. After a phase 1 of your own, replace them by the
optima that `fit holistic` prints. The paper prints no grid of widths; this one is ours.
"""

from configs.sweeps import holistic_phase1
from fit.studies.architecture_search import near_models, published

M_OVER_ACTIVE = (10.8, 9.95, 9.18, 8.72, 8.35, 8.21)
RATIOS = {  # budget: (M/N_a, N/N_a)
    flops: (m_over_active, total_over_active)
    for flops, m_over_active, total_over_active in zip(
        published.BUDGETS, M_OVER_ACTIVE, published.RATIO_USED, strict=True
    )
}
MOST_WIDTHS = 9


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model."""
    jobs = []
    for flops, ratios in RATIOS.items():
        models = near_models.models_near(published.triad_at(flops, *ratios), published.family_at(flops)).by_width
        widths = sorted(models)
        last = len(widths) - 1
        chosen = {widths[round(i * last / (MOST_WIDTHS - 1))] for i in range(MOST_WIDTHS)}
        for width in sorted(chosen):
            jobs.append(holistic_phase1.overrides(models[width].shape, flops))
    return holistic_phase1.CONFIG, jobs
