"""The answer of `fit predict`: the loss of one model, its intervals, and its best rate and batch."""

from collections.abc import Iterator, Mapping, Sequence

from fit.fitted_law.law import Law
from fit.fitted_law.published_draws import fits_in_words
from fit.fitted_law.tuning import Tuning
from fit.messages.lines import Line
from fit.prediction.options import PredictOptions


def of_model(law: Law, columns: Mapping[str, float], options: PredictOptions) -> Iterator[Line]:
    """The lines on one model.

    Args:
      law: The law.
      columns: {name: value} of the predicted columns.
      options: The model.
    """
    yield Line("", f"{columns['predicted_loss']:.6f}")
    if law.draws:
        percentiles = _percentiles(law.percentiles)
        if law.noise is not None:
            of_run = f"{percentiles} of a new run (its own noise of {law.noise.total:.2%} included)"
            yield Line(of_run, _span(columns, "predicted_loss", ".6f"))
        yield Line(f"{percentiles} of the fit (the law itself)", _span(columns, "law_loss", ".6f"))
    yield from source_of_draws(law)
    if law.tuning:
        yield from _tuning(law.tuning, columns, options)


def source_of_draws(law: Law) -> Iterator[Line]:
    """The line below intervals by the draws of a published law."""
    if law.source_of_draws:
        yield Line("", f"intervals by {fits_in_words(law.source_of_draws)}")


def _tuning(tuning: Tuning, columns: Mapping[str, float], options: PredictOptions) -> Iterator[Line]:
    """The best rate and batch of the model, and the cost of its own. The arguments are those of `of_model`."""
    rate = f"{columns['best_learning_rate']:.3e}{_interval(tuning, columns, 'best_learning_rate', '.3e')}"
    yield Line("best peak learning rate", rate)
    if tuning.with_batch:
        batch = f"{columns['best_batch_tokens']:,.0f} tokens{_interval(tuning, columns, 'best_batch_tokens', ',.0f')}"
        yield Line("best batch", batch)
    if options.peak_learning_rate is None:
        return
    with_batch = ""
    if options.batch_tokens is not None:
        with_batch = f" with batches of {options.batch_tokens:,.0f} tokens"
    cost = f"{columns['rate_penalty']:.2%} of the loss{_interval(tuning, columns, 'rate_penalty', '.2%')}"
    yield Line("", f"a rate of {options.peak_learning_rate:.3e}{with_batch} costs {cost}")


def _interval(tuning: Tuning, columns: Mapping[str, float], name: str, form: str) -> str:
    """The interval of a column in brackets; "" for a law without draws."""
    if not tuning.draws:
        return ""
    return f" ({_percentiles(tuning.percentiles)}: {_span(columns, name, form)})"


def _span(columns: Mapping[str, float], name: str, form: str) -> str:
    """The ends of a column's interval, each in this format."""
    return f"{columns[f'{name}_low']:{form}} to {columns[f'{name}_high']:{form}}"


def _percentiles(ends: Sequence[float]) -> str:
    """The ends of intervals in words."""
    return "{:g}th to {:g}th percentile".format(*ends)
