"""Every published form of a law of mixtures, refitted to public runs of mixtures and scored on runs it has not seen.

    python -m benchmarks.mixture_laws [--forms=clark,joint] [--out=DIR]

Tables (benchmarks/tables/mixtures): the final losses of Clark et al. 2022, six sizes by E = 1 to 512 by three routers,
all on 130B tokens; marin's mixtures of E = 64, 128 and 256; marin's 67B model and its three anchors. What is held out:

  largest         the models of 1.3B active parameters
  many experts    the models of 128, 256 and 512 experts
  other router    the runs of the other two routers: the law of one predicts them

Printed for each form and cut, in % of the loss:

  error   root mean square;   bias  mean, positive where the law is too high
  holds   share of the runs in the nominal 80% interval of a new run;   width  its median half-width

`line` is no law: at each size it is a straight line in ln E through the two largest E that were seen.

All of Clark's runs have about the same number of tokens, so a law's data term is part of its floor here. What remains
of the joint law is the size term of its Eq. 6. The coupled law is then the same, and so is the efficiency leverage of
Ling (arXiv 2507.17702): there, E multiplies compute by a power of Ê whose exponent is linear in ln C.

The fine-grained and the comprehensive law are left out. They read granularity, top_k and shared experts, which do not
vary in these runs. A law in the folder that FIT_LAWS names can be given to --forms, if its columns are among COLUMNS.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import concurrent.futures
import csv
import dataclasses
import math
import multiprocessing
import pathlib

import numpy as np
from absl import app, flags

import fit
from fit.laws import FORMS

TABLES = pathlib.Path(__file__).parent / "tables" / "mixtures"
ROUTERS = ("S-Base", "RL-R", "Hash")
LARGEST = 1e9  # active parameters: only Clark's largest models have more
MANY = 128  # experts
DRAWS = 50
COLUMNS = ("n_active", "n_total", "n_tokens", "n_experts", "sparsity", "top_k", "shared_share")
# coefficients that runs of one number of tokens do not identify: with these the data term is negligible
FIXED = {
    "clark": {},
    "joint": dict(b=1e-6, beta=-1.0, omega=0.0, zeta=0.0),
    "sparsity": dict(b=1e-6, beta=1.0),
}
LINE = "line"
FLOORS = (0.0, 1.2, 1.6, 1.8)  # nats per token, of a power law through marin's anchors

Runs = list[dict[str, float]]  # a run as {column: value}, with its loss


@dataclasses.dataclass(frozen=True)
class Cut:
    """A question: what a law of the runs `fitted` says of the runs `held_out`."""

    name: str
    source: str
    fitted: Runs
    held_out: Runs


@dataclasses.dataclass(frozen=True)
class Score:
    """How a form answers a cut; shares of the loss. holds and width: NaN for what has no intervals."""

    form: str
    cut: str
    source: str
    fitted: int
    held_out: int
    error: float
    bias: float
    holds: float
    width: float


def clark_runs(router: str) -> Runs:
    """Clark's dense runs and those of one router, with every second block a mixture and one expert a token."""
    runs = []
    with open(TABLES / "clark2022.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["router"] not in ("Dense", router) or row["top_k"] != "1" or row["routing_frequency"] != "0.5":
                continue
            run = {name: float(row[name]) for name in ("n_active", "n_total", "n_tokens", "n_experts", "loss")}
            runs.append(run | dict(sparsity=1 - 1 / run["n_experts"], top_k=1.0, shared_share=0.0))
    return runs


def cuts() -> list[Cut]:
    """All questions on Clark's runs."""
    runs_of = {router: clark_runs(router) for router in ROUTERS}
    questions = []
    for router, runs in runs_of.items():
        small = [run for run in runs if run["n_active"] < LARGEST]
        large = [run for run in runs if run["n_active"] >= LARGEST]
        few = [run for run in runs if run["n_experts"] < MANY]
        many = [run for run in runs if run["n_experts"] >= MANY]
        others = [run for other in ROUTERS if other != router for run in runs_of[other] if run["n_experts"] > 1]
        questions.append(Cut("largest", router, small, large))
        questions.append(Cut("many experts", router, few, many))
        questions.append(Cut("other router", router, runs, others))
    return questions


def table(runs: Runs) -> dict[str, list[float]]:
    """The runs by column, as fit reads them."""
    return {name: [run[name] for run in runs] for name in (*COLUMNS, "loss")}


def score(form: str, cut: Cut) -> Score | None:
    """How a form fitted to the cut's runs predicts those held out.

    None where it cannot be fitted: too few runs for a law, or for a line no second number of experts at a size.
    """
    loss = np.array([run["loss"] for run in cut.held_out])
    holds = width = math.nan
    if form == LINE:
        predicted = np.array([line(cut.fitted, run) for run in cut.held_out])
        if not np.isfinite(predicted).all():
            return None
    else:
        fixed = FIXED.get(form, {})
        try:
            law = fit.law(table(cut.fitted), form=form, fix=fixed, bootstrap=DRAWS)
        except fit.UserError as error:
            print(f"{form}, {cut.name}, {cut.source}: {error}", flush=True)
            return None
        held_out = table(cut.held_out)
        columns = {name: np.array(held_out[name]) for name in law.form.columns}
        predicted = np.asarray(law.predict(**columns))
        low, high = law.predict_interval(**columns, new_run=True)
        holds = float(np.mean((low <= loss) & (loss <= high)))
        width = float(np.median(np.log(high / low)) / 2)
    error = np.log(predicted / loss)
    return Score(
        form=form,
        cut=cut.name,
        source=cut.source,
        fitted=len(cut.fitted),
        held_out=len(loss),
        error=float(np.sqrt(np.mean(error**2))),
        bias=float(np.mean(error)),
        holds=holds,
        width=width,
    )


def line(runs: Runs, wanted: dict[str, float]) -> float:
    """The loss by a straight line in ln E through the two largest E among runs of the same size; NaN without two E."""
    same_size = [run for run in runs if run["n_active"] == wanted["n_active"]]
    experts = sorted({run["n_experts"] for run in same_size})
    if len(experts) < 2:
        return math.nan
    ends = []
    for n_experts in experts[-2:]:
        losses = [run["loss"] for run in same_size if run["n_experts"] == n_experts]
        ends.append(np.mean(losses))
    slope = (ends[1] - ends[0]) / math.log(experts[-1] / experts[-2])
    return float(ends[1] + slope * math.log(wanted["n_experts"] / experts[-1]))


def gains(router: str) -> list[tuple[float, int, float]]:
    """(active parameters, E, share by which the loss falls from E / 2 to E) of each size and E of a router."""
    mean_loss = {}
    runs = clark_runs(router)
    for size in sorted({run["n_active"] for run in runs}):
        for e in sorted({run["n_experts"] for run in runs}):
            losses = [run["loss"] for run in runs if run["n_active"] == size and run["n_experts"] == e]
            if losses:
                mean_loss[size, e] = float(np.mean(losses))
    return [
        (size, int(e), 1 - loss / mean_loss[size, e / 2])
        for (size, e), loss in mean_loss.items()
        if e > 2 and (size, e / 2) in mean_loss
    ]


def marin_experts() -> list[tuple[int, float, float]]:
    """(d_model, predicted loss, measured loss) of marin's mixtures of 256 experts, by a line through 64 and 128."""
    with open(TABLES / "marin_experts.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["top_k"] == "4"]
    losses = {(int(row["d_model"]), int(row["n_experts"])): float(row["loss"]) for row in rows}
    sizes = sorted(d_model for d_model, e in losses if e == 256)
    return [(d, 2 * losses[d, 128] - losses[d, 64], losses[d, 256]) for d in sizes]


def marin_67b() -> tuple[list[tuple[float, float]], float]:
    """([(floor, predicted loss)], measured loss) of marin's 67B model, by a power law of compute above each floor.

    The model has 166 times the compute of the largest of its three anchors.
    """
    with open(TABLES / "marin_67b_anchors.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    anchors = [row for row in rows if row["role"] == "anchor"]
    (target,) = [row for row in rows if row["role"] == "target_step_127500"]
    log_flops = np.log([float(row["flops"]) for row in anchors])
    losses = np.array([float(row["loss"]) for row in anchors])
    predicted = []
    for floor in FLOORS:
        slope, intercept = np.polyfit(log_flops, np.log(losses - floor), 1)
        predicted.append((floor, float(floor + np.exp(intercept + slope * math.log(float(target["flops"]))))))
    return predicted, float(target["loss"])


def main(_: list[str]) -> None:
    forms = flags.FLAGS.forms
    out = flags.FLAGS.out
    unknown = {*forms} - {LINE, *FORMS}
    if unknown:
        raise app.UsageError(f"{', '.join(sorted(unknown))}: forms are {LINE}, {', '.join(FORMS)}")
    questions = [(form, cut) for cut in cuts() for form in forms]
    print("form           cut           router  fitted  left   error    bias  holds  width")
    scores = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for answer in pool.map(score, *zip(*questions, strict=True)):
            if answer is not None:
                scores.append(answer)
                print(in_line(answer), flush=True)
    print("\nHow much a doubling of E to 512 lowers the loss, from the smallest models to the largest (Clark et al.):")
    for router in ROUTERS:
        at_512 = [f"{gain:.2%}" for _, e, gain in gains(router) if e == 512]
        print(f"  {router:7} {', '.join(at_512)}")
    print("\nmarin, 256 experts by a line in ln E through 64 and 128: predicted, measured")
    for d_model, predicted, measured in marin_experts():
        print(f"  d_model {d_model:5d}  {predicted:.4f}  {measured:.4f}  ({predicted / measured - 1:+.2%})")
    predictions, measured = marin_67b()
    print(f"\nmarin's 67B model from its three anchors, 1/166 of its compute; measured {measured:.3f}")
    for floor, predicted in predictions:
        print(f"  a power law above {floor:.1f} nats: {predicted:.3f} ({predicted / measured - 1:+.2%})")
    if out:
        write(scores, pathlib.Path(out))


def in_line(answer: Score) -> str:
    """A line of the printed table."""
    intervals = f"{answer.holds:6.0%} {answer.width:6.2%}" if math.isfinite(answer.width) else f"{'-':>6} {'-':>6}"
    return (
        f"{answer.form:14} {answer.cut:13} {answer.source:7} {answer.fitted:6d} {answer.held_out:5d} "
        f"{answer.error:7.2%} {answer.bias:+7.2%} {intervals}"
    )


def write(scores: list[Score], folder: pathlib.Path) -> None:
    """mixture_laws.csv, and mixture_laws.png: the errors of each form, and what a doubling of E gains."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "mixture_laws.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Score)])
        for answer in scores:
            values = dataclasses.astuple(answer)
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(answer.cut for answer in scores))
    forms = list(dict.fromkeys(answer.form for answer in scores))
    for i, form in enumerate(forms):
        of_form = [answer for answer in scores if answer.form == form]
        heights = [names.index(answer.cut) + 0.15 * (i - (len(forms) - 1) / 2) for answer in of_form]
        left.plot([100 * answer.error for answer in of_form], heights, "o", label=form, alpha=0.8)
    left.set_yticks(range(len(names)), names)
    left.set(xlabel="error, % of the loss", xlim=(0, None), title="runs that the law has not seen")
    left.legend(fontsize="small", loc="lower right")
    for router, marker in zip(ROUTERS, "os^", strict=True):
        for size, color in ((27279360, "#440154"), (132163584, "#21918c"), (1308819456, "#a0da39")):
            points = [(e, 100 * gain) for of_size, e, gain in gains(router) if of_size == size]
            label = f"{size / 1e6:.0f}M active" if router == ROUTERS[0] else None
            right.plot(*zip(*points, strict=True), marker, color=color, label=label, markersize=4)
    right.set(xlabel="E", ylabel="loss, % lower than at E / 2", title="what a doubling of E gains", ylim=(0, None))
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.legend(fontsize="small", loc="lower left")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(folder / "mixture_laws.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    flags.DEFINE_list("forms", [LINE, *FIXED], f"Which of {LINE}, {', '.join(FORMS)}.")
    flags.DEFINE_string("out", None, "Folder for mixture_laws.csv and mixture_laws.png.")
    app.run(main)
