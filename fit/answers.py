"""What the functions of fit return: each holds what its command prints as JSON, prints as its command does, and shows
itself so in a notebook."""

import html
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from fit.architecture_search import holistic_text
from fit.equal_flops import surface_text
from fit.next_runs import next_text
from fit.planning import compare_text, plan_text, speedup


class Answer:
    """Each field of the command's JSON is an attribute; vars() of it has all of them, str() is the command's text."""

    _text: ClassVar[Callable[[dict], str]]

    def __init__(self, fields: dict) -> None:
        vars(self).update(fields)

    def __str__(self) -> str:
        return type(self)._text(vars(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()}: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Plan(Answer):
    """optima: a dictionary for the optimum at each number of experts; best: one of them; buildable: the model to train,
    None where no model of whole blocks is within the limits; law, form, constraints, infeasible, extrapolation,
    best_at_edge, best_undecided, warnings."""

    _text = plan_text.text

    def __repr__(self) -> str:
        return f"<plan by {self.law}: {plan_text.answer(vars(self))}>"


class Next(Answer):
    """trunks: the models to train, each with its budgets in tokens; expected: how sure the goal is with the fitted runs
    alone, with these as well, and with a plain grid's; law, flops, grid."""

    _text = next_text.text


class Comparison(Answer):
    """laws: the answer of each law; infeasible: laws without one; agreement: how far the answers lie apart."""

    _text = compare_text.text


class Speedup(Answer):
    """runs: each with the compute that the law's recipe needs for its loss, and how many times its own that is; answer:
    the sentence; warnings."""

    _text = speedup.text


class Surface(Answer):
    """budgets: for each budget its surface and the best n_total and sparsity, with intervals."""

    _text = surface_text.text


class Holistic(Answer):
    """fit, control, rank, refit, architecture: those of them that were asked."""

    _text = holistic_text.text


class Prediction(Answer):
    """columns: {name: list}, what the command adds to a table, and `table`, the one with them; law; warnings; text: the
    loss of one model and its intervals, or how the measured losses of a table lie against those predicted;
    not_compared: why they are not."""

    _text = operator.itemgetter("text")
