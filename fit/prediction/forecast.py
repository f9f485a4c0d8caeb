"""The losses that a law predicts: what `fit predict` and `fit.predict` do, and their options."""

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.published_draws import fits_in_words
from fit.fitted_law.tuning import BATCH, RATE, Tuning
from fit.fitted_law.tuning import BOUNDS as BOUNDS_OF_TUNING
from fit.messages.finding import Finding, finding
from fit.messages.lines import Line
from fit.options import Options, number, whole
from fit.prediction import predictions
from fit.results import NOT_IN_JSON, WithFindings, optional
from fit.table.table import BOUNDS, DERIVED, Table

# {option on the experts of a model: columns of laws that follow from it}
COLUMNS_OF = dict(
    top_k=("top_k", "sparsity", "shared_share"), n_shared_experts=("shared_share",), granularity=("granularity",)
)


@dataclasses.dataclass(kw_only=True)
class PredictOptions(Options):
    """One model whose loss is predicted."""

    n_active: float | None = number("Active parameters, embedding and head included.", None, *BOUNDS["n_active"])
    n_tokens: float | None = number("Training tokens.", None, *BOUNDS["n_tokens"])
    n_experts: int | None = whole(
        "Experts in each layer, 1 for a dense model. Default: the law's own, else 1.", least=1
    )
    n_total: float | None = number("All parameters, embedding and head included.", None, *BOUNDS["n_total"])
    top_k: int | None = whole("Experts that a token chooses.", least=1)
    n_shared_experts: int | None = whole("Experts that every token uses.", least=0)
    granularity: float | None = number("How many times narrower an expert is than a dense layer.", None, 1, 1e6)
    n_embedding: float | None = number(
        "Parameters of embedding and head among those given, which some laws do not count.", None, 0, 1e16
    )
    peak_learning_rate: float | None = number(
        "Also say what this rate costs; for a law fitted with --with_rate.", None, *BOUNDS_OF_TUNING[RATE]
    )
    batch_tokens: float | None = number("Tokens of its batches, for the same.", None, *BOUNDS_OF_TUNING[BATCH])

    def table(self, law: Law) -> Table:
        """The model as a table of one row. Raises UserError where the law reads a column that is not given."""
        self._check_read(law)
        if self.n_experts is not None:
            law.check_experts(self.n_experts, "--n_experts")
        if self.top_k is not None and "sparsity" in law.form.columns:
            self._check_top_k(law)
        model = {name: getattr(self, name) for name in ("n_active", "n_total", "n_tokens", "top_k", "granularity")}
        model["n_experts"] = self.n_experts or law.only_n_experts or 1
        model["n_shared_experts"] = self.n_shared_experts
        model[RATE] = self.peak_learning_rate
        model[BATCH] = self.batch_tokens
        if self.n_embedding is not None and not law.counts_embedding:
            for name in ("n_active", "n_total"):
                if model[name] is not None:
                    model[name] -= self.n_embedding
        table = Table("the model", {name: [value] for name, value in model.items() if value is not None}, [1])
        for name in law.form.columns:
            sources = (name,) if name in model else DERIVED.get(name, ((name,),))[0]
            missing = [source for source in sources if source not in table]
            if not missing:
                continue
            if missing[0] not in model:
                raise UserError(
                    f"the {law.form.name} law reads {name}, for which there is no flag: give a table by --runs"
                )
            raise UserError(f"--{missing[0]} is missing: the {law.form.name} law needs it")
        return table

    def _check_read(self, law: Law) -> None:
        """Raises UserError for an option of a model's experts, rate or batch that the law does not read."""
        for name in self.changed(*COLUMNS_OF):
            if not set(COLUMNS_OF[name]) & set(law.form.columns):
                raise UserError(f"--{name}: the {law.form.name} law has no column for it; leave --{name} out")
        for name in self.changed(RATE, BATCH):
            if law.tuning is None:
                raise UserError(f"--{name}: --law={law.name} has no best rates; fit it with fit law --with_rate")
            if name == BATCH and not law.tuning.with_batch:
                raise UserError(f"--{name}: --law={law.name} has no best batch; leave --{name} out")

    def _check_top_k(self, law: Law) -> None:
        """Raises UserError where a token cannot choose so many experts; sparsity follows from both numbers."""
        if self.top_k is None or self.top_k <= (self.n_experts or 1):
            return
        if self.n_experts is None:
            raise UserError(f"--n_experts is missing: the {law.form.name} law needs it beside --top_k={self.top_k}")
        raise UserError(
            f"--top_k={self.top_k}: expected a whole number from 1 to {self.n_experts}, the model's n_experts"
        )

    def check_no_model(self) -> None:
        """Raises UserError where one of these options is given beside a table of models, which has its own columns."""
        given = self.changed(*[field.name for field in dataclasses.fields(PredictOptions)])
        if given:
            raise UserError(f"--{given[0]}: describes a single model, and --runs gives a table of them")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Forecast(WithFindings):
    """Predicted losses, in nats per token.

    Attributes:
      law: Name of the law.
      table: The models' table with the predicted columns added.
      lines: The loss of one model and its intervals; of a table, how its measured losses compare with the predictions.
      columns: {name: a value for each model} of the predicted columns: predicted_loss, outside_fitted_range and, where
        the law has draws, the ends of its intervals.
      source_of_draws: Source of the draws of a published law, which give its intervals; None for those of a fit.
    """

    law: str
    table: Table = dataclasses.field(metadata=NOT_IN_JSON)
    lines: list[Line] = dataclasses.field(metadata=NOT_IN_JSON)
    columns: dict[str, list]
    source_of_draws: str | None = optional()

    @property
    def title(self) -> str:
        """The result's title."""
        return "prediction"

    def rows(self) -> list[Json]:
        """One row for each model: its own columns and the predicted ones."""
        columns = self.table.columns
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def of_model(law: Law, options: PredictOptions) -> Forecast:
    """The predicted loss of one model. Raises UserError where the law reads a column that is not given."""
    table = options.table(law)
    prediction = predictions.predict(law, table)
    columns = prediction.columns
    findings = list(prediction.findings)
    outside = columns["outside_fitted_range"][0]
    if outside:
        findings.append(finding("outside", outside=outside))
    first = {name: column[0] for name, column in columns.items()}
    lines = [Line("", f"{first['predicted_loss']:.6f}"), *_intervals(law, first)]
    if law.tuning:
        lines += _tuning(law.tuning, first, options)
    return _forecast(law, table, columns, findings, lines)


def of_table(law: Law, table: Table) -> Forecast:
    """The predicted losses of a table of models, compared with the measured ones where it has them."""
    prediction = predictions.predict(law, table)
    columns = prediction.columns
    findings = list(prediction.findings)
    lines = []
    if "loss" in table:
        try:
            lines.append(Line("", predictions.against_measured(law, table, columns)))
        except UserError as error:  # the predictions stand all the same
            findings.append(finding("losses_not_compared", why=error.sentence))
    lines += _source_of_draws(law)
    return _forecast(law, table, columns, findings, lines)


def _forecast(law: Law, table: Table, columns: dict[str, list], findings: list[Finding], lines: list[Line]) -> Forecast:
    """The Forecast of a table with its predicted columns."""
    return Forecast(
        law=law.name,
        table=predictions.extended(table, columns),
        lines=lines,
        columns=columns,
        findings=findings,
        source_of_draws=law.source_of_draws or None,
        answer_of=operator.attrgetter("lines"),
    )


def _intervals(law: Law, first: Mapping[str, float]) -> Iterator[Line]:
    """The intervals of one prediction, and where a published law's draws are from.

    Args:
      first: The predicted columns of the model.
    """
    words = dict(law_loss="the fit (the law itself)")
    if law.noise is not None:
        words = dict(predicted_loss=f"a new run (its own noise of {law.noise.total:.2%} included)") | words
    for name, what in words.items() if law.draws else ():
        low = first[f"{name}_low"]
        high = first[f"{name}_high"]
        yield Line(f"{_percentiles(law.percentiles)} of {what}", f"{low:.6f} to {high:.6f}")
    yield from _source_of_draws(law)


def _source_of_draws(law: Law) -> Iterator[Line]:
    """The line below intervals by the draws of a published law."""
    if law.source_of_draws:
        yield Line("", f"intervals by {fits_in_words(law.source_of_draws)}")


def _tuning(tuning: Tuning, first: Mapping[str, float], options: PredictOptions) -> Iterator[Line]:
    """The best rate and batch of the model, and the cost of its own.

    Args:
      tuning: The optima of the law.
      first: The predicted columns of the model.
      options: Its rate and batch, where they are given.
    """
    rate = f"{first['best_learning_rate']:.3e}{_ends(tuning, first, 'best_learning_rate', '.3e')}"
    yield Line("best peak learning rate", rate)
    if tuning.with_batch:
        batch = f"{first['best_batch_tokens']:,.0f} tokens{_ends(tuning, first, 'best_batch_tokens', ',.0f')}"
        yield Line("best batch", batch)
    if options.peak_learning_rate is None:
        return
    with_batch = ""
    if options.batch_tokens is not None:
        with_batch = f" with batches of {options.batch_tokens:,.0f} tokens"
    cost = f"{first['rate_penalty']:.2%} of the loss{_ends(tuning, first, 'rate_penalty', '.2%')}"
    yield Line("", f"a rate of {options.peak_learning_rate:.3e}{with_batch} costs {cost}")


def _ends(tuning: Tuning, first: Mapping[str, float], name: str, form: str) -> str:
    """The interval of a column in brackets; "" for a law without draws."""
    if not tuning.draws:
        return ""
    ends = f"{first[f'{name}_low']:{form}} to {first[f'{name}_high']:{form}}"
    return f" ({_percentiles(tuning.percentiles)}: {ends})"


def _percentiles(ends: Sequence[float]) -> str:
    """The ends of intervals in words."""
    return "{:g}th to {:g}th percentile".format(*ends)
