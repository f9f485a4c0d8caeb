"""A law's losses of the models of a table, in words and as columns to add to it."""

import dataclasses
import warnings

import numpy as np

from fit.data.runs import unlikely
from fit.data.table import Table
from fit.errors import UserError
from fit.lawbook.lawfile import Law, in_words


def predict(law: Law, table: Table) -> dict:
    """{columns: {predicted_loss; with bootstrap draws law_loss_low and _high, and where the law knows its noise
    predicted_loss_low and _high of a new run; outside_fitted_range, in words}, warnings}; losses are in nats per token,
    columns lists with a value for each row. Raises UserError for a value that no model has."""
    values = {name: table.numbers(name) for name in law.form.columns}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said among the warnings
        columns = {"predicted_loss": law.predict(**values).tolist()}
    if law.draws:
        kinds = {"law_loss": False} if law.noise is None else {"predicted_loss": True, "law_loss": False}
        for name, new_run in kinds.items():
            low, high = law.predict_interval(**values, new_run=new_run)
            columns |= {f"{name}_low": low.tolist(), f"{name}_high": high.tolist()}
    inside = law.inside(**values)
    columns["outside_fitted_range"] = [
        "" if inside[i] else in_words(law.extrapolation(**{name: v[i] for name, v in values.items()}))
        for i in range(len(table))
    ]
    warned = [odd] if (odd := unlikely(values)) else []
    if law.warning and not inside.all():
        warned.append(f"outside the fitted range of this law: {law.warning}")
    return dict(columns=columns, warnings=warned)


def extended(table: Table, columns: dict[str, list]) -> Table:
    """The table with these columns. Raises UserError where it has one of them."""
    for name in columns:
        if name in table.columns:
            raise UserError(f"{table.path}: column {name} exists already")
    return dataclasses.replace(table, columns=table.columns | columns)


def against_measured(law: Law, table: Table, columns: dict[str, list]) -> str:
    """How the losses in a table lie against those predicted, in a sentence. Raises UserError where one is no loss."""
    error = np.log(table.numbers("loss") / np.array(columns["predicted_loss"]))
    differs, outside = "", sum(map(bool, columns["outside_fitted_range"]))
    if _others(table, "vocab_size", law.models["vocab_size"]):
        differs = ", and their vocabulary is not the law's: nats per token of both do not compare"
    elif _others(table, "corpus_fingerprint", law.models["corpus"]):
        differs = ", and their text is not the law's"
    held = ""
    if "predicted_loss_low" in columns:
        low, high = (np.array(columns[f"predicted_loss_{end}"]) for end in ("low", "high"))
        loss, (first, last) = table.numbers("loss"), law.percentiles
        held = f"; {int(np.sum((low <= loss) & (loss <= high)))} lie between the {first:g}th and {last:g}th percentile"
        held += " predicted for a run"
    return (
        f"{len(table)} measured losses are {np.expm1(error.mean()):+.2%} off {law.name} on average and scatter by "
        f"{error.std():.2%} around that; {outside} of the models lie outside its fitted range"
        f"{held}{differs}"
    )


def _others(table: Table, column: str, known: object) -> bool:
    """Whether the table says of any row that it has not the value `known`, that of the law, if that is known."""
    values = {str(value).removesuffix(".0") for value in table.columns.get(column, ()) if value not in (None, "")}
    return known is not None and bool(values - {str(known)})


def in_lines(law: Law, columns: dict[str, list]) -> str:
    """One prediction and its intervals."""
    one = {name: column[0] for name, column in columns.items()}
    text = f"{one['predicted_loss']:.6f}"
    words = dict(law_loss="the fit (the law itself)")
    if law.noise is not None:
        words = dict(predicted_loss=f"a new run (its own noise of {law.noise:.2%} included)") | words
    for name, what in words.items() if law.draws else ():
        ends = "{:g}th to {:g}th percentile".format(*law.percentiles)
        text += f"\n{ends} of {what}: {one[f'{name}_low']:.6f} to {one[f'{name}_high']:.6f}"
    return text
