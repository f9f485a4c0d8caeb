"""The best learning rate of several models for half the cost of a grid: fewer rates on longer and longer trunks.

python -m launch.sweep --sweep=configs/sweeps/lr_halving.py --workdir=runs/rates     # three times: once for each rung
python -m fit lr --runs=runs/rates/runs.csv --with_tokens --with_batch

Successive halving: the first rung trains nine rates on short trunks. Each later start reads RUNS and adds the next
rung: the previous rung's best rate and its neighbours, on trunks four times as long. The last rung has three rates, as
many as a parabola needs. The longer rungs show how the best rate changes with tokens. A rate without a result, because
its run diverged, counts as the worst. So start a rung when launch.status says that the previous one has ended. Copy the
file and change what is in capitals.
"""

import csv
import io
import math

from etils import epath

CONFIG = "configs/quickstart.py"
RUNS = "runs/rates/runs.csv"
MODELS = [  # what each model changes
    {"model.d_model": 24, "model.n_experts": 1, "batch_tokens": ((0, 1_024),)},
    {"model.d_model": 24, "model.n_experts": 1, "batch_tokens": ((0, 4_096),)},
    {"model.d_model": 24, "model.n_experts": 8, "batch_tokens": ((0, 1_024),)},
    {"model.d_model": 40, "model.n_experts": 1, "batch_tokens": ((0, 1_024),)},
]
CONSTANTS = [round(3.75 + 0.5 * k * math.log(2), 4) for k in range(-4, 5)]  # config.optimizer.lr_law.constant
RUNGS = ((9, (131_072,)), (5, (262_144, 524_288)), (3, (1_048_576, 2_097_152)))  # rates, budgets of a trunk


def get_sweep(runs: str = RUNS) -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job of the rungs that `runs` determines so far."""
    path = epath.Path(runs)
    rows = list(csv.DictReader(io.StringIO(path.read_text()))) if path.exists() else []
    jobs = []
    for model in MODELS:
        constants = CONSTANTS
        best = len(CONSTANTS) // 2
        for n_rates, budgets in RUNGS:
            first = min(max(best - n_rates // 2, 0), len(constants) - n_rates)
            constants = constants[first : first + n_rates]
            rung = [model | {"optimizer.lr_law.constant": c, "n_tokens": budgets} for c in constants]
            jobs += rung
            losses = [loss_of(job, rows) for job in rung]
            if not any(math.isfinite(loss) for loss in losses):
                break
            best = losses.index(min(losses))
    return CONFIG, jobs


def loss_of(job: dict, rows: list[dict]) -> float:
    """Returns the loss of a job's longest run in runs.csv; inf if it is not there."""
    overrides = " ".join(f"{field}={value!r}" for field, value in job.items())
    n_tokens = str(max(job["n_tokens"]))
    for row in rows:
        if row["overrides"].endswith(overrides) and row["n_tokens"] == n_tokens:
            return float(row["loss"])
    return math.inf
