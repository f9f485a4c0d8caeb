"""The losses that a law predicts: what `fit predict` and `fit.predict` do."""

import dataclasses
import operator

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages.finding import Finding, finding
from fit.messages.lines import Line
from fit.prediction import answer, predictions
from fit.prediction.options import PredictOptions
from fit.results import NOT_IN_JSON, WithFindings, optional
from fit.table.table import Table


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


def predict_model(law: Law, options: PredictOptions) -> Forecast:
    """The predicted loss of one model. Raises UserError where the law reads a column that is not given."""
    table = options.table(law)
    prediction = predictions.predict(law, table)
    columns = {name: column[0] for name, column in prediction.columns.items()}
    findings = list(prediction.findings)
    unread = options.unread(law)
    if unread is not None:
        findings.append(unread)
    if columns["outside_fitted_range"]:
        findings.append(finding("outside", outside=columns["outside_fitted_range"]))
    lines = list(answer.of_model(law, columns, options))
    return _forecast(law, table, prediction.columns, findings, lines)


def predict_table(law: Law, table: Table) -> Forecast:
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
    lines += answer.source_of_draws(law)
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
