"""The runs to which the law of results/ is fitted: 4 widths, E = 1, 4, 16, two seeds, and E = 32 at the narrowest.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_fit.py --workdir=runs/bytes_2026/fit

77 runs on 21 trunks. A second seed was worth more than E = 2 and 8: the losses of one model differ by more than 0.5%
from seed to seed. The other seeds of the narrowest model are in bytes_2026_seeds.py. The widest, whose seeds differ by
less, has one seed of E = 4.
"""

MILLION = 2**20
BUDGETS = {48: (2, 4, 8, 16, 32), 72: (2, 4, 8, 16), 96: (2, 4, 8), 120: (2, 4, 5)}  # d_model: millions of tokens


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job."""
    models = [(48, n_experts, 0) for n_experts in (1, 4, 16, 32)]
    models += [(d_model, n_experts, seed) for d_model in (72, 96, 120) for n_experts in (1, 4, 16) for seed in (0, 1)]
    models.remove((120, 4, 1))
    return "configs/bytes_2026_tuned.py", [
        {
            "model.d_model": d_model,
            "model.n_experts": n_experts,
            "seed": seed,
            "n_tokens": tuple(millions * MILLION for millions in BUDGETS[d_model]),
        }
        for d_model, n_experts, seed in models
    ]
