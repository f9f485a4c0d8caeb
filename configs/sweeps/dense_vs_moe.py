"""Does a mixture of 8 experts beat a dense model at equal FLOPs? 2 models x 3 seeds x 3 budgets, 4 minutes on 2 cores.

python -m launch.sweep --sweep=configs/sweeps/dense_vs_moe.py --workdir=runs/dense_vs_moe --backend=local
python -m benchmarks.dense_vs_moe --runs=runs/dense_vs_moe/runs.csv --out=benchmarks/dense_vs_moe.png
"""


def get_sweep() -> tuple[str, dict]:
    """Returns the config file, and a grid of which every combination is a job."""
    return "configs/quickstart.py", {
        "model.d_model": (24,),
        "model.n_experts": (1, 8),
        "seed": (0, 1, 2),
        "n_tokens": ((655_360, 1_310_720, 2_621_440),),
    }
