"""Scaling laws of dense and mixture-of-experts language models: fit them, predict with them, plan by them.

Standalone: it imports nothing of the trainer. It needs numpy and absl; fitting also needs jax, jaxopt, scipy and
tqdm, drawing needs matplotlib, Parquet needs the extra [parquet]. Start at `python -m fit help`, or in Python:

    import fit

    law = fit.law("runs.csv", holdout="largest-compute:3")
    print(law.predict(n_active=1e9, n_tokens=2e10, n_experts=8))
    plan = fit.plan(law, flops=1e22, memory_gb=80)
    print(plan, plan.best.n_experts, [row.loss for row in plan.optima])

Every command is a function of this package. Its options have the names of the command's flags; numbers may be texts
such as "1.5B" or "80GB". A `law` is a Law, a law.json or the name of a published law. `runs` are what `fit.read` takes.
A value that cannot be used raises UserError, which names the option.

Its folders, each of which imports only those above it (tests/test_repository.py):

  errors.py     UserError
  aliases.py    names of types
  messages/     numbers as people read them; the sentences of a plan
  results.py    what functions return: dataclasses that answer like dictionaries, and print as the commands do
  model/        counts of a model's shape; what a step costs on chips; what chips reach of their peaks
  shape/        from a width and a number of experts to a shape: the paper's architecture, others
  data/         tables read strictly, and from Python; runs and their trunks
  options.py    options of functions and commands: dataclasses whose fields hold help, kind and bounds
  form.py       what follows from a law's module: the vector that the solver moves, starts
  importers/    runs of other tools as a table: one function per tool
  laws/         one module per law: its columns, coefficients, formula, starts, published values
  fitted_law/   a law: a form with coefficients (a preset, a law.json), predictions, the range fitted, its models
  equal_flops/  parabolas over size, the loss over size and sparsity, the best learning rate of each model
  fitting/      from a table of runs to a law.json: the objective, its best point, how sure the law is, in words
  task_maps/    from loss to the accuracies of tasks; whether the number of experts shifts that
  planning/     the best model under constraints, its cost, its config; several laws compared at one budget
  next_runs/    which runs to train next; a finished run added to the table
  architecture_search/  the algebra of a mixture's architecture, its laws, the architecture for a budget
  planner/      the page: the same plan computed in a browser
  paper/        the paper's tables and figures for any law; the report
  commands/     the commands: their flags and their output
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from fit.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fit.architecture_search.search import Holistic
    from fit.data.table import Table
    from fit.equal_flops.surfaces import Surfaces
    from fit.fitted_law.forecast import Forecast
    from fit.fitted_law.law import Law
    from fit.next_runs.add import AddedRuns
    from fit.next_runs.suggest import NextRuns
    from fit.planning.baseline_speedup import BaselineSpeedup
    from fit.planning.comparison import Comparison
    from fit.planning.judged import Speedup
    from fit.planning.results import Plan
    from fit.results import Page
    from fit.task_maps.maps import TaskMaps

__version__ = "0.3.0"

__all__ = [
    "UserError",
    "add",
    "compare",
    "holistic",
    "law",
    "load",
    "next",
    "page",
    "plan",
    "plot",
    "predict",
    "read",
    "report",
    "save",
    "speedup",
    "surface",
    "tasks",
]


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
    from fit.data import reading

    return reading.read_with(runs, columns, units, where, set)


def load(law: "Law | str | os.PathLike") -> "Law":
    """Loads a law.

    Args:
      law: A law.json, the name of a published law such as "joint-moe-2025", or a Law, which is returned as it is.

    Raises:
      UserError: There is no such law, or the file is none.
    """
    from fit.fitted_law import law as laws

    return laws.load(law)


def save(law: "Law", path: str | os.PathLike) -> None:
    """Writes a law as a law.json.

    Args:
      law: A law from `fit.law` or `fit.load`.
      path: The file to write.

    Raises:
      UserError: The file cannot be written.
    """
    from fit.fitted_law import law as laws

    laws.save(law, path)


def law(
    runs: object,
    form: str | None = None,
    *,
    holdout: str = "none",
    fix: Mapping[str, float | str] | str | None = None,
    huber_delta: float | str = 1e-2,
    reduction: Literal["sum", "mean"] = "sum",
    weights: str | None = None,
    weight_decay: float | str | None = None,
    prior: "Law | str | os.PathLike | None" = None,
    starts: int | str = "128",
    solver: Literal["lm", "lbfgs"] = "lm",
    select: Literal["objective", "rmse"] = "objective",
    bootstrap: int | str = 0,
    bootstrap_form: Literal["errors", "replacement", "paper"] = "errors",
    bootstrap_by: str = "trunk",
    percentiles: Iterable[float] | str = (10.0, 90.0),
    seed: int | str = 0,
    mix_corpora: bool = False,
    with_rate: bool = False,
    quiet: bool = True,
) -> "Law":
    """Fits a law to runs.

    Args:
      runs: What `fit.read` takes, with n_active, n_tokens, n_experts and loss in nats per token.
      form: Name of the law's form. Default: joint or joint_coupled, whichever predicts the runs of more compute better
        from those of less; with one number of experts chinchilla or chinchilla_coupled.
      holdout: Runs kept out of the fit: "lowest-loss:30", "largest-compute:3", "largest-compute:20%", "column:NAME" or
        "compute:rolling".
      fix: {coefficient: value} that the fit holds, such as {"c": 1.2}.
      huber_delta: Residual of the log loss from which the Huber loss is linear.
      reduction: How the Huber losses of the runs are combined.
      weights: Weight of each run: "none", "inverse-loss", "compute^0.6" or "column:NAME".
      weight_decay: Adds half of this times the squared parameters to the objective.
      prior: What is known of the exponents before the runs speak: "population", a law, or "none". Without form, dense
        runs that are at most 2 more than the coefficients have the population's by default.
      starts: Number of random starts, or "paper" for the published grid.
      solver: Levenberg-Marquardt, or L-BFGS as in the paper.
      select: Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs.
      bootstrap: Number of fits to resampled runs, for intervals; 100 is usual.
      bootstrap_form: What is resampled: errors, runs with replacement, or 80% of the runs as in the paper.
      bootstrap_by: Which runs share an error: "trunk", "row" or a column.
      percentiles: Ends of the intervals, in percent.
      seed: Seed of the starts and of the bootstrap.
      mix_corpora: Whether to fit runs of several texts together.
      with_rate: Whether to fit the best learning rate and batch of each model, and what others cost, with the law.
      quiet: Whether to leave out the progress on stderr.

    Returns:
      The law. Its `record` is what law.json holds, with errors and warnings.

    Raises:
      UserError: A value in runs or options cannot be used.
    """
    from fit.data import table
    from fit.fitting import fit_law
    from fit.fitting.options import FitOptions

    options = FitOptions.parse(
        form=form,
        holdout=holdout,
        fix=fix,
        huber_delta=huber_delta,
        reduction=reduction,
        weights=weights,
        weight_decay=weight_decay,
        prior=prior,
        starts=starts,
        solver=solver,
        select=select,
        bootstrap=bootstrap,
        bootstrap_form=bootstrap_form,
        bootstrap_by=bootstrap_by,
        percentiles=percentiles,
        seed=seed,
        mix_corpora=mix_corpora,
        with_rate=with_rate,
    )
    return fit_law.fit_law(table.read(runs), options, quiet)


def predict(
    law: "Law | str | os.PathLike",
    runs: object = None,
    *,
    n_active: float | str | None = None,
    n_tokens: float | str | None = None,
    n_experts: int | str | None = None,
    n_total: float | str | None = None,
    top_k: int | str | None = None,
    n_shared_experts: int | str | None = None,
    granularity: float | str | None = None,
    n_embedding: float | str | None = None,
    peak_learning_rate: float | str | None = None,
    batch_tokens: float | str | None = None,
) -> "Forecast":
    """Predicts the loss of one model, or of each model of a table, in nats per token.

    Args:
      law: A law.
      runs: A table of models, in place of one model; what `fit.read` takes.
      n_active: Active parameters, embedding and head included.
      n_tokens: Training tokens.
      n_experts: Experts in each layer, 1 for a dense model. Default: the law's own, else 1.
      n_total: All parameters, embedding and head included.
      top_k: Experts that a token chooses.
      n_shared_experts: Experts that every token uses.
      granularity: How many times narrower an expert is than a dense layer.
      n_embedding: Parameters of embedding and head among those given, which some laws do not count.
      peak_learning_rate: A rate whose cost is told, by a law that was fitted with_rate.
      batch_tokens: Tokens of its batches. Default: the best.

    Returns:
      The predictions: `columns`, a value for each model, and `table`, the models with these columns.

    Raises:
      UserError: The law reads a column that is missing, or a value cannot be used.
    """
    from fit.data import table
    from fit.fitted_law import forecast

    loaded = load(law)
    if runs is not None:
        return forecast.of_table(loaded, table.read(runs))
    options = forecast.PredictOptions.parse(
        n_active=n_active,
        n_tokens=n_tokens,
        n_experts=n_experts,
        n_total=n_total,
        top_k=top_k,
        n_shared_experts=n_shared_experts,
        granularity=granularity,
        n_embedding=n_embedding,
        peak_learning_rate=peak_learning_rate,
        batch_tokens=batch_tokens,
    )
    return forecast.of_model(loaded, options)


def plan(
    law: "Law | str | os.PathLike",
    *,
    flops: float | str | None = None,
    chips: str | None = None,
    hours: float | str | None = None,
    by: Literal["flops", "time"] | None = None,
    target_loss: float | str | None = None,
    memory_gb: float | str | None = None,
    kv_tokens: float | str = 0.0,
    devices: int | str = 1,
    bytes_per_parameter: float | str = 2.0,
    bytes_per_kv_element: float | str = 2.0,
    inference_tokens: float | str = 0.0,
    max_tokens: float | str | None = None,
    epochs: float | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    used: Iterable[float] | float | str | None = None,
    granularity: float | str | None = None,
    shared_experts: int | str | None = None,
    dense_blocks: int | str | None = None,
    kv_share: float | str | None = None,
    vocab_size: int | str | None = None,
    width_per_block: int | str | None = None,
    like: str | dict | None = None,
    shape: Literal["hardware", "paper"] = "hardware",
    mesh_expert: int | str | None = None,
    mesh_model: int | str | None = None,
    remat: str | None = None,
    mfu: float | Mapping[int, float] | str | None = None,
    dollars_per_hour: float | str | None = None,
    speeds: str | os.PathLike | None = None,
    serve_tokens_per_second: float | str | None = None,
    serve_batch: int | str = 64,
    grams_per_kwh: float | str | None = None,
    task_map: "TaskMaps | str | os.PathLike | None" = None,
    verbose: bool = False,
) -> "Plan":
    """Plans the best model of a law within limits.

    Example:
      plan = fit.plan("joint-moe-2025", flops=1e22, memory_gb=80)
      plan.best.n_experts, plan.buildable.d_model, plan.to_frame()

    Args:
      law: A law.
      flops: Budget in FLOPs of training (6 n_active n_tokens) and of serving `inference_tokens`.
      chips: Chips to train on, such as "H100:8", "H100:8x8" or "v5p:4x4x4".
      hours: Budget in hours on `chips`, in place of `flops`; "10d" is ten days.
      by: What `hours` on `chips` give: "time", the tokens that each model trains at its own speed, or "flops", at one
        MFU. Default: "time"; "flops" with mfu or shape="paper".
      target_loss: Loss to reach with the fewest FLOPs, in place of a budget; nats per token.
      memory_gb: Memory of one device in GB (1e9 bytes), for weights and cache.
      kv_tokens: Tokens in the key-value cache, over all sequences.
      devices: Devices that share weights and cache.
      bytes_per_parameter: Bytes of a weight; 2 is bfloat16.
      bytes_per_kv_element: Bytes of an element of the cache; 2 is bfloat16.
      inference_tokens: Tokens to serve over the model's life, at 2 n_active FLOPs each, out of the budget.
      max_tokens: Training tokens that there are.
      epochs: How many times the `max_tokens` may be read, by the law of repeated text. Default: once, without that
        law; 1 reads them once, too, and discounts parameters beyond those that the text calls for.
      experts: Numbers of experts allowed. Default: those fitted.
      used: Expert width that a token uses, in widths of the dense layer; several to choose from.
      granularity: How many times narrower an expert is than the dense layer.
      shared_experts: Experts that all tokens use, of those that a token uses.
      dense_blocks: Dense blocks before a mixture's other blocks.
      kv_share: Key-value heads per query head.
      vocab_size: Tokens in the vocabulary. Default: the law's own, as for the other options of shape.
      width_per_block: d_model / n_blocks, which is also d_model / n_heads.
      like: A published model's name, its config.json or that as a dictionary: a model to start from.
      shape: Shapes of the buildable model: those that hardware likes, or whole blocks of the law's own shape.
      mesh_expert: Of `chips`, those that share one copy of the experts. Default: chosen.
      mesh_model: Of `chips`, those that share each head and expert. Default: chosen.
      remat: What the backward pass computes again on the mesh. Default: chosen.
      mfu: Model FLOPs utilisation of training: a number, or {n_experts: number}. Default: the modelled speed of each
        model, else 0.4.
      dollars_per_hour: Price of one chip for an hour.
      speeds: With chips: path of a table of your own speeds.
      serve_tokens_per_second: Tokens per second to decode at least, all sequences of a batch together, on `devices`
        chips of the kind of `chips`.
      serve_batch: Sequences decoded at once, for `serve_tokens_per_second`.
      grams_per_kwh: CO2 of the electricity in grams a kWh, for `energy`.
      task_map: Maps from loss to accuracies of tasks: those of `fit.tasks`, or their file.
      verbose: Whether the plan's text has all tables, costs and warnings.

    Returns:
      The plan: `optima`, the best model with each number of experts; `best`, one of them; `buildable`, the model to
      train, None where no model of whole blocks is within the limits; `warnings`.

    Raises:
      UserError: A limit cannot be used, or no model is feasible.
    """
    from fit.planning import planning
    from fit.planning.options import PlanOptions

    options = PlanOptions.parse(
        flops=flops,
        chips=chips,
        hours=hours,
        by=by,
        target_loss=target_loss,
        memory_gb=memory_gb,
        kv_tokens=kv_tokens,
        devices=devices,
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_kv_element=bytes_per_kv_element,
        inference_tokens=inference_tokens,
        max_tokens=max_tokens,
        epochs=epochs,
        experts=experts,
        used=used,
        granularity=granularity,
        shared_experts=shared_experts,
        dense_blocks=dense_blocks,
        kv_share=kv_share,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
        like=like,
        shape=shape,
        mesh_expert=mesh_expert,
        mesh_model=mesh_model,
        remat=remat,
        mfu=mfu,
        dollars_per_hour=dollars_per_hour,
        speeds=speeds,
        serve_tokens_per_second=serve_tokens_per_second,
        serve_batch=serve_batch,
        grams_per_kwh=grams_per_kwh,
        task_map=task_map,
        verbose=verbose,
    )
    return planning.plan(load(law), options)


def compare(
    laws: "Sequence[Law | str | os.PathLike] | None" = None,
    *,
    flops: float | str | None = None,
    chips: str | None = None,
    hours: float | str | None = None,
    by: Literal["flops", "time"] | None = None,
    memory_gb: float | str | None = None,
    kv_tokens: float | str = 0.0,
    devices: int | str = 1,
    bytes_per_parameter: float | str = 2.0,
    bytes_per_kv_element: float | str = 2.0,
    inference_tokens: float | str = 0.0,
    max_tokens: float | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    used: Iterable[float] | float | str | None = None,
    granularity: float | str | None = None,
    shared_experts: int | str | None = None,
    dense_blocks: int | str | None = None,
    kv_share: float | str | None = None,
    vocab_size: int | str | None = None,
    width_per_block: int | str | None = None,
    like: str | dict | None = None,
    mfu: float | Mapping[int, float] | str | None = None,
    dollars_per_hour: float | str | None = None,
    speeds: str | os.PathLike | None = None,
    serve_tokens_per_second: float | str | None = None,
    serve_batch: int | str = 64,
    verbose: bool = False,
) -> "Comparison":
    """Compares what several laws answer to one budget, each against its own best dense model.

    Args:
      laws: The laws. Default: five published ones.
      flops: Budget in FLOPs of training (6 n_active n_tokens) and of serving `inference_tokens`.
      chips: Chips to train on, such as "H100:8", "H100:8x8" or "v5p:4x4x4".
      hours: Budget in hours on `chips`, in place of `flops`; "10d" is ten days.
      by: What `hours` on `chips` give: "time", the tokens that each model trains at its own speed, or "flops", at one
        MFU. Default: "time"; "flops" with mfu or shape="paper".
      memory_gb: Memory of one device in GB (1e9 bytes), for weights and cache.
      kv_tokens: Tokens in the key-value cache, over all sequences.
      devices: Devices that share weights and cache.
      bytes_per_parameter: Bytes of a weight; 2 is bfloat16.
      bytes_per_kv_element: Bytes of an element of the cache; 2 is bfloat16.
      inference_tokens: Tokens to serve over the model's life, at 2 n_active FLOPs each, out of the budget.
      max_tokens: Training tokens that there are.
      experts: Numbers of experts allowed. Default: those that each law was fitted to.
      used: Expert width that a token uses, in widths of the dense layer; several to choose from.
      granularity: How many times narrower an expert is than the dense layer.
      shared_experts: Experts that all tokens use, of those that a token uses.
      dense_blocks: Dense blocks before a mixture's other blocks.
      kv_share: Key-value heads per query head.
      vocab_size: Tokens in the vocabulary.
      width_per_block: d_model / n_blocks, which is also d_model / n_heads.
      like: A published model's name, its config.json or that as a dictionary: a model to set beside each law's best.
      mfu: Model FLOPs utilisation of training: a number. Default: 0.4.
      dollars_per_hour: Price of one chip for an hour.
      speeds: With chips: path of a table of your own speeds.
      serve_tokens_per_second: Tokens per second to decode at least, all sequences of a batch together, on `devices`
        chips of the kind of `chips`.
      serve_batch: Sequences decoded at once, for `serve_tokens_per_second`.
      verbose: Whether the text has all tables and notes.

    Returns:
      The answers: `laws`, one for each law; `infeasible`, laws without one; `agreement`, how far they lie apart.

    Raises:
      UserError: No law has a feasible model, or a law cannot be planned with.
    """
    from fit.fitted_law import law as law_module
    from fit.planning import compare as comparison
    from fit.planning.options import BudgetOptions

    options = BudgetOptions.parse(
        flops=flops,
        chips=chips,
        hours=hours,
        by=by,
        memory_gb=memory_gb,
        kv_tokens=kv_tokens,
        devices=devices,
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_kv_element=bytes_per_kv_element,
        inference_tokens=inference_tokens,
        max_tokens=max_tokens,
        experts=experts,
        used=used,
        granularity=granularity,
        shared_experts=shared_experts,
        dense_blocks=dense_blocks,
        kv_share=kv_share,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
        like=like,
        mfu=mfu,
        dollars_per_hour=dollars_per_hour,
        speeds=speeds,
        serve_tokens_per_second=serve_tokens_per_second,
        serve_batch=serve_batch,
        verbose=verbose,
    )
    return comparison.compare([law_module.load(each, "laws") for each in laws or comparison.LAWS], options)


def next(
    law: "Law | str | os.PathLike",
    runs: object,
    *,
    flops: float | str,
    goal: Literal["plan", "coefficients"] = "plan",
    target_flops: float | str | None = None,
    coefficients: Iterable[str] | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    vocab_size: int | str | None = None,
    width_per_block: int | str | None = None,
    verbose: bool = False,
) -> "NextRuns":
    """Chooses the runs to train next, so that a law's answer becomes surer.

    Args:
      law: A fitted law.
      runs: The runs that it was fitted to; what `fit.read` takes.
      flops: Training FLOPs to spend; a trunk that branches share is counted once.
      goal: What to make surer: the plan at `target_flops`, or `coefficients`.
      target_flops: Training FLOPs of that plan.
      coefficients: Names of coefficients. Default: all that the fit did not hold.
      experts: Numbers of experts to train and to compare. Default: those fitted.
      vocab_size: Tokens in the vocabulary. Default: the law's own.
      width_per_block: d_model / n_blocks. Default: the law's own.
      verbose: Whether the text has tables of the runs and of all that is expected.

    Returns:
      The runs: `trunks`, the models to train with their budgets in tokens; `expected`, how sure the goal is with the
      fitted runs alone, with these runs as well, and with a plain grid.

    Raises:
      UserError: The law was fitted to other runs, or no run within the budget is worth it.
    """
    from fit.next_runs import suggest
    from fit.next_runs.options import NextOptions

    options = NextOptions.parse(
        flops=flops,
        goal=goal,
        target_flops=target_flops,
        coefficients=coefficients,
        experts=experts,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
        verbose=verbose,
    )
    return suggest.suggest(load(law), runs, options)


def add(
    law: "Law | str | os.PathLike",
    run: str | os.PathLike,
    runs: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    mix_corpora: bool = False,
    columns: Mapping[str, str] | None = None,
) -> "AddedRuns":
    """Adds a finished run to a table of runs, and fits the law to all of them as it was fitted before.

    Args:
      law: The law that predicts the run. A published law is not fitted again.
      run: A workdir of jmoe.train, or a table of runs.
      runs: The table to add to (.csv, .jsonl, .parquet).
      out: The law.json to write the new law to.
      mix_corpora: Whether to add the run of another text.
      columns: {our name: the table's name} of columns that the table calls otherwise.

    Returns:
      `runs`: for each added run the predicted and the measured loss, and whether that lies in the interval; `plans`:
      the best model of the run's budget and of ten times that, before and after.

    Raises:
      UserError: The table has the run already, or the run's text is another one. Nothing is written then.
    """
    from fit.next_runs import add as adding

    path = None if out is None else str(out)
    return adding.add(load(law), str(run), str(runs), path, mix_corpora, columns)


def speedup(
    law: "Law | str | os.PathLike | None" = None,
    runs: object = None,
    *,
    seed: int | str = 0,
    by: Literal["flops", "time"] = "flops",
    verbose: bool = False,
    baseline: Mapping[str, object] | str | None = None,
    fix: Mapping[str, float | str] | str | None = None,
) -> "Speedup | BaselineSpeedup":
    """Computes how many times the compute a law's recipe, or a baseline, needs for the losses of runs.

    Example:
      fit.speedup(runs="both.csv", baseline={"n_experts": 64}, by="time").factor

    Args:
      law: A law. Default: the baseline judges the runs.
      runs: The runs to judge, with a baseline also its runs at several budgets; what `fit.read` takes.
      seed: Seed of the runs' errors that intervals draw.
      by: "flops", or "time" for hours on the same chips. The runs then have tokens_per_second and
        law_tokens_per_second, that of the law's recipe at the run's size; with a baseline they have hours, or
        tokens_per_second of runs of equal FLOPs.
      verbose: Whether the text has the table of the runs.
      baseline: In place of a law: {column: value} that the rows of the baseline have in common.
      fix: With a baseline: {"c": floor, "b": exponent} of its frontier, loss = c + A C^-b, where they are known.

    Returns:
      `runs`: each with the compute that the law's recipe or the baseline needs for its loss, and how many times its own
      that is; `answer`: the sentence.

    Raises:
      UserError: Neither a law nor a baseline is given, or both. The law cannot say what compute a loss takes, or
        reaches none of these losses. The baseline has too few runs.
    """
    from fit.planning.judge import SpeedupOptions, judge

    options = SpeedupOptions.parse(seed=seed, by=by, verbose=verbose, baseline=baseline, fix=fix)
    if runs is None:
        raise UserError("--runs is missing: a table with n_active, n_tokens, n_experts and loss")
    return judge(None if law is None else load(law), runs, options)


def tasks(
    runs: object,
    *,
    tasks: Iterable[str] | str = ("acc_*",),
    chance: Mapping[str, float] | str | None = None,
    holdout: str | None = None,
    bootstrap: int | str = 100,
    seed: int | str = 0,
    mix_corpora: bool = False,
    verbose: bool = False,
) -> "TaskMaps":
    """Maps loss to the accuracies of tasks, and asks whether the number of experts shifts the maps.

    Args:
      runs: What `fit.read` takes, with loss and accuracies from 0 to 1.
      tasks: Columns of accuracies: names, or patterns with * and ?.
      chance: {task: accuracy of guessing}, where it is not known or known otherwise.
      holdout: Runs that check the maps of the others: "largest-compute:3", "lowest-loss:10%", "column:NAME" or "none".
        Default: the tenth of the largest compute.
      bootstrap: Number of fits to resampled runs, for intervals.
      seed: Seed of the resamples.
      mix_corpora: Whether to fit runs of several texts together.
      verbose: Whether the text has a table of all tasks.

    Returns:
      The maps: `tasks`, one for each task; `expect(loss)`, the accuracies of a model; `shift`, what E does at equal
      loss; `held_out`, how well runs were predicted; `save(path)` writes what `fit.plan` takes as `task_map`.

    Raises:
      UserError: There is no such task, too few runs, or an accuracy that is no share.
    """
    from fit.data import table
    from fit.task_maps import fit_maps
    from fit.task_maps.options import TaskOptions

    options = TaskOptions.parse(
        tasks=tasks,
        chance=chance,
        holdout=holdout,
        bootstrap=bootstrap,
        seed=seed,
        mix_corpora=mix_corpora,
        verbose=verbose,
    )
    return fit_maps.fit_tasks(table.read(runs), options)


def surface(runs: object, *, seed: int | str = 0) -> "Surfaces":
    """Fits the loss over total parameters and sparsity at each budget of runs of equal FLOPs.

    Args:
      runs: What `fit.read` takes, with n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k.
      seed: Seed of the refits.

    Returns:
      `budgets`: for each budget the surface, and its best size and sparsity with intervals by refits.

    Raises:
      UserError: No budget has enough runs.
    """
    from fit.equal_flops import surfaces

    return surfaces.fit_surfaces(runs, surfaces.SurfaceOptions.parse(seed=seed))


def holistic(
    runs: object = None,
    width_runs: object = None,
    rank: object = None,
    refit: object = None,
    *,
    flops: float | str | None = None,
    group: str | None = None,
    m_over_active: Iterable[float] | str | None = None,
    total_over_active: Iterable[float] | str | None = None,
) -> "Holistic":
    """Finds the complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026.

    Args:
      runs: Runs of several M/N_a and N/N_a, to fit their laws; what `fit.read` takes. Default: the published laws.
      width_runs: Runs of several widths, to fit the law of d_model.
      rank: Runs of several architectures, each at several widths: do these keep their rank?
      refit: Runs of several sizes at each budget, to fit Eq. 2 again.
      flops: Training FLOPs, M D: FLOPs per token times tokens.
      group: With `rank`: column that names an architecture. Default: the nearest on the grid.
      m_over_active: With `rank`: M/N_a of the grid.
      total_over_active: With `rank`: N/N_a of the grid.

    Returns:
      `architecture`, `fit`, `control`, `rank` and `refit`; None where nothing asks for a part.

    Raises:
      UserError: Nothing is asked for, or no model can be built.
    """
    from fit.architecture_search import holistic_runs, search

    options = search.HolisticOptions.parse(
        flops=flops,
        group=group,
        m_over_active=m_over_active,
        total_over_active=total_over_active,
    )
    ratio_runs = None if runs is None else holistic_runs.read(runs)
    runs_of_widths = None if width_runs is None else holistic_runs.read(width_runs)
    return search.search(ratio_runs, runs_of_widths, rank, refit, options)


def plot(
    law: "Law | str | os.PathLike",
    runs: object = None,
    *,
    figure: Literal["compute", "1a", "2a", "2b", "3", "4", "5", "memory", "hours"] = "compute",
    flops: Iterable[float] | float | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    chips: str | None = None,
    speeds: str | os.PathLike | None = None,
    vocab_size: int | str | None = None,
    width_per_block: int | str | None = None,
) -> "Figure":
    """Draws a law: by default the loss against training compute for each number of experts, and the runs.

    Example:
      fit.plot(law, "runs.csv").savefig("law.pdf")

    Args:
      law: A law.
      runs: Runs to draw as points, held-out ones hollow; what `fit.read` takes.
      figure: "compute", or a figure of the joint law's paper: "2a" is the loss against tokens at equal FLOPs, "5"
        predicted against measured loss, "memory" the best number of experts against memory, "hours" the loss against
        hours on `chips`.
      flops: Training FLOPs of the budgets of the paper's figures. Default: the paper's, or near the law's runs.
      experts: Numbers of experts to draw. Default: those fitted.
      chips: With "hours": chips to train on, such as "H100:8", "H100:8x8" or "v5p:4x4x4".
      speeds: With "hours": path of a table of your own speeds.
      vocab_size: Tokens in the vocabulary. Default: the law's own.
      width_per_block: d_model / n_blocks. Default: the law's own.

    Returns:
      A matplotlib Figure, which a notebook shows. Lines are dashed where no run reaches, and the band is percentiles of
      the bootstrap's fits.

    Raises:
      UserError: The law or the runs do not allow the figure.
    """
    from fit.paper import figures
    from fit.paper.plot_options import PlotOptions
    from fit.planning.options import experts_to_compare

    options = PlotOptions.parse(
        figure=figure,
        flops=flops,
        experts=experts,
        chips=chips,
        speeds=speeds,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
    )
    loaded = load(law)
    shown = experts_to_compare(loaded, options.experts)
    architecture = options.architecture(loaded)
    budgets = () if options.flops is None else options.flops
    measured = figures.measured(loaded, runs)
    drawn, _ = figures.draw(
        options.figure,
        loaded,
        architecture,
        shown,
        budgets,
        measured,
        chips=options.chips,
        speeds=options.speeds,
    )
    return drawn


def report(
    law: "Law | str | os.PathLike",
    runs: object = None,
    out: str | os.PathLike = "report.html",
    *,
    laws: "Iterable[str] | str" = (
        "joint-moe-2025",
        "sparsity-2025",
        "fine-grained-2024",
        "comprehensive-2025",
        "chinchilla-refit-2024",
    ),
    flops: float | str | None = None,
    chips: str | None = None,
    hours: float | str | None = None,
    by: Literal["flops", "time"] | None = None,
    target_loss: float | str | None = None,
    memory_gb: float | str | None = None,
    kv_tokens: float | str = 0.0,
    devices: int | str = 1,
    bytes_per_parameter: float | str = 2.0,
    bytes_per_kv_element: float | str = 2.0,
    inference_tokens: float | str = 0.0,
    max_tokens: float | str | None = None,
    epochs: float | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    used: Iterable[float] | float | str | None = None,
    granularity: float | str | None = None,
    shared_experts: int | str | None = None,
    dense_blocks: int | str | None = None,
    kv_share: float | str | None = None,
    vocab_size: int | str | None = None,
    width_per_block: int | str | None = None,
    like: str | dict | None = None,
    shape: Literal["hardware", "paper"] = "hardware",
    mesh_expert: int | str | None = None,
    mesh_model: int | str | None = None,
    remat: str | None = None,
    mfu: float | Mapping[int, float] | str | None = None,
    dollars_per_hour: float | str | None = None,
    speeds: str | os.PathLike | None = None,
    serve_tokens_per_second: float | str | None = None,
    serve_batch: int | str = 64,
    grams_per_kwh: float | str | None = None,
    task_map: "TaskMaps | str | os.PathLike | None" = None,
    verbose: bool = False,
) -> "Page":
    """Writes one HTML page on a law: the decision first, then its errors, every table and figure, and the numbers.

    With the limits of `fit.plan` the page opens with the plan for that budget, and with what other laws say of it.

    Args:
      law: A law.
      runs: Runs for predicted against measured loss, and for points on the curves; what `fit.read` takes.
      out: The file to write.
      laws: Laws to compare with `law` under the limits: names of published laws, or paths of law.json files.
      flops: Budget in FLOPs of training (6 n_active n_tokens) and of serving `inference_tokens`.
      chips: Chips to train on, such as "H100:8", "H100:8x8" or "v5p:4x4x4".
      hours: Budget in hours on `chips`, in place of `flops`; "10d" is ten days.
      by: What `hours` on `chips` give: "time", the tokens that each model trains at its own speed, or "flops", at one
        MFU. Default: "time"; "flops" with mfu or shape="paper".
      target_loss: Loss to reach with the fewest FLOPs, in place of a budget; nats per token.
      memory_gb: Memory of one device in GB (1e9 bytes), for weights and cache.
      kv_tokens: Tokens in the key-value cache, over all sequences.
      devices: Devices that share weights and cache.
      bytes_per_parameter: Bytes of a weight; 2 is bfloat16.
      bytes_per_kv_element: Bytes of an element of the cache; 2 is bfloat16.
      inference_tokens: Tokens to serve over the model's life, at 2 n_active FLOPs each, out of the budget.
      max_tokens: Training tokens that there are.
      epochs: How many times the `max_tokens` may be read, by the law of repeated text. Default: once, without that
        law; 1 reads them once, too, and discounts parameters beyond those that the text calls for.
      experts: Numbers of experts allowed. Default: those fitted.
      used: Expert width that a token uses, in widths of the dense layer; several to choose from.
      granularity: How many times narrower an expert is than the dense layer.
      shared_experts: Experts that all tokens use, of those that a token uses.
      dense_blocks: Dense blocks before a mixture's other blocks.
      kv_share: Key-value heads per query head.
      vocab_size: Tokens in the vocabulary. Default: the law's own, as for the other options of shape.
      width_per_block: d_model / n_blocks, which is also d_model / n_heads.
      like: A published model's name, its config.json or that as a dictionary: a model to start from.
      shape: Shapes of the buildable model: those that hardware likes, or whole blocks of the law's own shape.
      mesh_expert: Of `chips`, those that share one copy of the experts. Default: chosen.
      mesh_model: Of `chips`, those that share each head and expert. Default: chosen.
      remat: What the backward pass computes again on the mesh. Default: chosen.
      mfu: Model FLOPs utilisation of training: a number, or {n_experts: number}. Default: the modelled speed of each
        model, else 0.4.
      dollars_per_hour: Price of one chip for an hour.
      speeds: With chips: path of a table of your own speeds.
      serve_tokens_per_second: Tokens per second to decode at least, all sequences of a batch together, on `devices`
        chips of the kind of `chips`.
      serve_batch: Sequences decoded at once, for `serve_tokens_per_second`.
      grams_per_kwh: CO2 of the electricity in grams a kWh, for `energy`.
      task_map: Maps from loss to accuracies of tasks: those of `fit.tasks`, or their file.
      verbose: Under limits: whether the page has all tables, costs and warnings of the plan.

    Returns:
      The path of the page, as a text. A notebook shows the page.

    Raises:
      UserError: A value cannot be used, no model is feasible, or the file cannot be written.
    """
    from fit.paper import report as reports
    from fit.paper.options import ReportOptions
    from fit.results import Page

    options = ReportOptions.parse(
        laws=laws,
        flops=flops,
        chips=chips,
        hours=hours,
        by=by,
        target_loss=target_loss,
        memory_gb=memory_gb,
        kv_tokens=kv_tokens,
        devices=devices,
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_kv_element=bytes_per_kv_element,
        inference_tokens=inference_tokens,
        max_tokens=max_tokens,
        epochs=epochs,
        experts=experts,
        used=used,
        granularity=granularity,
        shared_experts=shared_experts,
        dense_blocks=dense_blocks,
        kv_share=kv_share,
        vocab_size=vocab_size,
        width_per_block=width_per_block,
        like=like,
        shape=shape,
        mesh_expert=mesh_expert,
        mesh_model=mesh_model,
        remat=remat,
        mfu=mfu,
        dollars_per_hour=dollars_per_hour,
        speeds=speeds,
        serve_tokens_per_second=serve_tokens_per_second,
        serve_batch=serve_batch,
        grams_per_kwh=grams_per_kwh,
        task_map=task_map,
        verbose=verbose,
    )
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
    from fit.paper import figures
    from fit.planner import page as planner
    from fit.planning.options import kind_and_count
    from fit.results import Page

    several = laws if isinstance(laws, Sequence) and not isinstance(laws, str) else [laws]
    loaded = [load(each) for each in several]
    kind_and_number = None if chips is None else kind_and_count(chips)
    path = planner.write(loaded, figures.measured(loaded[0], runs), str(out), kind_and_number)
    return Page.at(path)


def __dir__() -> list[str]:
    """The names for completion at a prompt: the functions, without what this module imports."""
    return sorted([*__all__, "__doc__", "__version__"])
