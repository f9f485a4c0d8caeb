"""Does a mixture of 8 experts beat a dense model at equal FLOPs? 2 models x 3 seeds x 4 budgets, 4 minutes on 2 cores.

python -m launch.sweep --sweep=configs/sweeps/dense_vs_moe.py --workdir=runs/dense_vs_moe --backend=local
python -m benchmarks.dense_vs_moe --runs=runs/dense_vs_moe/runs.csv --out=benchmarks/dense_vs_moe.png
"""


def get_sweep():
    """(config file, grid): every combination is a job."""
    budgets = (524_288, 1_048_576, 2_097_152, 4_194_304)
    return "configs/quickstart.py", {
        "model.d_model": (16,),
        "model.n_experts": (1, 8),
        "seed": (0, 1, 2),
        "n_tokens": (budgets,),
    }
