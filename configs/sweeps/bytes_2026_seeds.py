"""The noise of results/: how the loss of one model varies from seed to seed, and how much of that its branches share.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_seeds.py --workdir=runs/bytes_2026/seeds

Seed 0 is trained in bytes_2026_fit.py.
"""

MILLION = 2**20


def get_sweep() -> tuple[str, dict]:
    """Returns the config file, and a grid of which every combination is a job."""
    return "configs/bytes_2026_tuned.py", {
        "model.d_model": (48,),
        "seed": (1, 2),
        "model.n_experts": (1, 4, 16),
        "n_tokens": ((2 * MILLION, 8 * MILLION, 32 * MILLION),),
    }
