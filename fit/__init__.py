"""Scaling laws of dense and mixture-of-experts language models: fit them, predict with them, plan by them.

Standalone: it imports nothing of the trainer. It needs numpy and absl; fitting also needs jax, jaxopt, scipy and
tqdm, drawing needs matplotlib, Parquet needs the extra [parquet]. Start at `python -m fit help`, or in Python:

    import fit

    law = fit.law("runs.csv", holdout="largest-compute:3")
    print(law.predict(n_active=1e9, n_tokens=2e10, n_experts=8))
    plan = fit.plan(law, flops=1e22, memory_gb=80)
    print(plan, plan.best.n_experts, [row.loss for row in plan.optima])

Most commands are functions of this package, whose options have the names of the command's flags; numbers may be texts
such as "1.5B" or "80GB". What differs: `fit.page` takes several laws, as `laws`; names and units of columns are
arguments of `fit.read`, and `fit.add`, which writes to a file, takes their names alone. A `law` is a Law, a law.json or
the name of a published law. `runs` are what `fit.read` takes. A value that cannot be used raises UserError, which names
the option.

Its folders, each of which imports only those above it (tests/test_repository.py):

  errors.py     UserError
  aliases.py    names of types
  messages/     numbers as people read them; the sentences of a plan
  results.py    what functions return: dataclasses that answer like dictionaries, and print as the commands do
  model/        shapes of models and their counts; what a step costs on chips; what chips reach of their peaks
  table/        tables read strictly, and from Python; runs and their trunks; importers/, runs of other tools
  options.py    options of functions and commands: dataclasses whose fields hold help, kind and bounds
  signatures.py  functions with an argument for each of these options
  form.py       what follows from a law's module: the vector that the solver moves, starts
  laws/         one module per law: its columns, coefficients, formula, starts, published values
  fitted_law/   a law: a form with coefficients (a preset, a law.json), losses, the range fitted, its models
  prediction/   the losses of a table of models, and of one model in words
  fitting/      from a table of runs to a law.json: the objective, its best point, how sure the law is, in words
  task_maps/    from loss to the accuracies of tasks; whether the number of experts shifts that
  planning/     the best model under constraints, its cost, its config; several laws compared at one budget
  studies/      which runs to train next; speed-ups; the loss over size and sparsity; a mixture's whole architecture
  render/       the answer of fit law; the paper's tables and figures for any law; the report; planner/, the page that
                plans in a browser
  functions.py  the functions of this package
  stub.py       writes their types and docstrings for editors
  commands/     the commands: their flags and their output
"""

from typing import Any

from fit.errors import UserError

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


def __getattr__(name: str) -> Any:
    """The functions, imported when the first of them is asked for: importing the package alone takes no time."""
    if name in __all__:
        from fit import functions

        return getattr(functions, name)
    raise AttributeError(f"module 'fit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names for completion at a prompt: the functions, without what this module imports."""
    return sorted([*__all__, "__doc__", "__version__"])
