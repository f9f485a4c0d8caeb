"""From loss to tasks on public runs: maps of 46 tasks that predict larger runs, and whether E shifts them.

    python -m benchmarks.tasks
    python -m benchmarks.tasks --clone=scaling    # makes the table again from a clone of mlfoundations/scaling

Gadre et al. 2024 (arXiv 2403.08540) trained 104 dense models of 11M to 6.9B parameters on three texts, on 5 to 640
tokens a parameter, and measured 46 tasks. On each text the runs of the largest compute are left out and predicted from
their loss on C4, of all tasks, and of the 17 tasks that their paper averages. Printed for each, in accuracy:

  error   mean absolute error;   bias   mean of predicted minus measured
  holds   share of the accuracies in their 80% intervals;   average   the error of the mean over the tasks

`exponential` is the paper's own form, error = floor - k exp(-rate loss), fitted to the same runs of each task; for
`average` it is fitted to the mean over the tasks, as in the paper.

Clark et al. 2022 give the loss on LAMBADA, C4 and the Pile beside the validation loss, of mixtures of 1 to 512 experts.
exp(-loss) is the geometric mean of the probabilities of the right tokens, a bounded score as accuracy is. C4 against
itself is the control: E cannot shift it.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import csv
import dataclasses
import json
import pathlib
import warnings

import numpy as np
from absl import app, flags
from scipy.optimize import curve_fit

import fit
from fit.task_maps.maps import TaskMaps

TABLES = pathlib.Path(__file__).parent / "tables"
GADRE = TABLES / "tasks" / "gadre2024.csv"
CLARK = TABLES / "mixtures" / "clark2022.csv"
ROUTERS = ("S-Base", "RL-R", "Hash")
TEXTS = ("c4", "refinedweb", "redpajama")
NAMES_OF_TEXTS = {"c4_original": "c4", "rw_original": "refinedweb", "rpj": "redpajama"}
LARGEST = 1.5e20  # FLOPs, from which on runs are left out: 4 to 5 of each text
SUBSET = (  # the 17 tasks that the paper averages
    "arc_easy",
    "bigbench_cs_algorithms",
    "bigbench_dyck_languages",
    "bigbench_novel_concepts",
    "bigbench_operators",
    "bigbench_qa_wikidata",
    "boolq",
    "commonsense_qa",
    "copa",
    "coqa",
    "hellaswag",
    "hellaswag_zeroshot",
    "lambada_openai",
    "piqa",
    "pubmed_qa_labeled",
    "squad",
    "winograd",
)
FORM = "logistic"
EXPONENTIAL = "exponential"

Run = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Score:
    """How the runs of the largest compute were predicted, in accuracy. holds: NaN for what has no intervals."""

    text: str
    form: str
    tasks: str
    left_out: int
    error: float
    bias: float
    holds: float
    average: float


def gadre_runs(text: str) -> list[Run]:
    """The runs that were trained on one text, the largest compute last."""
    with open(GADRE, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["text"] == text]
    runs = [{name: float(value) for name, value in row.items() if name != "text"} for row in rows]
    return sorted(runs, key=flops)


def flops(run: Run) -> float:
    """Training FLOPs."""
    return 6 * run["n_active"] * run["n_tokens"]


def tasks_of(runs: list[Run]) -> list[str]:
    """The columns of accuracies."""
    return [name for name in runs[0] if name.startswith("acc_")]


def logistic_scores(text: str) -> list[Score]:
    """How maps of `fit tasks` predict the runs of the largest compute: of all tasks, and of SUBSET."""
    runs = gadre_runs(text)
    fitted = [run for run in runs if flops(run) < LARGEST]
    left_out = [run for run in runs if flops(run) >= LARGEST]
    scores = []
    for name, tasks in (("46", tasks_of(runs)), ("17", [f"acc_{task}" for task in SUBSET])):
        maps = fit.tasks(fitted, tasks=tasks)
        mean = {task: float(np.mean([run[task] for run in fitted])) for task in maps.left_out}
        predicted = []
        inside = []
        for run in left_out:
            rows = {row.task: row for row in maps.expect(run["loss"])}
            predicted.append([rows[task].accuracy if task in rows else mean[task] for task in tasks])
            ends = {task: rows[task].interval for task in tasks if task in rows}
            inside += [low <= run[task] <= high for task, (low, high) in ends.items()]
        scores.append(_score(text, FORM, name, left_out, tasks, predicted, float(np.mean(inside))))
    return scores


def exponential_scores(text: str) -> list[Score]:
    """How the paper's own form predicts them, fitted to each task of the same runs."""
    runs = gadre_runs(text)
    fitted = [run for run in runs if flops(run) < LARGEST]
    left_out = [run for run in runs if flops(run) >= LARGEST]
    scores = []
    for name, tasks in (("46", tasks_of(runs)), ("17", [f"acc_{task}" for task in SUBSET])):
        columns = [exponential(fitted, task, [run["loss"] for run in left_out]) for task in tasks]
        predicted = np.transpose(columns).tolist()
        score = _score(text, EXPONENTIAL, name, left_out, tasks, predicted, float("nan"))
        means = [run | dict(mean=float(np.mean([run[task] for task in tasks]))) for run in fitted]
        of_mean = exponential(means, "mean", [run["loss"] for run in left_out])
        measured = [np.mean([run[task] for task in tasks]) for run in left_out]
        scores.append(dataclasses.replace(score, average=float(np.mean(np.abs(np.subtract(of_mean, measured))))))
    return scores


def exponential(fitted: list[Run], task: str, losses: list[float]) -> list[float]:
    """Accuracies of a task at these losses by floor + k exp(-rate loss), cut to 0 and 1."""
    loss = np.array([run["loss"] for run in fitted])
    accuracy = np.array([run[task] for run in fitted])

    def curve(at: np.ndarray, floor: float, log_height: float, rate: float) -> np.ndarray:
        return floor + np.exp(log_height - rate * (at - loss.min()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = None
        for rate in (0.5, 1.5, 4.0):
            start = (accuracy.min(), np.log(max(np.ptp(accuracy), 1e-3)), rate)
            bounds = ((-1.0, -20.0, 1e-3), (1.0, 3.0, 50.0))
            coefficients, _ = curve_fit(curve, loss, accuracy, p0=start, bounds=bounds, max_nfev=5000)
            squares = np.sum((accuracy - curve(loss, *coefficients)) ** 2)
            if best is None or squares < best[0]:
                best = (squares, coefficients)
    assert best is not None
    return [float(x) for x in np.clip(curve(np.array(losses), *best[1]), 0, 1)]


def _score(
    text: str, form: str, name: str, left_out: list[Run], tasks: list[str], predicted: list[list[float]], holds: float
) -> Score:
    """The score of predictions [runs][tasks]."""
    measured = np.array([[run[task] for task in tasks] for run in left_out])
    errors = np.array(predicted) - measured
    return Score(
        text=text,
        form=form,
        tasks=name,
        left_out=len(left_out),
        error=float(np.mean(np.abs(errors))),
        bias=float(np.mean(errors)),
        holds=holds,
        average=float(np.mean(np.abs(errors.mean(axis=1)))),
    )


def clark_runs(router: str) -> list[Run]:
    """Clark's dense runs and those of one router, with scores exp(-loss) of the three other texts."""
    runs = []
    with open(CLARK, newline="") as file:
        for row in csv.DictReader(file):
            is_other = (
                row["router"] not in ("Dense", router) or row["top_k"] != "1" or row["routing_frequency"] != "0.5"
            )
            losses = {name: row[f"loss_{name}"] for name in ("lambada", "c4", "pile")}
            if is_other or not row["loss"] or not all(losses.values()):
                continue
            run = {name: float(row[name]) for name in ("n_active", "n_tokens", "n_experts", "loss")}
            run["loss_c4"] = float(losses["c4"])
            runs.append(run | {f"acc_{name}": float(np.exp(-float(loss))) for name, loss in losses.items()})
    return runs


def clark_maps(router: str, loss: str) -> TaskMaps:
    """Maps of the scores of Clark's runs from a loss, with 0 as chance level."""
    runs = [run | dict(loss=run[loss]) for run in clark_runs(router)]
    return fit.tasks(runs, chance={f"acc_{name}": 0.0 for name in ("lambada", "c4", "pile")})


def make_table(clone: pathlib.Path) -> None:
    """Writes gadre2024.csv from a clone of mlfoundations/scaling."""
    rows = []
    for path in sorted((clone / "exp_data" / "models").glob("*.json")):
        model = json.loads(path.read_text())
        evaluation = json.loads((clone / "exp_data" / "evals" / f"evaluation_{path.stem}_heavy.json").read_text())
        (loss,) = [result["loss"] for result in model["results"] if "c4_val" in result["val_data"][0]]
        parameters = model["hyperparameters"]
        row = dict(
            text=NAMES_OF_TEXTS[model["dataset_name"]],
            n_active=parameters["params"],
            n_tokens=parameters["tokens"],
            loss=f"{loss:.5f}",
        )
        accuracies = evaluation["eval_metrics"]["icl"]
        rows.append(row | {f"acc_{task}": f"{accuracies[task]:.5g}" for task in sorted(accuracies)})
    with open(GADRE, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(_: list[str]) -> None:
    if flags.FLAGS.clone:
        make_table(pathlib.Path(flags.FLAGS.clone))
        print(f"written to {GADRE}")
        return
    print("text         form         tasks  left out  error    bias  holds  average")
    for text in TEXTS:
        for score in logistic_scores(text) + exponential_scores(text):
            holds = "-" if np.isnan(score.holds) else f"{score.holds:.0%}"
            print(
                f"{score.text:12} {score.form:12} {score.tasks:>5}  {score.left_out:8d}  {score.error:.3f}  "
                f"{score.bias:+.3f}  {holds:>5}  {score.average:7.3f}",
                flush=True,
            )
    print("\nClark et al.: nats of loss that a doubling of E is worth at equal loss; positive: mixtures score worse")
    for router in ROUTERS:
        for loss in ("loss", "loss_c4"):
            for task in clark_maps(router, loss).tasks:
                shift = task.shift
                assert shift is not None and shift.p_value is not None
                low, high = shift.interval
                print(
                    f"  {router:7} {loss:7} to {task.task.removeprefix('acc_'):8} {shift.nats:+.4f} "
                    f"({low:+.4f} to {high:+.4f}), p {shift.p_value:.0e}",
                    flush=True,
                )


if __name__ == "__main__":
    flags.DEFINE_string("clone", None, "Folder of a clone of mlfoundations/scaling, to make the table again.")
    app.run(main)
