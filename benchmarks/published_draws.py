"""Draws for published laws whose grid of runs is public: writes fit/laws/draws/NAME.json for each of them.

    python -m benchmarks.published_draws [--laws=joint-moe-2025,...] [--out=DIR]

A parametric bootstrap: losses are simulated on the published grid by the published law with errors of log loss, and the
law is fitted to them again from its published coefficients. The authors' own draws are not public; these are
labelled as simulated from the published grid.

**Errors.** The joint law's paper prints RMSEs: 0.0062 on the runs fitted, 0.0039 on the 30 of lowest loss, which it
holds out. They are taken as the size of normal errors of log loss. Read as nats, which the output also shows, they are
a third of that. The losses of the other laws' runs are public. There, runs of the grid are drawn anew with replacement,
each with its own residual around a fit to all of them. For Chinchilla's refit that gives the standard errors that its
paper prints; normal errors of one size give half of them.

**Widened.** The paper's Table 5 has intervals of the compute-optimal N and D, of 100 fits to 80% of the runs each.
Simulated runs that are resampled in the same way give intervals 2 to 4 times narrower. More noise would also widen the
losses, which the RMSEs contradict. So only what Table 5 shows is widened, where the optimum lies: at given FLOPs and
experts, what a draw says of other sizes than the law's best, compared with that one. It is multiplied by the least
factor at which none of the 18 rows is narrower by more than 1.5 times.

**Centred predictions.** Refits of a law that its grid does not identify are biased: the median E_max of the joint law
is far above the printed one. A coefficient means nothing alone, so none is corrected. Instead each draw's predictions
over a grid of questions are moved by the median difference of all draws from the published law, and widened. The draw
is the law of the same form that is fitted to these. The median of the draws' predictions is thus the published law's,
but for what the form cannot follow; the output says how much that is.

It takes some 5 minutes on two cores.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import csv
import dataclasses
import itertools
import json
import pathlib

import numpy as np
from absl import app, flags

from benchmarks.mixture_laws import clark_runs
from fit.aliases import Array, ByName
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitting import search
from fit.fitting.problem import Problem, Settings, prepare
from fit.model.architecture import TRAINING
from fit.planning.search.best_size import compute_optimal
from fit.table.runs import Runs, read_runs, subset
from fit.table.table import Table, read

ROOT = pathlib.Path(__file__).parents[1]
ROUTERS = {"clark-2022-sbase": "S-Base", "clark-2022-rl": "RL-R", "clark-2022-hash": "Hash"}
ALL = ["joint-moe-2025", "joint-moe-2025-as-printed", *ROUTERS, "chinchilla-2022", "chinchilla-refit-2024"]
FOLDER = ROOT / "fit" / "laws" / "draws"
DRAWS = 200
SEED = 0
DIGITS = 7  # significant ones of a coefficient
APPENDIX_H = ROOT / "tests/data/joint_moe_appendix_h.csv"
CHINCHILLA = ROOT / "tests/data/chinchilla_svg_245.csv"
CLARK = ROOT / "benchmarks/tables/mixtures/clark2022.csv"
RMSE_FITTED = 0.0062  # Sec. 5.2 of the joint law's paper
RMSE_HELD_OUT = 0.0039
HELD_OUT = 30  # runs of lowest loss
HUBER = {"joint": 1e-2, "chinchilla": 1e-3, "clark": 1e-2}
OUTLIERS = 5  # the highest losses of Chinchilla's 245 points, which its refit leaves out
RESAMPLES = 100  # of 80% of the runs, as Table 5 has them
SIMULATIONS = 10  # of the runs that are resampled
NARROWER = 1.5  # a printed width of Table 5 over ours from which on ours is widened
WIDENING_ROUNDS = 3
CENTRING_ROUNDS = 3
UNBOUNDED = 1e3  # Huber delta of the fits to moved predictions: least squares
# The questions: budgets and, at each, sizes as multiples of the published law's best; the middle one is the best.
BUDGETS = np.geomspace(1e18, 1e25, 8)
MULTIPLES = 2.0 ** np.arange(-3, 4)
LARGEST = 1e11  # active parameters, of a law that knows no budget

TABLE_5_FLOPS = (1e20, 1e21, 1e22)
TABLE_5_EXPERTS = (1, 2, 4, 8, 16, 32)
# Table 5 of the joint law's paper, for each FLOPs and number of experts: 10th and 90th percentile of N, then of D, in
# billions.
TABLE_5 = np.array(
    [
        [(1.5, 2.1, 7.9, 11.1), (1.4, 1.8, 9.1, 12.1), (1.2, 1.6, 10.3, 14.1)]
        + [(0.94, 1.5, 11.4, 17.7), (0.7327, 1.3, 12.6, 22.8), (0.5595, 1.2, 13.7, 29.8)],
        [(4.5, 7.8, 21.4, 37.3), (4.1, 7.3, 22.7, 40.9), (3.5, 7.0, 23.7, 47.6)]
        + [(2.8, 6.8, 24.7, 60.1), (2.0, 6.6, 25.4, 81.8), (1.6, 6.5, 25.7, 104.1)],
        [(13.3, 30.0, 55.5, 125.3), (12.1, 30.0, 55.6, 137.3), (10.3, 30.6, 54.5, 161.4)]
        + [(8.0, 31.5, 52.9, 207.2), (5.9, 32.9, 50.6, 284.4), (4.4, 34.5, 48.4, 380.6)],
    ]
)  # [budgets, experts, 4]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A published law, the runs that it was fitted to, and how far these scatter.

    Attributes:
      law: The published law.
      runs: The runs fitted, with the losses that the law predicts.
      noise: Standard deviation of the log loss of each run, [n_runs].
      residuals: Of the public losses around a fit to them, in log loss, [n_runs]; None where no losses are public.
      input: The file of the runs.
      noise_from: What the noise was taken from, in words.
      held_out: The runs of lowest loss, which the paper does not fit, with the losses that the law predicts.
      widened: By what the distance of a draw's optimum from the law's is multiplied.
    """

    law: Law
    runs: Runs
    noise: Array
    residuals: Array | None
    input: pathlib.Path
    noise_from: str
    held_out: Runs | None = None
    widened: float = 1.0

    @property
    def params(self) -> Array:
        """The published law's `params`, [n]."""
        return self.law.form.to_params(self.law.coefficients)

    def problem(self) -> Problem:
        """The problem of fitting the law to the runs."""
        return prepare(self.law.form, self.runs, Settings(huber_delta=HUBER[self.law.form.name]))

    def errors(self, rng: np.random.Generator, count: int) -> Array:
        """Errors of log loss, [count, n_runs]."""
        return self.noise * rng.normal(size=(count, len(self.runs)))


def joint_grid(name: str, in_nats: bool = False) -> Grid:
    """The runs of Appendix H without those held out.

    Args:
      name: Of the preset.
      in_nats: Whether to read the printed RMSEs as nats.
    """
    law = load(name)
    with open(APPENDIX_H, newline="") as file:
        rows = list(csv.DictReader(file))
    names = dict(n_active="N_act", n_tokens="D", n_experts="E")
    columns = {column: np.array([float(row[printed]) for row in rows]) for column, printed in names.items()}
    runs = predicted_runs(law, columns)
    order = np.argsort(runs.loss, kind="stable")
    fitted = subset(runs, np.sort(order[HELD_OUT:]))
    noise = np.full(len(fitted), RMSE_FITTED)
    if in_nats:
        noise = noise / fitted.loss
    noise_from = "the RMSE that the paper prints, as log loss"
    return Grid(law, fitted, noise, None, APPENDIX_H, noise_from, subset(runs, order[:HELD_OUT]))


def public_grid(name: str) -> Grid:
    """The grid of a law whose runs are public with their losses, which give the errors."""
    law = load(name)
    if name in ROUTERS:
        path = CLARK
        rows = clark_runs(ROUTERS[name])
        measured = read_runs(read({column: [row[column] for row in rows] for column in rows[0]}), law.form.columns)
    else:
        path = CHINCHILLA
        measured = read_runs(str(CHINCHILLA), law.form.columns)
        measured = subset(measured, np.argsort(measured.loss, kind="stable")[:-OUTLIERS])
    problem = prepare(law.form, measured, Settings(huber_delta=HUBER[law.form.name]))
    fitted = search.fit(problem).params
    residuals = np.log(measured.loss) - law.form.log_loss(fitted, measured.columns)
    noise = np.full(len(measured), np.std(residuals))
    runs = predicted_runs(law, {column: measured.columns[column] for column in law.form.columns})
    return Grid(law, runs, noise, residuals, path, "the public runs' residuals around a fit to them")


def grid_of(name: str) -> Grid:
    """The grid of a published law."""
    if name.startswith("joint"):
        return joint_grid(name)
    return public_grid(name)


def predicted_runs(law: Law, columns: ByName) -> Runs:
    """Runs with the losses that the law predicts for columns {name: [n_runs]}."""
    loss = law.loss(law.coefficients, columns)
    return Runs(law.name, dict(columns), loss, Table(law.name, {}, []))


def simulated_fits(grid: Grid, rng: np.random.Generator, count: int = DRAWS) -> Array:
    """`params` [count, n] of the law fitted to simulated losses, each from the published coefficients."""
    problem = grid.problem()
    start = problem.centre(grid.params[None])
    if grid.residuals is not None:
        n_runs = len(grid.runs)
        times_drawn = rng.multinomial(n_runs, np.full(n_runs, 1 / n_runs), size=count)
        log_loss = np.log(grid.runs.loss) + grid.residuals
        problem = problem.with_data(log_loss=problem.padded(log_loss))
        return search.best_of_each(problem, start, root_weight=problem.padded(np.sqrt(times_drawn)))
    log_loss = np.log(grid.runs.loss) + grid.errors(rng, count)
    return search.best_of_each(problem, start, log_loss=problem.padded(log_loss))


def resampled_fits(grid: Grid, rng: np.random.Generator) -> Array:
    """`params` [SIMULATIONS, RESAMPLES, n] of fits to 80% of simulated runs, drawn without replacement."""
    problem = grid.problem()
    n_runs = len(grid.runs)
    log_loss = np.log(grid.runs.loss) + np.repeat(grid.errors(rng, SIMULATIONS), RESAMPLES, axis=0)
    drawn = np.zeros((SIMULATIONS * RESAMPLES, n_runs))
    for row in drawn:
        row[rng.choice(n_runs, round(0.8 * n_runs), replace=False)] = 1
    start = problem.centre(grid.params[None])
    params = search.best_of_each(problem, start, log_loss=problem.padded(log_loss), root_weight=problem.padded(drawn))
    return params.reshape(SIMULATIONS, RESAMPLES, -1)


def questions(grid: Grid) -> dict[str, Array]:
    """Columns [groups, sizes] of the models about which draws are asked: at the same FLOPs and experts in each group,
    the law's best size in the middle. A law that knows no tokens has groups of one model."""
    names = grid.law.form.columns
    experts = np.unique(grid.runs.n_experts)
    if "n_tokens" not in names:
        sizes = np.geomspace(grid.runs.n_active.min(), LARGEST, len(BUDGETS))
        n_active, n_experts = (values.reshape(-1, 1) for values in np.meshgrid(sizes, experts))
        return dict(n_active=n_active, n_experts=n_experts)
    flops, n_experts = (values.reshape(-1, 1) for values in np.meshgrid(BUDGETS, experts))
    best = compute_optimal(*grid.law.chinchilla_coefficients_at(n_experts)[:4], flops)[0]
    n_active = best * MULTIPLES
    asked = dict(n_active=n_active, n_tokens=flops / (TRAINING * n_active), n_experts=n_experts + 0 * n_active)
    return {name: asked[name] for name in names}


def predictions(grid: Grid, params: Array) -> tuple[Array, Array]:
    """Log losses of the questions by fits [draws, n], [draws, groups, sizes]; and by the published law."""
    form = grid.law.form
    columns = questions(grid)
    return form.log_loss(params.T[:, :, None, None], columns), form.log_loss(grid.params[:, None, None], columns)


def bias(grid: Grid, params: Array) -> tuple[Array, Array]:
    """Of fits [draws, n]: the median difference of their log losses from the published law's, [groups, sizes]; and half
    the width of the interval from the 10th to the 90th percentile."""
    predicted, published = predictions(grid, params)
    low, median, high = np.percentile(predicted, (10, 50, 90), axis=0)
    return median - published, (high - low) / 2


def moved(grid: Grid, params: Array) -> Array:
    """Log losses of the questions by fits [draws, n], moved to the published law and widened, as the module says."""
    predicted, published = predictions(grid, params)
    deviation = predicted - np.median(predicted, axis=0)
    middle = deviation.shape[-1] // 2
    at_best = deviation[..., middle : middle + 1]
    return published + at_best + grid.widened * (deviation - at_best)


def centred(grid: Grid, params: Array) -> Array:
    """The laws [draws, n] fitted to the moved predictions of fits [draws, n]."""
    form = grid.law.form
    target = moved(grid, params)
    half_width = np.ptp(np.percentile(target, (10, 90), axis=0), axis=0) / 2
    columns = {name: values.ravel() for name, values in questions(grid).items()}
    runs = Runs(grid.law.name, columns, np.exp(target[0].ravel()), Table(grid.law.name, {}, []))
    runs.weights = np.square(half_width.min() / half_width).ravel()
    problem = prepare(form, runs, Settings(huber_delta=UNBOUNDED))
    for _ in range(CENTRING_ROUNDS):
        log_loss = target.reshape(len(params), -1)
        trial = problem.with_data(log_loss=problem.padded(log_loss))
        x, _, _ = search.polish(trial, problem.centre(params), search.ROUNDS_OF_EACH, "each")
        params = problem.params_of(x)
        target = target - bias(grid, params)[0]
    return params


def held_out_error(grid: Grid, params: Array) -> float:
    """Root mean square error of log loss that fits [draws, n] expect on the runs held out, whose own errors are of
    RMSE_HELD_OUT."""
    assert grid.held_out is not None
    predicted = grid.law.form.log_loss(params.T[:, :, None], grid.held_out.columns)
    of_law = np.sqrt(np.mean(np.square(predicted - np.log(grid.held_out.loss))))
    return float(np.hypot(of_law, RMSE_HELD_OUT))


def optimal_sizes(grid: Grid, params: Array) -> Array:
    """Compute-optimal n_active [budgets, experts, ...] of `params` [..., n], as Table 5 has its rows."""
    form = grid.law.form
    values = np.moveaxis(form.to_coefficients(params), -1, 0)
    sizes = []
    for flops, n_experts in itertools.product(TABLE_5_FLOPS, TABLE_5_EXPERTS):
        reduced = grid.law.chinchilla_coefficients_at(n_experts, dict(zip(form.names, values, strict=True)))
        sizes.append(compute_optimal(*reduced[:4], flops)[0])
    return np.reshape(sizes, (len(TABLE_5_FLOPS), len(TABLE_5_EXPERTS), *np.shape(params)[:-1]))


def log_widths(sizes: Array) -> Array:
    """Logarithm of the 90th over the 10th percentile of sizes [..., draws]; draws without an optimum do not count.

    At given FLOPs D is FLOPs / (6 N), so D's interval has the same width.
    """
    low, high = np.nanpercentile(sizes, (10, 90), axis=-1)
    return np.log(high / low)


def printed_log_widths() -> Array:
    """The widths of Table 5, [budgets, experts]: means of those of N and D, which rounding makes differ."""
    return np.log(TABLE_5[..., 1] * TABLE_5[..., 3] / (TABLE_5[..., 0] * TABLE_5[..., 2])) / 2


def table_5_ratios(grid: Grid) -> Array:
    """Printed widths of Table 5 over those of simulated runs that are resampled as it does, [budgets, experts]."""
    widths = []
    for fits in resampled_fits(grid, np.random.default_rng([SEED, 1])):
        drawn = fits if grid.widened == 1 else centred(grid, fits)
        widths.append(log_widths(optimal_sizes(grid, drawn)))
    return printed_log_widths() / np.mean(widths, axis=0)


def geometric_mean(values: Array) -> float:
    """Of positive values."""
    return float(np.exp(np.mean(np.log(values))))


def print_ratios(title: str, ratios: Array) -> None:
    """Prints printed over simulated widths, a line for each budget."""
    print(f"{title}: printed width of Table 5 over ours, E = {', '.join(map(str, TABLE_5_EXPERTS))}")
    for flops, row in zip(TABLE_5_FLOPS, ratios, strict=True):
        print(f"  {flops:.0e}: {', '.join(f'{value:.2f}' for value in row)}")
    print(f"  geometric mean {geometric_mean(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}", flush=True)


def widened(grid: Grid) -> Grid:
    """The joint law's grid, widened so much that no width of Table 5 is more than NARROWER times ours; prints both."""
    print_ratios(f"{grid.law.name}, RMSE as nats", table_5_ratios(joint_grid(grid.law.name, in_nats=True)))
    for _ in range(WIDENING_ROUNDS):
        ratios = table_5_ratios(grid)
        print_ratios(f"{grid.law.name}, RMSE as log loss, widened {grid.widened:g} times", ratios)
        if ratios.max() <= NARROWER:
            break
        factor = grid.widened * ratios.max() / NARROWER
        grid = dataclasses.replace(grid, widened=float(np.ceil(10 * factor) / 10))
    return grid


def main(argv: list[str]) -> None:
    """Writes the draws of every law of --laws."""
    out = pathlib.Path(flags.FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    widening = None
    for name in flags.FLAGS.laws:
        grid = grid_of(name)
        if name.startswith("joint"):
            if widening is None:
                widening = widened(grid).widened
            grid = dataclasses.replace(grid, widened=widening)
        fits = simulated_fits(grid, np.random.default_rng([SEED, 0]))
        params = centred(grid, fits)
        before, _ = bias(grid, fits)
        after, half_width = bias(grid, params)
        off = np.abs(after / half_width)
        print(
            f"{name}: {len(grid.runs)} runs, noise {np.mean(grid.noise):.4f}, widened {grid.widened:g} times; the "
            f"median over draws is within {np.abs(after).max():.2%} of the published loss ({np.abs(before).max():.2%} "
            f"before centring); in half-widths, {off.max():.2f} at most and {off.mean():.2f} on average",
            flush=True,
        )
        if grid.held_out is not None:
            expected = [held_out_error(grid, drawn) for drawn in (fits, params)]
            print(f"  on the runs held out: {expected[0]:.2%}, widened {expected[1]:.2%}; printed {RMSE_HELD_OUT:.2%}")
        write(out / f"{name}.json", grid, params)


def write(path: pathlib.Path, grid: Grid, params: Array) -> None:
    """Writes the draws [draws, n] of a law, a row on a line."""
    rows = []
    for row in grid.law.form.to_coefficients(params):
        rows.append([float(f"{value:.{DIGITS}g}") for value in row])
    head = dict(
        what="draws simulated from the published grid of runs by the published law; not the authors' own",
        command="python -m benchmarks.published_draws",
        input=str(grid.input.relative_to(ROOT)),
        runs=len(grid.runs),
        seed=SEED,
        noise=float(f"{np.mean(grid.noise):.3g}"),
        noise_from=grid.noise_from,
        widened=grid.widened,
        coefficients=grid.law.coefficients,
    )
    text = json.dumps(head, indent=1)[:-2] + ',\n "draws": [\n  '
    text += ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(text + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    flags.DEFINE_string("out", str(FOLDER), "Folder to write to.")
    flags.DEFINE_list("laws", ALL, "Published laws to make draws for.")
    app.run(main)
