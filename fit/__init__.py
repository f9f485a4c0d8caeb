"""Scaling laws of dense and mixture-of-experts language models: fit them, predict with them, plan by them.

Standalone: it imports nothing of the trainer. It needs numpy and absl; fitting also needs jax, jaxopt, scipy and tqdm,
drawing needs matplotlib, Parquet needs pyarrow. Start at `python -m fit help`, or in Python (api.py):

    import fit

    law = fit.law("runs.csv", form="joint", holdout="largest-compute:3")
    print(law.predict(n_active=1e9, n_tokens=2e10, n_experts=8))
    plan = fit.plan(law, flops=1e22, memory_gb=80)
    print(plan, plan.best["n_experts"], [row["loss"] for row in plan.optima])

  laws/         one page (module) per law: its columns, coefficients, formula, starts, published values
  form.py       what follows from a page: the vector that the solver moves, starts, coefficients held
  lawfile.py    a law: a form with coefficients (a preset, a law.json), predictions, the range fitted; lawcheck.py,
                whether a law.json is whole
  models.py     the models behind a law, from the columns of the runs
  table.py, frames.py, runs.py, holdout.py  tables read strictly, and from Python; runs and their trunks; runs kept
                out of a fit
  fitting.py    from a table of runs to a law.json: problem.py, the objective; search.py, its best point from many
                starts; solvers.py, the only module that knows jaxopt
  sure.py       how sure a law is: noise.py, the errors of runs and their shared part; intervals.py, profiles, bootstrap
  summary.py    a fit in words; forms.py, several forms fitted to the same runs
  architecture.py  counts of a width and a number of experts
  optimum.py    the best (n_active, n_tokens, n_experts) under constraints
  planning.py   makes a plan; plan_text.py puts it in words; plan_config.py writes a config with the law's own recipe;
                sentences.py holds the templates of its sentences
  cost.py       hours, dollars, training memory and speed of a plan on chips; target.py, the least cost of a loss;
                repeats.py, text that is read several times
  next_runs.py  which runs to train next: candidates.py, what could be trained and its cost; design.py, the best set;
                next_text.py, in words and as a sweep file
  compare.py    several laws asked about one budget; mixture.py, the architectures that it chooses between;
                leverage.py, their efficiency leverage by one more law
  isoflop.py, surface.py  at equal FLOPs: parabolas over size; the loss over size and sparsity
  holistic.py   the algebra of a mixture's architecture and of what can be built; holistic_plan.py, the architecture for
                a budget; holistic_runs.py, the laws fitted to the runs of a search
  page/         the planner page: the same plan computed in a browser
  learning_rate.py  the best rate of each model in a table of runs; Eq. 10
  paper/        the paper's tables and figures for any law; the report
  units.py      numbers as people read them
  commands/     one file per command: its flags and its output
  api.py        read, law, load, plan and save as functions of this package, imported when first used
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fit.api import law, load, plan, read, save

__all__ = ["UserError", "law", "load", "plan", "read", "save"]


class UserError(Exception):
    """A mistake in what the user gave, in one sentence; the command line prints it and exits with 2."""


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fit import api

    return getattr(api, name)
