"""The losses that a law predicts: what `fit predict` and `fit.predict` do, and their options."""

import dataclasses

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import summary, tuning_text
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH, RATE
from fit.fitted_law.tuning import BOUNDS as BOUNDS_OF_TUNING
from fit.messages.finding import Finding, finding
from fit.messages.lines import Line
from fit.options import Options, number, whole
from fit.results import NOT_IN_JSON, WithFindings, optional
from fit.table.table import BOUNDS, DERIVED, Table


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
        if self.n_experts is not None:
            law.check_experts(self.n_experts, "--n_experts")
        model = {name: getattr(self, name) for name in ("n_active", "n_total", "n_tokens", "top_k", "granularity")}
        model["n_experts"] = self.n_experts or law.only_experts or 1
        model["n_shared_experts"] = self.n_shared_experts
        for name in (RATE, BATCH):
            model[name] = getattr(self, name)
            if model[name] is not None and law.tuning is None:
                raise UserError(f"--{name}: --law={law.name} has no best rates; fit it with fit law --with_rate")
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Forecast(WithFindings):
    """Predicted losses, in nats per token.

    Attributes:
      law: Name of the law.
      table: The models' table with the predicted columns added.
      text: The loss of one model and its intervals; of a table, how its measured losses compare with the predictions.
      not_compared: Why measured losses are not compared; "" where they are, or where there are none.
      columns: {name: a value for each model} of the predicted columns: predicted_loss, outside_fitted_range and, where
        the law has draws, the ends of its intervals.
      source_of_draws: Source of the draws of a published law, which give its intervals; None for those of a fit.
    """

    law: str
    table: Table = dataclasses.field(metadata=NOT_IN_JSON)
    text: str
    not_compared: str
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


def _answer(forecast: Forecast) -> list[Line]:
    """The text of a forecast is one of its fields."""
    return [Line("", sentence) for sentence in forecast.text.split("\n")]


def of_model(law: Law, options: PredictOptions) -> Forecast:
    """The predicted loss of one model. Raises UserError where the law reads a column that is not given."""
    table = options.table(law)
    prediction = summary.predict(law, table)
    columns = prediction["columns"]
    findings = prediction["findings"]
    outside = columns["outside_fitted_range"][0]
    if outside:
        findings.append(finding("outside", outside=outside))
    text = summary.in_lines(law, columns)
    if law.tuning:
        model = {name: getattr(options, name) for name in (RATE, BATCH) if getattr(options, name) is not None}
        text = "\n".join([text, *tuning_text.lines_of_model(law.tuning, columns, model)])
    return _forecast(law, table, columns, findings, text)


def of_table(law: Law, table: Table) -> Forecast:
    """The predicted losses of a table of models, compared with the measured ones where it has them."""
    prediction = summary.predict(law, table)
    columns = prediction["columns"]
    text = not_compared = ""
    if "loss" in table:
        try:
            text = summary.against_measured(law, table, columns)
        except UserError as error:  # the predictions stand all the same
            not_compared = error.sentence
    if law.source_of_draws:
        text = "\n".join([*text.splitlines(), summary.of_source(law.source_of_draws)])
    return _forecast(law, table, columns, prediction["findings"], text, not_compared)


def _forecast(
    law: Law, table: Table, columns: dict[str, list], findings: list[Finding], text: str, not_compared: str = ""
) -> Forecast:
    """The Forecast of a table with its predicted columns."""
    return Forecast(
        law=law.name,
        table=summary.extended(table, columns),
        text=text,
        not_compared=not_compared,
        columns=columns,
        findings=findings,
        source_of_draws=law.source_of_draws or None,
        answer_of=_answer,
    )
