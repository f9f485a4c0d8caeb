"""What the functions of fit return: each holds what its command prints as JSON, prints as its command does, and shows
itself so in a notebook."""

import html

from fit.architecture_search import holistic_text
from fit.data.table import Table
from fit.equal_flops import surface_text
from fit.next_runs import next_text
from fit.planning import compare_text, plan_text, speedup


class Answer:
    """Each field of the command's JSON is an attribute; vars() of it has all of them, str() is the command's text."""

    def __init__(self, fields: dict) -> None:
        vars(self).update(fields)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()}: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Plan(Answer):
    """optima: a dictionary for the optimum at each number of experts; best: one of them; buildable: the model to train,
    None where no model of whole blocks is within the limits."""

    law: str
    form: str
    constraints: dict
    optima: list[dict]
    infeasible: list[dict]
    best: dict
    buildable: dict | None
    extrapolation: list[dict]
    best_at_edge: bool
    best_undecided: bool | None
    warnings: list[str]

    def __repr__(self) -> str:
        return f"<plan by {self.law}: {plan_text.answer(vars(self))}>"

    def __str__(self) -> str:
        return plan_text.text(vars(self))


class Next(Answer):
    """trunks: the models to train, each with its budgets in tokens; expected: how sure the goal is with the fitted runs
    alone, with these as well, and with a plain grid's."""

    law: str
    flops: float
    trunks: list[dict]
    grid: dict
    expected: dict

    def __str__(self) -> str:
        return next_text.text(vars(self))


class Comparison(Answer):
    """laws: the answer of each law; infeasible: laws without one; agreement: how far the answers lie apart."""

    laws: list[dict]
    infeasible: list[dict]
    agreement: list[dict]

    def __str__(self) -> str:
        return compare_text.text(vars(self))


class Speedup(Answer):
    """runs: each with the compute that the law's recipe needs for its loss, and how many times its own that is; answer:
    the sentence; warnings."""

    runs: list[dict]
    answer: str
    warnings: list[str]

    def __str__(self) -> str:
        return speedup.text(vars(self))


class Surface(Answer):
    """budgets: for each budget its surface and the best n_total and sparsity, with intervals."""

    budgets: list[dict]

    def __str__(self) -> str:
        return surface_text.text(self.budgets)


class Holistic(Answer):
    """fit, control, rank, refit, architecture: those of them that were asked."""

    fit: dict
    control: list[dict]
    rank: dict
    refit: dict
    architecture: dict

    def __str__(self) -> str:
        return holistic_text.text(vars(self))


class Prediction(Answer):
    """columns: {name: list}, what the command adds to a table, and `table`, the one with them; warnings; text: the loss
    of one model and its intervals, or how the measured losses of a table lie against those predicted; not_compared: why
    they are not."""

    law: str
    columns: dict[str, list]
    table: Table
    warnings: list[str]
    text: str
    not_compared: str

    def __str__(self) -> str:
        return self.text
