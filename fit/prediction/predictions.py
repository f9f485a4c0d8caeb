"""The losses that a law predicts for the models of a table, and how far measured ones are off.

Axes: n_models models.
"""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np

from fit.errors import UserError
from fit.fitted_law import extrapolation, tuning
from fit.fitted_law.extrapolation import in_words
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH, OF_MODELS, RATE, Estimate, Tuning
from fit.messages.finding import Finding
from fit.table import validate
from fit.table.runs import unlikely
from fit.table.table import Table

# findings on a table by which its losses may not be those of the law
ON_LOSSES = (
    "losses_do_not_fall",
    "losses_named_otherwise",
    "losses_high",
    "losses_low",
    "nothing_learnt",
    "run_twice",
)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of a law for the models of a table. Losses are in nats per token.

    Attributes:
      columns: Lists [n_models] by name: predicted_loss; with bootstrap draws law_loss_low and law_loss_high, and where
        the law knows its noise predicted_loss_low and _high of a new run; where the law has best rates the columns of
        `_tuned`; and outside_fitted_range, in words.
      findings: On these losses.
    """

    columns: dict[str, list]
    findings: list[Finding]


def predict(law: Law, table: Table) -> Predictions:
    """The losses of the models of a table.

    Raises:
      UserError: A value is one that no model has, or a number of experts one for which the law does not hold.
    """
    values = law.columns_of(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said among the warnings
        columns: dict[str, list] = {"predicted_loss": law.predict(**values).tolist()}
    if law.draws:
        if law.noise is not None:
            low, high = law.predict_interval(new_run=True, **values)
            columns |= dict(predicted_loss_low=low.tolist(), predicted_loss_high=high.tolist())
        low, high = law.predict_interval(new_run=False, **values)
        columns |= dict(law_loss_low=low.tolist(), law_loss_high=high.tolist())
    if law.tuning:
        columns |= _tuned(law.tuning, table)
    inside = extrapolation.are_inside(law, **values)
    outside = []
    for i in range(len(table)):
        model = {name: column[i] for name, column in values.items()}
        outside.append("" if inside[i] else in_words(extrapolation.outside(law, **model)))
    columns["outside_fitted_range"] = outside
    odd = unlikely(values)
    findings = [odd] if odd else []
    if "loss" in table:
        findings += [doubt for doubt in validate.doubts(table) if doubt.code in ON_LOSSES]
    if law.beyond_runs and not inside.all():
        findings.append(law.beyond_runs)
    return Predictions(columns, findings)


def _tuned(law_tuning: Tuning, table: Table) -> dict[str, list[float]]:
    """Columns on the best rates and batches of the models of a table.

    Returns:
      best_learning_rate, best_batch_tokens where the law has a best batch, and rate_penalty where the table has
      peak_learning_rate: the share of the loss that this rate and batch_tokens, or else the best batch, cost. With
      draws each has its ends, NAME_low and NAME_high. Without batch_tokens the best rate is that at the best batch.

    Raises:
      UserError: for a bad value of peak_learning_rate or batch_tokens, or a column that the law's optima read.
    """
    missing = [name for name in law_tuning.reference if name not in table]
    if missing:
        raise UserError(f"{table.path}: column {missing[0]} is missing: the law's best learning rate reads it")
    names = [name for name in OF_MODELS if name in table]
    models = {name: table.numbers(name) for name in names}
    rates = table.numbers(RATE, tuning.BOUNDS[RATE]) if RATE in table else None
    batches = table.numbers(BATCH, tuning.BOUNDS[BATCH]) if BATCH in table else None
    best_rates = []
    best_batches = []
    penalties = []
    for i in range(len(table)):
        model = {name: float(values[i]) for name, values in models.items()}
        batch = None if batches is None else float(batches[i])
        best_rates.append(law_tuning.rate(batch, **model))
        best_batch = law_tuning.batch(**model)
        if best_batch is not None:
            best_batches.append(best_batch)
        if rates is not None:
            penalties.append(law_tuning.penalty(float(rates[i]), batch, **model))
    return {
        **_with_ends("best_learning_rate", best_rates),
        **_with_ends("best_batch_tokens", best_batches),
        **_with_ends("rate_penalty", penalties),
    }


def _with_ends(name: str, estimates: Sequence[Estimate]) -> dict[str, list[float]]:
    """The column of these estimates and those of their ends, where they have them; {} without estimates."""
    if not estimates:
        return {}
    columns = {name: [estimate.value for estimate in estimates]}
    ends = [(estimate.low, estimate.high) for estimate in estimates if estimate.low is not None]
    if ends:
        columns[f"{name}_low"], columns[f"{name}_high"] = map(list, zip(*ends, strict=True))
    return columns


def extended(table: Table, columns: dict[str, list]) -> Table:
    """The table with these columns, instead of those of the same names from an earlier prediction."""
    arrow = table.arrow
    if arrow is not None:
        arrow = arrow.select([name for name in arrow.column_names if name not in columns])
    return dataclasses.replace(table, columns=table.columns | columns, arrow=arrow)


def against_measured(law: Law, table: Table, columns: dict[str, list]) -> str:
    """A sentence that compares the measured losses of a table with the predictions.

    Args:
      columns: Those that `predict` returns.

    Raises:
      UserError: A loss of the table is not a number.
    """
    log_errors = np.log(table.numbers("loss") / np.array(columns["predicted_loss"]))
    differs = ""
    outside = sum(map(bool, columns["outside_fitted_range"]))
    if _has_another(table, "vocab_size", law.models.vocab_size):
        differs = ", and their vocabulary is not the law's: nats per token of both do not compare"
    elif _has_another(table, "corpus_fingerprint", law.models.corpus):
        differs = ", and their text is not the law's"
    covered = ""
    if "predicted_loss_low" in columns:
        low = np.array(columns["predicted_loss_low"])
        high = np.array(columns["predicted_loss_high"])
        loss = table.numbers("loss")
        first, last = law.percentiles
        count = int(np.sum((low <= loss) & (loss <= high)))
        covered = f"; {count} lie between the {first:g}th and {last:g}th percentile predicted for a run"
    return (
        f"{len(table)} measured losses are {np.expm1(log_errors.mean()):+.2%} off {law.name} on average and scatter by "
        f"{log_errors.std():.2%} around that; {outside} of the models lie outside its fitted range"
        f"{covered}{differs}"
    )


def _has_another(table: Table, column: str, of_law: object) -> bool:
    """Whether any row of the table has another value than the law's runs. False where theirs is not known."""
    if of_law is None:
        return False
    values = {str(value).removesuffix(".0") for value in table.column_or(column, "") if value not in (None, "")}
    return bool(values - {str(of_law)})
