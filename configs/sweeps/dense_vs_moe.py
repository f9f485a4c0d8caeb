"""Does a mixture of 8 experts beat a dense model of the same FLOPs? Two models x 3 seeds x 4 budgets, minutes on two cores.

python -m launch.sweep --sweep=configs/sweeps/dense_vs_moe.py --workdir=runs/dense_vs_moe --backend=local
python -m benchmarks.dense_vs_moe --runs=runs/dense_vs_moe/runs.csv --out=benchmarks/dense_vs_moe.png
"""


def get_sweep():
    jobs = [
        {"model.d_model": 16, "model.n_experts": n_experts, "seed": seed, "n_tokens": BUDGETS}
        for seed in range(3)
        for n_experts in (1, 8)
    ]
    return "configs/quickstart.py", jobs


BUDGETS = (524_288, 1_048_576, 2_097_152, 4_194_304)
