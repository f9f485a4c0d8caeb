"""Signatures of the package, written by `python -m fit.stub` from the options of its commands."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

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
from fit.errors import UserError as UserError

__version__: str
__all__ = ['UserError', 'add', 'compare', 'holistic', 'law', 'load', 'next', 'page', 'plan', 'plot', 'predict', 'read', 'report', 'save', 'speedup', 'surface', 'tasks']

def add(
    law: Law | str | os.PathLike,
    run: str | os.PathLike,
    runs: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    mix_corpora: bool = False,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> AddedRuns:
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

def compare(
    laws: Sequence[Law | str | os.PathLike] | None = None,
    *,
    shape: Mapping[str, object] | str | None = None,
    like: str | dict | None = None,
    chips: str | None = None,
    hours: float | str | None = None,
    dollars_per_hour: float | str | None = None,
    speeds: str | os.PathLike | None = None,
    mfu: float | dict[int, float] | str | None = None,
    flops: float | str | None = None,
    memory_gb: float | str | None = None,
    bytes: Mapping[str, object] | str | None = None,
    kv_tokens: float | str = 0.0,
    inference_tokens: float | str = 0.0,
    max_tokens: float | str | None = None,
    devices: int | str = 1,
    serve: Mapping[str, object] | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    verbose: bool = False,
) -> Comparison:
    """Compares what several laws answer to one budget, each against its own best dense model.

    Args:
      laws: The laws. Default: five published ones.
      shape: Shape of models. Default: each law's own, in sizes that hardware likes. All laws have one vocab_size
        and one width_per_block, so that they count alike: their own where these agree, else the paper's. Fields:
        vocab_size (tokens in the vocabulary, of which FLOPs, memory and prices count embedding and head; the law
        sees the blocks as with its own); width_per_block (d_model / n_blocks, which is also d_model / n_heads);
        kv_share (key-value heads per query head; below 1 saves cache and attention); dense_blocks (dense blocks
        before a mixture's other blocks); used (expert width that a token uses, in widths of the dense layer; laws
        that read sparsity or top_k choose among several: used:1,used:2); granularity (how many times narrower an
        expert is than the dense layer; a token uses as many times more); shared_experts (experts that all tokens
        use, of those that a token uses); paper (by its name alone: whole blocks and heads of the law's own shape,
        in place of the widths, heads and experts that hardware likes, on a mesh of `chips` that the trainer
        starts).
      like: config.json of a model to start from, or a published model's name: its sizes, what laws say of it, and
        plans of models built like it. Names: Llama-3.2-1B, Llama-3.1-8B, Llama-3.1-70B, Llama-3.1-405B, Qwen3-0.6B,
        Qwen3-8B, Qwen3-32B, Qwen2.5-7B, Gemma-3-1B, Mistral-7B, OLMo-2-7B, SmolLM2-1.7B, OLMoE-1B-7B, Mixtral-8x7B,
        Mixtral-8x22B, Phi-3.5-MoE, gpt-oss-20b, gpt-oss-120b, Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B, Qwen3-30B-A3B,
        Qwen3-235B-A22B, Qwen3-Next-80B-A3B, DeepSeekMoE-16B, DeepSeek-V2-Lite, DeepSeek-V2, DeepSeek-V3,
        Moonlight-16B-A3B, Kimi-K2, GLM-4.5, GLM-4.5-Air, Llama-4-Maverick.
      chips: Chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4, for costs in hours.
      hours: Budget in hours on `chips`, instead of `flops`.
      dollars_per_hour: Price of one chip for an hour.
      speeds: With `chips`: a table of your own speeds, two rows at least of d_model, n_experts and
        tokens_per_second (of all chips), to recalibrate the model of speed by.
      mfu: Model FLOPs utilisation that training reaches: a number, or JSON, or a file of it, by number of experts,
        {"1": 0.45, "8": 0.38}. Default: the modelled speed of each model, else 0.4.
      flops: FLOPs of training (6 n_active n_tokens) and of serving `inference_tokens`.
      memory_gb: Memory of one device in GB (1e9 bytes), for weights and cache.
      bytes: Bytes of weights and cache. Fields: weights (bytes of a weight; 2 is bfloat16, and the default); cache
        (bytes of an element of the key-value cache; 2 is the default).
      kv_tokens: Tokens in the key-value cache, over all sequences.
      inference_tokens: Tokens to serve over the model's life, at 2 n_active FLOPs each, out of `flops`.
      max_tokens: Training tokens available.
      devices: Devices that share weights and cache.
      serve: Speed of decoding that the model must reach. Fields: tokens_per_second (tokens per second, all
        sequences of a batch together, on `devices` chips of the kind of `chips`); batch (sequences decoded at once;
        64 is the default).
      experts: Numbers of experts allowed. Default: those fitted.
      verbose: Also print all tables, costs, counts, notes and warnings.

    Returns:
      The answers: `laws`, one for each law; `infeasible`, laws without one; `agreement`, how far they lie apart.

    Raises:
      UserError: No law has a feasible model, or a law cannot be planned with.
    """

def holistic(
    runs: object = None,
    width_runs: object = None,
    rank: object = None,
    refit: object = None,
    *,
    flops: float | str | None = None,
    group: str | None = None,
    m_over_active: Iterable[float] | float | str | None = None,
    total_over_active: Iterable[float] | float | str | None = None,
) -> Holistic:
    """Finds the complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026.

    Args:
      runs: Runs of several M/N_a and N/N_a, to fit their laws; what `fit.read` takes. Default: the published laws.
      width_runs: Runs of several widths, to fit the law of d_model.
      rank: Runs of several architectures, each at several widths: do these keep their rank?
      refit: Runs of several sizes at each budget, to fit Eq. 2 again.
      flops: Training FLOPs, M D: FLOPs per token times tokens.
      group: With `rank`: column that names an architecture. Default: the nearest on the grid.
      m_over_active: With `rank`: M/N_a of the grid. Default: phase 1's, 7,8,9,11,14,17.
      total_over_active: With `rank`: N/N_a of the grid. Default: phase 1's, 12,16,20,22,26,30.

    Returns:
      `architecture`, `fit`, `control`, `rank` and `refit`; None where nothing asks for a part.

    Raises:
      UserError: Nothing is asked for, or no model can be built.
    """

def law(
    runs: object,
    form: str | None = None,
    *,
    quiet: bool = True,
    holdout: str = 'none',
    fix: Mapping[str, object] | str | None = None,
    huber_delta: float | str = 0.01,
    reduction: Literal['sum', 'mean'] = 'sum',
    weights: str | None = None,
    weight_decay: float | str | None = None,
    prior: Law | str | os.PathLike | None = None,
    starts: int | str = '128',
    solver: Literal['default', 'paper'] = 'default',
    algorithm: Literal['lm', 'lbfgs'] = 'lm',
    select: Literal['objective', 'rmse'] = 'objective',
    bootstrap: int | str = 0,
    bootstrap_form: Literal['errors', 'replacement', 'paper'] = 'errors',
    bootstrap_by: str = 'trunk',
    percentiles: Iterable[float] | str = (10.0, 90.0),
    seed: int | str = 0,
    mix_corpora: bool = False,
    with_rate: bool = False,
) -> Law:
    """Fits a law to runs.

    Args:
      runs: What `fit.read` takes, with n_active, n_tokens, n_experts and loss in nats per token.
      form: Name of the law's form. Default: joint or joint_coupled, whichever predicts the runs of more compute better
        from those of less; with one number of experts chinchilla or chinchilla_coupled.
      quiet: Whether to leave out the progress on stderr.
      holdout: Runs kept out of the fit: lowest-loss:30, largest-compute:3, largest-compute:20%, or column:NAME
        (rows where it is validation, holdout, true or 1). compute:rolling fits the runs of at most 1/2, 1/3 and
        1/10 of the largest compute and predicts the others; the law that is written is fitted to all.
      fix: Coefficients held at a value: E_max=290.4521,c=1.2.
      huber_delta: Residual of the log loss from which the Huber loss is linear.
      reduction: How the Huber losses of the runs are combined.
      weights: Weight of each run: none, inverse-loss (a run counts 1 / loss), compute^0.6 (that power of its
        FLOPs), or column:NAME. Default: none; without `form`, compute^0.6.
      weight_decay: Adds this / 2 times the squared parameters to the objective; the paper's is 1e-5. Default: 0,
        but for up to 60 runs, which may leave coefficients open, 0.01 times the variance of the runs (1e-6 for 1%
        of noise).
      prior: What is known of the exponents of size and data, and of k, before the runs speak: population (what laws
        of other sweeps have; population:SOURCE leaves a source of these out), a law.json or a published law's name,
        or none. Without `form`, a law decides by its k, or lack of one, whether this one has a k. Default: none;
        without `form`, population for dense runs that are at most 2 more than the coefficients.
      starts: Number of random starts, scaled to the runs; or paper for the published grid (joint: 19,683).
      solver: How the best point is searched: default, Levenberg-Marquardt from random starts; or paper, as the
        joint law's paper does: L-BFGS from its published grid of starts, weight decay 1e-5, the start with the
        least error on fitted and held-out runs, and draws of 80% of the runs. Each part is an argument of fit.law
        in Python.
      algorithm: Levenberg-Marquardt or L-BFGS.
      select: Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs, as in the
        paper.
      bootstrap: Number of fits to resampled runs, for intervals; 100 is usual.
      bootstrap_form: What is resampled: the errors of the runs, the runs with replacement, or as in the paper 80%
        of the runs without replacement, whose intervals are about half as wide as they should be.
      bootstrap_by: Which runs share an error and are drawn together: trunk (those of a trunk, by the column run or
        by equal model, seed and config; else each run), row (each run), or a column. Profiles use it too.
      percentiles: Ends of the bootstrap's intervals.
      seed: Seed of the starts and of the bootstrap.
      mix_corpora: Fit runs of several corpora together.
      with_rate: Fit the best learning rate and batch of each model, and what others cost, together with the law:
        the table has runs of a model at several peak_learning_rate and, for the batch, batch_tokens.

    Returns:
      The law, with errors, intervals and warnings. Its `to_dict()` is what law.json holds.

    Raises:
      UserError: A value in runs or options cannot be used.
    """

def load(
    law: Law | str | os.PathLike,
) -> Law:
    """Loads a law.

    Args:
      law: A law.json, the name of a published law such as "joint-moe-2025", or a Law, which is returned as it is.

    Raises:
      UserError: There is no such law, or the file is none.
    """

def next(
    law: Law | str | os.PathLike,
    runs: object,
    *,
    shape: Mapping[str, object] | str | None = None,
    flops: float | str,
    goal: Literal['plan', 'coefficients'] = 'plan',
    target_flops: float | str | None = None,
    coefficients: Iterable[str] | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    verbose: bool = False,
) -> NextRuns:
    """Chooses the runs to train next, so that a law's answer becomes surer.

    Args:
      law: A fitted law.
      runs: The runs that it was fitted to; what `fit.read` takes.
      shape: Shape of models. Default: the law's own. Fields: vocab_size (tokens in the vocabulary, of which FLOPs,
        memory and prices count embedding and head; the law sees the blocks as with its own); width_per_block
        (d_model / n_blocks, which is also d_model / n_heads).
      flops: Training FLOPs to spend; a trunk that branches share is counted once.
      goal: What the runs should make surer: loss and best number of experts at `target_flops`, or `coefficients`.
      target_flops: With `goal=plan`: training FLOPs of the plan to make surer.
      coefficients: Names of the law's coefficients. Default: all that the fit did not hold fixed.
      experts: Numbers of experts to train and to compare. Default: those fitted.
      verbose: Also print tables of the runs and of all that is expected of them.

    Returns:
      The runs: `trunks`, the models to train with their budgets in tokens; `expected`, how sure the goal is with the
      fitted runs alone, with these runs as well, and with a plain grid.

    Raises:
      UserError: The law was fitted to other runs, or no run within the budget is worth it.
    """

def page(
    laws: Law | str | os.PathLike | Sequence[Law | str | os.PathLike] = 'joint-moe-2025',
    runs: object = None,
    out: str | os.PathLike = 'planner.html',
    chips: str | None = None,
) -> Page:
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

def plan(
    law: Law | str | os.PathLike,
    *,
    shape: Mapping[str, object] | str | None = None,
    like: str | dict | None = None,
    chips: str | None = None,
    hours: float | str | None = None,
    dollars_per_hour: float | str | None = None,
    speeds: str | os.PathLike | None = None,
    mfu: float | dict[int, float] | str | None = None,
    flops: float | str | None = None,
    memory_gb: float | str | None = None,
    bytes: Mapping[str, object] | str | None = None,
    kv_tokens: float | str = 0.0,
    inference_tokens: float | str = 0.0,
    max_tokens: float | str | None = None,
    devices: int | str = 1,
    serve: Mapping[str, object] | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    verbose: bool = False,
    epochs: float | str | None = None,
    target_loss: float | str | None = None,
    mesh: Mapping[str, object] | str | None = None,
    task_map: TaskMaps | str | os.PathLike | None = None,
) -> Plan:
    """Plans the best model of a law within limits.

    Example:
      plan = fit.plan("joint-moe-2025", flops=1e22, memory_gb=80)
      plan.best.n_experts, plan.buildable.d_model, plan.to_frame()

    Args:
      law: A law.
      shape: Shape of models. Default: the law's own, in sizes that hardware likes. Fields: vocab_size (tokens in
        the vocabulary, of which FLOPs, memory and prices count embedding and head; the law sees the blocks as with
        its own); width_per_block (d_model / n_blocks, which is also d_model / n_heads); kv_share (key-value heads
        per query head; below 1 saves cache and attention); dense_blocks (dense blocks before a mixture's other
        blocks); used (expert width that a token uses, in widths of the dense layer; laws that read sparsity or
        top_k choose among several: used:1,used:2); granularity (how many times narrower an expert is than the dense
        layer; a token uses as many times more); shared_experts (experts that all tokens use, of those that a token
        uses); paper (by its name alone: whole blocks and heads of the law's own shape, in place of the widths,
        heads and experts that hardware likes, on a mesh of `chips` that the trainer starts).
      like: config.json of a model to start from, or a published model's name: its sizes, what laws say of it, and
        plans of models built like it. Names: Llama-3.2-1B, Llama-3.1-8B, Llama-3.1-70B, Llama-3.1-405B, Qwen3-0.6B,
        Qwen3-8B, Qwen3-32B, Qwen2.5-7B, Gemma-3-1B, Mistral-7B, OLMo-2-7B, SmolLM2-1.7B, OLMoE-1B-7B, Mixtral-8x7B,
        Mixtral-8x22B, Phi-3.5-MoE, gpt-oss-20b, gpt-oss-120b, Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B, Qwen3-30B-A3B,
        Qwen3-235B-A22B, Qwen3-Next-80B-A3B, DeepSeekMoE-16B, DeepSeek-V2-Lite, DeepSeek-V2, DeepSeek-V3,
        Moonlight-16B-A3B, Kimi-K2, GLM-4.5, GLM-4.5-Air, Llama-4-Maverick.
      chips: Chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4, for costs in hours.
      hours: Budget in hours on `chips`, instead of `flops`.
      dollars_per_hour: Price of one chip for an hour.
      speeds: With `chips`: a table of your own speeds, two rows at least of d_model, n_experts and
        tokens_per_second (of all chips), to recalibrate the model of speed by.
      mfu: Model FLOPs utilisation that training reaches: a number, or JSON, or a file of it, by number of experts,
        {"1": 0.45, "8": 0.38}. Default: the modelled speed of each model, else 0.4.
      flops: FLOPs of training (6 n_active n_tokens) and of serving `inference_tokens`.
      memory_gb: Memory of one device in GB (1e9 bytes), for weights and cache.
      bytes: Bytes of weights and cache. Fields: weights (bytes of a weight; 2 is bfloat16, and the default); cache
        (bytes of an element of the key-value cache; 2 is the default).
      kv_tokens: Tokens in the key-value cache, over all sequences.
      inference_tokens: Tokens to serve over the model's life, at 2 n_active FLOPs each, out of `flops`.
      max_tokens: Training tokens available.
      devices: Devices that share weights and cache.
      serve: Speed of decoding that the model must reach. Fields: tokens_per_second (tokens per second, all
        sequences of a batch together, on `devices` chips of the kind of `chips`); batch (sequences decoded at once;
        64 is the default).
      experts: Numbers of experts allowed. Default: those fitted.
      verbose: Also print all tables, costs, counts, notes and warnings.
      epochs: How many times the `max_tokens` may be read, by the law of repeated text. Default: once, without that
        law; `epochs=1` reads them once, too, and discounts parameters beyond those that the text calls for.
      target_loss: Loss to reach with the fewest FLOPs of training and `inference_tokens`.
      mesh: Mesh and remat of the training. Default: chosen; with `shape=paper` 1, 1 and full. Fields: expert (of
        `chips`, those that share one copy of the experts); model (of `chips`, those that share each head and
        expert); remat (what the backward pass computes again: full, dots, none).
      task_map: Maps from loss to accuracies of tasks, by fit tasks `out`: what the model is expected to reach.

    Returns:
      The plan: `optima`, the best model with each number of experts; `best`, one of them; `buildable`, the model to
      train, None where no model of whole blocks is within the limits; `warnings`.

    Raises:
      UserError: A limit cannot be used, or no model is feasible.
    """

def plot(
    law: Law | str | os.PathLike,
    runs: object = None,
    *,
    shape: Mapping[str, object] | str | None = None,
    flops: Iterable[float] | float | str | None = None,
    experts: Iterable[int] | int | str | None = None,
    chips: str | None = None,
    speeds: str | os.PathLike | None = None,
    figure: Literal['compute', '1a', '2a', '2b', '3', '4', '5', 'memory', 'hours'] = 'compute',
) -> Figure:
    """Draws a law: by default the loss against training compute for each number of experts, and the runs.

    Example:
      fit.plot(law, "runs.csv").savefig("law.pdf")

    Args:
      law: A law.
      runs: Runs to draw as points, held-out ones hollow; what `fit.read` takes.
      shape: Shape of models. Default: the law's own. Fields: vocab_size (tokens in the vocabulary, of which FLOPs,
        memory and prices count embedding and head; the law sees the blocks as with its own); width_per_block
        (d_model / n_blocks, which is also d_model / n_heads).
      flops: Training budgets: several for 2a, 2b and memory, one for 1a, 3 and 4. Default: the paper's for a
        published law, else from the range of the fitted runs.
      experts: Numbers of experts to draw. Default: those fitted.
      chips: With `figure=hours`: chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4.
      speeds: With `figure=hours`: a table of your own speeds, as fit plan `hours` takes it.
      figure: Figure of the paper, memory for best E against memory, compute for the loss against compute, or hours
        for the loss against hours on chips.

    Returns:
      A matplotlib Figure, which a notebook shows. Lines are dashed where no run reaches, and the band is percentiles of
      the bootstrap's fits.

    Raises:
      UserError: The law or the runs do not allow the figure.
    """

def predict(
    law: Law | str | os.PathLike,
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
) -> Forecast:
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
      peak_learning_rate: Also say what this rate costs; for a law fitted with `with_rate`.
      batch_tokens: Tokens of its batches, for the same.

    Returns:
      The predictions: `columns`, a value for each model, and `table`, the models with these columns.

    Raises:
      UserError: The law reads a column that is missing, or a value cannot be used.
    """

def read(
    runs: object,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    where: str | Iterable[str] | None = None,
    set: Mapping[str, str] | None = None,
) -> Table:
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

def report(
    law: Law | str | os.PathLike,
    runs: object = None,
    out: str | os.PathLike = 'report.html',
    *,
    plan: str | dict | os.PathLike | None = None,
    laws: Iterable[str] | str = ('joint-moe-2025', 'sparsity-2025', 'fine-grained-2024', 'comprehensive-2025', 'chinchilla-refit-2024'),
    verbose: bool = False,
) -> Page:
    """Writes one HTML page on a law: the decision first, then its errors, every table and figure, and the numbers.

    With the limits of `fit.plan` the page opens with the plan for that budget, and with what other laws say of it.

    Args:
      law: A law.
      runs: Runs for predicted against measured loss, and for points on the curves; what `fit.read` takes.
      out: The file to write.
      plan: Options of fit plan, such as '`flops=1e22` `memory_gb=80`', or a plan that fit plan `json` wrote: the
        page opens with that plan and with what other laws say of its budget.
      laws: Laws to compare with `law` in `plan`'s budget: names of published laws, or law.json files.
      verbose: With `plan`: also its tables, costs and all warnings, as fit plan prints them.

    Returns:
      The path of the page, as a text. A notebook shows the page.

    Raises:
      UserError: A value cannot be used, no model is feasible, or the file cannot be written.
    """

def save(
    law: Law,
    path: str | os.PathLike,
) -> None:
    """Writes a law as a law.json.

    Args:
      law: A law from `fit.law` or `fit.load`.
      path: The file to write.

    Raises:
      UserError: The file cannot be written.
    """

def speedup(
    law: Law | str | os.PathLike | None = None,
    runs: object = None,
    *,
    seed: int | str = 0,
    by: Literal['flops', 'time'] = 'flops',
    verbose: bool = False,
    baseline: Mapping[str, object] | str | None = None,
    fix: Mapping[str, object] | str | None = None,
) -> Speedup | BaselineSpeedup:
    """Computes how many times the compute a law's recipe, or a baseline, needs for the losses of runs.

    Example:
      fit.speedup(runs="both.csv", baseline={"n_experts": 64}, by="time").factor

    Args:
      law: A law. Default: the runs are compared with the baseline.
      runs: The runs, with a baseline also its runs at several budgets; what `fit.read` takes.
      seed: Seed of the runs' errors that intervals draw.
      by: What is counted: flops, or time, the hours on the same chips. The table then has tokens_per_second and
        law_tokens_per_second, the speed of the law's recipe at the run's size; with `baseline` it has hours, or
        tokens_per_second of runs of equal FLOPs.
      verbose: Also print the table of the runs.
      baseline: In place of `law`: what the rows of the baseline have in common, such as n_experts=64,top_k=4.
      fix: With `baseline`: floor c and exponent b of its frontier, loss = c + A C^-b, where they are known: c=1.6.

    Returns:
      `runs`: each with the compute that the law's recipe or the baseline needs for its loss, and how many times its own
      that is; `answer`: the sentence.

    Raises:
      UserError: Neither a law nor a baseline is given, or both. The law cannot say what compute a loss takes, or
        reaches none of these losses. The baseline has too few runs.
    """

def surface(
    runs: object,
    *,
    seed: int | str = 0,
) -> Surfaces:
    """Fits the loss over total parameters and sparsity at each budget of runs of equal FLOPs.

    Args:
      runs: What `fit.read` takes, with n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k.
      seed: Seed of the refits.

    Returns:
      `budgets`: for each budget the surface, and its best size and sparsity with intervals by refits.

    Raises:
      UserError: No budget has enough runs.
    """

def tasks(
    runs: object,
    *,
    tasks: Iterable[str] | str = ('acc_*',),
    chance: Mapping[str, object] | str | None = None,
    holdout: str | None = None,
    bootstrap: int | str = 100,
    seed: int | str = 0,
    mix_corpora: bool = False,
    verbose: bool = False,
) -> TaskMaps:
    """Maps loss to the accuracies of tasks, and asks whether the number of experts shifts the maps.

    Args:
      runs: What `fit.read` takes, with loss and accuracies from 0 to 1.
      tasks: Columns of accuracies, as shares from 0 to 1: names, or patterns with * and ?.
      chance: Accuracies of guessing, at which the maps end: acc_piqa:0.5. Of common tasks they are known, and count
        as one run; of others the floor is fitted.
      holdout: Runs that check the maps of the others: largest-compute:N or lowest-loss:N (N runs or N%),
        column:NAME, or none. Default: the tenth of the largest compute or, without sizes and tokens, of the lowest
        loss.
      bootstrap: Fits to resampled runs, for intervals.
      seed: Seed of the resamples.
      mix_corpora: Fit runs that were trained on different text together.
      verbose: Also print a table of all tasks.

    Returns:
      The maps: `tasks`, one for each task; `expect(loss)`, the accuracies of a model; `shift`, what E does at equal
      loss; `held_out`, how well runs were predicted; `save(path)` writes what `fit.plan` takes as `task_map`.

    Raises:
      UserError: There is no such task, too few runs, or an accuracy that is no share.
    """
