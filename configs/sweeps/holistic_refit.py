"""A refit of Eq. 2 of the holistic laws on the architectures of the search: five sizes at each budget.

python -m launch.sweep --sweep=configs/sweeps/holistic_refit.py --workdir=DIR --backend=slurm|gke
python -m fit holistic --refit=DIR/runs.csv

The paper fitted Eq. 2 on heuristic shapes, searched the best shapes at its M and D, and left this refit out.
"""

from configs.sweeps import holistic_phase1, holistic_phase2
from fit.studies.architecture_search import holistic

SIZES = (0.5, 0.7, 1.0, 1.4, 2.0)  # M over that of Eq. 2


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model that can be built."""
    jobs = []
    for flops, (m_over_active, total_over_active) in holistic_phase2.RATIOS.items():
        for size in SIZES:
            m = size * holistic.power(holistic.FLOPS_PER_TOKEN, flops)
            active = m / m_over_active
            shapes, _ = holistic.buildable((m, active, active * total_over_active), holistic.family_of(flops))
            if shapes:
                shape, _ = shapes[holistic.median(shapes)]
                jobs.append(holistic_phase1.overrides(shape, flops))
    return holistic_phase1.CONFIG, jobs
