"""Scaling laws of dense and mixture-of-experts language models: fit them, predict with them, plan by them.

Standalone: it imports nothing of the trainer. It needs numpy and absl; fitting also needs jax, jaxopt, scipy and
tqdm, drawing needs matplotlib, Parquet needs the extra [parquet]. Start at `python -m fit help`, or in Python (api.py):

    import fit

    law = fit.law("runs.csv", holdout="largest-compute:3")
    print(law.predict(n_active=1e9, n_tokens=2e10, n_experts=8))
    plan = fit.plan(law, flops=1e22, memory_gb=80)
    print(plan, plan.best["n_experts"], [row["loss"] for row in plan.optima])

Its rooms, each of which imports only those above it (tests/test_repository.py):

  errors.py     UserError
  aliases.py    names of types
  messages/     numbers as people read them; the sentences of a plan
  shape/        counts of a width and a number of experts: the paper's architecture, others
  data/         tables read strictly, and from Python; runs and their trunks
  form.py       what follows from a law's page: the vector that the solver moves, starts
  importers/    runs of other tools as a table: one function per tool
  laws/         one page (module) per law: its columns, coefficients, formula, starts, published values
  fitted_law/   a law: a form with coefficients (a preset, a law.json), predictions, the range fitted, its models
  equal_flops/  parabolas over size, the loss over size and sparsity, the best learning rate of each model
  fitting/      from a table of runs to a law.json: the objective, its best point, how sure the law is, in words
  planning/     the best model under constraints, its cost, its config; several laws asked about one budget
  next_runs/    which runs to train next
  architecture_search/  the algebra of a mixture's architecture, its laws, the architecture for a budget
  planner/      the page: the same plan computed in a browser
  paper/        the paper's tables and figures for any law; the report
  asked/        what can be asked: dataclasses, from which functions and flags are made
  api.py        the functions of this package, imported when first used, and what they return
  commands/     the commands: their flags and their output
"""

from typing import TYPE_CHECKING

from fit.errors import UserError

__version__ = "0.3.0"

if TYPE_CHECKING:
    from fit.api import add, compare, holistic, law, load, next, page, plan, predict, read, save, speedup, surface

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
    "predict",
    "read",
    "save",
    "speedup",
    "surface",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fit import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__version__"])
