"""The functions of the package `fit`. Their options are those of the commands (signatures.py).

What a function needs is imported when it is called, so that a plan does not wait for what fits or draws.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fit.errors import UserError
from fit.fitting.options import FitOptions
from fit.planning.inputs.options import CompareOptions, PlanOptions
from fit.prediction.options import PredictOptions
from fit.render.plot_options import PlotOptions
from fit.render.report_options import ReportOptions
from fit.signatures import takes_options
from fit.studies.architecture_search.holistic import HolisticOptions
from fit.studies.next_runs.options import NextOptions
from fit.studies.speedup.speedup_of_runs import SpeedupOptions
from fit.studies.surfaces.fit_surfaces import SurfaceOptions
from fit.task_maps.options import TaskOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fit.fitted_law.law import Law
    from fit.planning.plan import Plan
    from fit.planning.several_laws.comparison import Comparison
    from fit.prediction.forecast import Forecast
    from fit.results import Page
    from fit.studies.added_runs.results import AddedRuns
    from fit.studies.architecture_search.result import Holistic
    from fit.studies.next_runs.results import NextRuns
    from fit.studies.speedup.results import BaselineSpeedup, Speedup
    from fit.studies.surfaces.results import Surfaces
    from fit.table.table import Table
    from fit.task_maps.maps import TaskMaps


def read(
    runs: object,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    where: str | Iterable[str] | None = None,
    set: Mapping[str, str] | None = None,
) -> "Table":
    """Reads a table of runs.

    Args:
      runs: A path (.csv, .jsonl, .parquet), a pandas or pyarrow frame, a list of dictionaries, or a dictionary of
        columns.
      columns: {our name: the table's name} of columns that the table calls otherwise, such as {"loss": "val_loss"}.
      units: {column: unit} of columns that are not in nats per token and plain numbers, such as {"loss": "bits"} or
        {"n_active": "millions"}; or a number that values are multiplied by.
      where: Conditions on the rows that count, such as "state=finished", "loss=finite" or "run=last"; several as a
        list, or with commas.
      set: {name: formula} of further columns: a value, or columns and numbers with * and /, such as
        {"n_tokens": "flops/6/n_active"}.

    Returns:
      The table, which every function of this package takes as `runs`.

    Raises:
      UserError: The table cannot be read.
    """
    from fit.table import reading

    return reading.read_with(runs, columns, units, where, set)


def load(law: "Law | str | os.PathLike") -> "Law":
    """Loads a law.

    Args:
      law: A law.json, the name of a published law such as "joint-moe-2025", or a Law, which is returned as it is.

    Raises:
      UserError: There is no such law, or the file is none.
    """
    from fit.fitted_law import law_files

    return law_files.load(law)


def save(law: "Law", path: str | os.PathLike) -> None:
    """Writes a law as a law.json.

    Args:
      law: A law from `fit.law` or `fit.load`.
      path: The file to write.

    Raises:
      UserError: The file cannot be written.
    """
    from fit.fitted_law import law_files

    law_files.save(law, path)


@takes_options
def law(runs: object, form: str | None = None, *, quiet: bool = True, options: FitOptions) -> "Law":
    """Fits a law to runs.

    Args:
      runs: What `fit.read` takes, with n_active, n_tokens, n_experts and loss in nats per token.
      form: Name of the law's form. Default: joint or joint_coupled, whichever predicts the runs of more compute better
        from those of less; with one number of experts chinchilla or chinchilla_coupled.
      quiet: Whether to leave out the progress on stderr.

    Returns:
      The law, with errors, intervals and warnings. Its `to_dict()` is what law.json holds.

    Raises:
      UserError: A value in runs or options cannot be used.
    """
    from fit.fitting import fit_law
    from fit.table import table

    if form is not None:
        options = dataclasses.replace(options, form=form)
    return fit_law.fit_law(table.read(runs), options, quiet)


@takes_options
def predict(law: "Law | str | os.PathLike", runs: object = None, *, options: PredictOptions) -> "Forecast":
    """Predicts the loss of one model, or of each model of a table, in nats per token.

    Args:
      law: A law.
      runs: A table of models, in place of one model; what `fit.read` takes.

    Returns:
      The predictions: `columns`, a value for each model, and `table`, the models with these columns.

    Raises:
      UserError: The law reads a column that is missing, or a value cannot be used.
    """
    from fit.prediction import forecast
    from fit.table import table

    loaded = load(law)
    if runs is not None:
        options.check_no_model()
        return forecast.predict_table(loaded, table.read(runs))
    return forecast.predict_model(loaded, options)


@takes_options
def plan(law: "Law | str | os.PathLike", *, options: PlanOptions) -> "Plan":
    """Plans the best model of a law within limits.

    Example:
      plan = fit.plan("joint-moe-2025", flops=1e22, memory_gb=80)
      plan.best.n_experts, plan.buildable.d_model, plan.to_frame()

    Args:
      law: A law.

    Returns:
      The plan: `optima`, the best model with each number of experts; `best`, one of them; `buildable`, the model to
      train, None where no model of whole blocks is within the limits; `warnings`.

    Raises:
      UserError: A limit cannot be used, or no model is feasible.
    """
    from fit.planning import make_plan

    return make_plan.plan(load(law), options)


@takes_options
def compare(laws: "Sequence[Law | str | os.PathLike] | None" = None, *, options: CompareOptions) -> "Comparison":
    """Compares what several laws answer to one budget, each against its own best dense model.

    Args:
      laws: The laws. Default: five published ones.

    Returns:
      The answers: `laws`, one for each law; `infeasible`, laws without one; `agreement`, how far they lie apart.

    Raises:
      UserError: No law has a feasible model, or a law cannot be planned with.
    """
    from fit.fitted_law import law_files
    from fit.planning import make_comparison
    from fit.planning.several_laws.comparison import LAWS

    return make_comparison.compare([law_files.load(each, "laws") for each in laws or LAWS], options)


@takes_options
def next(law: "Law | str | os.PathLike", runs: object, *, options: NextOptions) -> "NextRuns":
    """Chooses the runs to train next, so that a law's answer becomes surer.

    Args:
      law: A fitted law.
      runs: The runs that it was fitted to; what `fit.read` takes.

    Returns:
      The runs: `trunks`, the models to train with their budgets in tokens; `expected`, how sure the goal is with the
      fitted runs alone, with these runs as well, and with a plain grid.

    Raises:
      UserError: The law was fitted to other runs, or no run within the budget is worth it.
    """
    from fit.studies.next_runs import suggest

    return suggest.suggest(load(law), runs, options)


def add(
    law: "Law | str | os.PathLike",
    run: str | os.PathLike,
    runs: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    mix_corpora: bool = False,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> "AddedRuns":
    """Adds a finished run to a table of runs, and fits the law to all of them as it was fitted before.

    Args:
      law: The law that predicts the run. A published law is not fitted again.
      run: A workdir of jmoe.train, or a table of runs.
      runs: The table to add to (.csv, .jsonl, .parquet).
      out: The law.json to write the new law to.
      mix_corpora: Whether to add the run of another text.
      columns: {our name: the table's name} of columns that the table calls otherwise. Default: those of the law's fit.
      units: {column: unit} of the table's columns that are not in nats or plain numbers. A column that is not named
        has the unit of the law's fit.

    Returns:
      `runs`: for each added run the predicted and the measured loss, and whether that lies in the interval; `plans`:
      the best model of the run's budget and of ten times that, before and after.

    Raises:
      UserError: The table has the run already, or the run's text is another one. Nothing is written then.
    """
    from fit.studies.added_runs import add as adding

    path = None if out is None else str(out)
    return adding.add(load(law), str(run), str(runs), path, mix_corpora, columns, units)


@takes_options
def speedup(
    law: "Law | str | os.PathLike | None" = None, runs: object = None, *, options: SpeedupOptions
) -> "Speedup | BaselineSpeedup":
    """Computes how many times the compute a law's recipe, or a baseline, needs for the losses of runs.

    Example:
      fit.speedup(runs="both.csv", baseline={"n_experts": 64}, by="time").factor

    Args:
      law: A law. Default: the runs are compared with the baseline.
      runs: The runs, with a baseline also its runs at several budgets; what `fit.read` takes.

    Returns:
      `runs`: each with the compute that the law's recipe or the baseline needs for its loss, and how many times its own
      that is; `answer`: the sentence.

    Raises:
      UserError: Neither a law nor a baseline is given, or both. The law cannot say what compute a loss takes, or
        reaches none of these losses. The baseline has too few runs.
    """
    from fit.studies.speedup.speedup_of_runs import speedup_of_runs

    if runs is None:
        raise UserError("--runs is missing: a table with n_active, n_tokens, n_experts and loss")
    return speedup_of_runs(None if law is None else load(law), runs, options)


@takes_options
def tasks(runs: object, *, options: TaskOptions) -> "TaskMaps":
    """Maps loss to the accuracies of tasks, and asks whether the number of experts shifts the maps.

    Args:
      runs: What `fit.read` takes, with loss and accuracies from 0 to 1.

    Returns:
      The maps: `tasks`, one for each task; `expect(loss)`, the accuracies of a model; `shift`, what E does at equal
      loss; `held_out`, how well runs were predicted; `save(path)` writes what `fit.plan` takes as `task_map`.

    Raises:
      UserError: There is no such task, too few runs, or an accuracy that is no share.
    """
    from fit.table import table
    from fit.task_maps import fit_maps

    return fit_maps.fit_tasks(table.read(runs), options)


@takes_options
def surface(runs: object, *, options: SurfaceOptions) -> "Surfaces":
    """Fits the loss over total parameters and sparsity at each budget of runs of equal FLOPs.

    Args:
      runs: What `fit.read` takes, with n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k.

    Returns:
      `budgets`: for each budget the surface, and its best size and sparsity with intervals by refits.

    Raises:
      UserError: No budget has enough runs.
    """
    from fit.studies.surfaces.fit_surfaces import fit_surfaces

    return fit_surfaces(runs, options)


@takes_options
def holistic(
    runs: object = None,
    width_runs: object = None,
    rank: object = None,
    refit: object = None,
    *,
    options: HolisticOptions,
) -> "Holistic":
    """Finds the complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026.

    Args:
      runs: Runs of several M/N_a and N/N_a, to fit their laws; what `fit.read` takes. Default: the published laws.
      width_runs: Runs of several widths, to fit the law of d_model.
      rank: Runs of several architectures, each at several widths: do these keep their rank?
      refit: Runs of several sizes at each budget, to fit Eq. 2 again.

    Returns:
      `architecture`, `fit`, `control`, `rank` and `refit`; None where nothing asks for a part.

    Raises:
      UserError: Nothing is asked for, or no model can be built.
    """
    from fit.studies.architecture_search import holistic, search_runs

    ratio_runs = None if runs is None else search_runs.read(runs)
    runs_of_widths = None if width_runs is None else search_runs.read(width_runs)
    return holistic.holistic(ratio_runs, runs_of_widths, rank, refit, options)


@takes_options
def plot(law: "Law | str | os.PathLike", runs: object = None, *, options: PlotOptions) -> "Figure":
    """Draws a law: by default the loss against training compute for each number of experts, and the runs.

    Example:
      fit.plot(law, "runs.csv").savefig("law.pdf")

    Args:
      law: A law.
      runs: Runs to draw as points, held-out ones hollow; what `fit.read` takes.

    Returns:
      A matplotlib Figure, which a notebook shows. Lines are dashed where no run reaches, and the band is percentiles of
      the bootstrap's fits.

    Raises:
      UserError: The law or the runs do not allow the figure.
    """
    from fit.planning.inputs.options import experts_to_compare
    from fit.render import figures
    from fit.render.figures.draw import draw

    options.check_figures([options.figure], has_runs=runs is not None)
    loaded = load(law)
    shown = experts_to_compare(loaded, options.experts)
    architecture = options.architecture(loaded)
    measured = figures.measured(loaded, runs)
    drawn, _ = draw(
        options.figure,
        loaded,
        architecture,
        shown,
        options.budgets,
        measured,
        chips=options.chips,
        speeds=options.speeds,
    )
    return drawn


@takes_options
def report(
    law: "Law | str | os.PathLike",
    runs: object = None,
    out: str | os.PathLike = "report.html",
    *,
    options: ReportOptions,
) -> "Page":
    """Writes one HTML page on a law: the decision first, then its errors, every table and figure, and the numbers.

    With the limits of `fit.plan` the page opens with the plan for that budget, and with what other laws say of it.

    Args:
      law: A law.
      runs: Runs for predicted against measured loss, and for points on the curves; what `fit.read` takes.
      out: The file to write.

    Returns:
      The path of the page, as a text. A notebook shows the page.

    Raises:
      UserError: A value cannot be used, no model is feasible, or the file cannot be written.
    """
    from fit.render import report as reports
    from fit.results import Page

    written = reports.write_report(load(law), runs, str(out), options)
    return Page.at(written.path)


def page(
    laws: "Law | str | os.PathLike | Sequence[Law | str | os.PathLike]" = "joint-moe-2025",
    runs: object = None,
    out: str | os.PathLike = "planner.html",
    chips: str | None = None,
) -> "Page":
    """Writes one HTML page that plans in the browser by these laws and the published ones.

    Args:
      laws: A law or several; the page shows the first of them at first.
      runs: Runs of the first law, drawn over its curves; what `fit.read` takes.
      out: The file to write.
      chips: The chips, such as H100:512, on which the page plans by hours at modelled speeds with the first law; it
        knows the powers of two below, too. None stands for 64 H100 for a published law, else one.

    Returns:
      The path of the page, as a text. A notebook shows the page.

    Raises:
      UserError: The page does not know the formula of a law, or there are no such chips.
    """
    from fit.planning.inputs.chip_flags import kind_and_count
    from fit.render import figures
    from fit.render.planner import page as planner
    from fit.results import Page

    several = laws if isinstance(laws, Sequence) and not isinstance(laws, str) else [laws]
    if not several:
        raise UserError("laws: expected one law or several, found none")
    loaded = [load(each) for each in several]
    kind_and_number = None if chips is None else kind_and_count(chips)
    path = planner.write(loaded, figures.measured(loaded[0], runs), str(out), kind_and_number)
    return Page.at(path)
