"""A refit of Eq. 2 of the holistic laws on the architectures of the search: five sizes at each budget.

python -m launch.sweep --sweep=configs/sweeps/holistic_refit.py --workdir=DIR --backend=slurm|gke
python -m fit holistic --refit=DIR/runs.csv

The paper fitted Eq. 2 on heuristic shapes, searched the best shapes at its M and D, and left this refit out.
"""

from configs.sweeps import holistic_phase1, holistic_phase2
from fit.studies.architecture_search import near_models, published, triads

SIZES = (0.5, 0.7, 1.0, 1.4, 2.0)  # M over that of Eq. 2


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model that can be built."""
    jobs = []
    for flops, (m_over_active, total_over_active) in holistic_phase2.RATIOS.items():
        for size in SIZES:
            m = size * published.power(published.FLOPS_PER_TOKEN, flops)
            triad = triads.of_ratios(m, m_over_active, total_over_active)
            models = near_models.models_near(triad, published.family_at(flops))
            if models.by_width:
                jobs.append(holistic_phase1.overrides(models.middle.shape, flops))
    return holistic_phase1.CONFIG, jobs
