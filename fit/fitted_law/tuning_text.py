"""The best rates and batches of a law in words, and as columns of a table of predictions."""

from collections.abc import Iterator, Mapping

from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.tuning import BATCH, OF_MODELS, RATE, Estimate, Tuning
from fit.messages.units import amount
from fit.table.table import Table


def line_of_fit(law_tuning: Tuning) -> str:
    """A line on a fit's best rate and batch."""
    model = ", ".join(f"{name} {amount(value)}" for name, value in law_tuning.reference.items())
    at = f" at {model}" if model else ""
    rate = _with_powers(law_tuning.coefficients, "rate", law_tuning.reference, f"{law_tuning.coefficients['rate']:.3g}")
    line = f"best rate{at}: {rate}"
    if law_tuning.with_batch:
        size = f"{amount(law_tuning.coefficients['batch'])} tokens"
        line += f"; best batch: {_with_powers(law_tuning.coefficients, 'batch', law_tuning.reference, size)}"
    return f"{line}; {law_tuning.near} of {law_tuning.runs} runs are near enough to count for intervals"


def _with_powers(coefficients: Mapping[str, float], name: str, reference: Mapping[str, float], value: str) -> str:
    """An optimum and the powers by which it changes with the model."""
    powers = [f"{column}^{coefficients[f'{name}_{column}']:+.2f}" for column in reference]
    return f"{value}, {' '.join(powers)}" if powers else value


def lines_of_model(law_tuning: Tuning, columns: Mapping[str, list], model: Mapping[str, float]) -> Iterator[str]:
    """Lines on the best rate and batch of one model, and on the cost of its own.

    Args:
      columns: what `columns_of` returns for the model.
      model: its columns, with peak_learning_rate and batch_tokens where they are given.
    """
    first = {name: values[0] for name, values in columns.items()}
    yield f"best peak learning rate: {first['best_learning_rate']:.3e}{_ends(law_tuning, first, 'best_learning_rate')}"
    if law_tuning.with_batch:
        yield f"best batch: {first['best_batch_tokens']:,.0f} tokens{_ends(law_tuning, first, 'best_batch_tokens')}"
    if RATE in model:
        batch = f" with batches of {model[BATCH]:,.0f} tokens" if BATCH in model and law_tuning.with_batch else ""
        ends = ""
        if law_tuning.draws:
            low = first["rate_penalty_low"]
            high = first["rate_penalty_high"]
            ends = f" ({_percentiles(law_tuning)}: {low:.2%} to {high:.2%})"
        yield f"a rate of {model[RATE]:.3e}{batch} costs {first['rate_penalty']:.2%} of the loss{ends}"


def _percentiles(law_tuning: Tuning) -> str:
    return "{:g}th to {:g}th percentile".format(*law_tuning.percentiles)


def _ends(law_tuning: Tuning, first: Mapping[str, float], name: str) -> str:
    """The interval of an optimum in brackets; "" for a law without draws."""
    if not law_tuning.draws:
        return ""
    form = ".3e" if name == "best_learning_rate" else ",.0f"
    return f" ({_percentiles(law_tuning)}: {first[f'{name}_low']:{form}} to {first[f'{name}_high']:{form}})"


def columns_of(law_tuning: Tuning, table: Table) -> dict[str, list[float]]:
    """Columns of predictions for the models of a table.

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
    columns: dict[str, list[float]] = {}
    for i in range(len(table)):
        model = {name: float(values[i]) for name, values in models.items()}
        batch = None if batches is None else float(batches[i])
        _add(columns, "best_learning_rate", law_tuning.rate(batch, **model))
        best_batch = law_tuning.batch(**model)
        if best_batch is not None:
            _add(columns, "best_batch_tokens", best_batch)
        if rates is not None:
            _add(columns, "rate_penalty", law_tuning.penalty(float(rates[i]), batch, **model))
    return columns


def _add(columns: dict[str, list[float]], name: str, estimate: Estimate) -> None:
    """Appends an estimate and its ends to the columns."""
    columns.setdefault(name, []).append(estimate.value)
    if estimate.low is not None and estimate.high is not None:
        columns.setdefault(f"{name}_low", []).append(estimate.low)
        columns.setdefault(f"{name}_high", []).append(estimate.high)
