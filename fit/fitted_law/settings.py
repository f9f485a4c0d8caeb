"""How a law is fitted. A Law has the Settings of its fit, and law.json those that the fit of more runs needs."""

import dataclasses

from fit.fitted_law.bounds import USUAL_PERCENTILES, Coefficient
from fit.form import PriorSummary
from fit.results import NOT_IN_JSON, Record, optional
from fit.table.reading import read_with
from fit.table.table import Table

Strings = dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Record):
    """How to fit, and which runs.

    Attributes:
      huber_delta: where the Huber loss becomes linear, in log loss.
      reduction: of the runs' losses: sum or mean.
      weight_decay: on `params`; None for the default.
      starts: how many random ones, scaled to the runs; 0 for the law's published grid.
      solver: lm or lbfgs.
      seed: of the random starts, samples and draws.
      fix: {coefficient: value} of those that the fit does not move.
      holdout: a rule of runs.held_out.
      weights: a rule of runs.run_weights, None where the user asks for none.
      select: which start wins: that of the least objective, or rmse.
      bootstrap_by: what shares an error, as runs.trunks_of takes it.
      weight_decay_default: whether the weight decay is the default of few runs.
      prior: that the user or the default chose; None without one.
      with_rate: whether rates and batches are fitted with the law.
      columns, units, where, set: how the table was read, as reading.read_with takes them.
      variance: of the log loss of a run of weight 1 around the law, against which priors are weighed; 0 for no priors.
      pull: of a Student-t prior, as Prior.pull has it; 1 for a normal one.
      yielded: where a prior was given up because the fit with it was worse, by how many times the variance.
      mix_corpora: accept runs of several corpora.
      bootstrap: how many draws.
      bootstrap_form: one of parts.WAYS_OF_DRAWING.
      percentiles: the ends of the bootstrap's intervals.
      quiet: show no progress on stderr.
    """

    huber_delta: float = 1e-2
    reduction: str = "sum"
    weight_decay: float = 0.0
    starts: int = 128
    solver: str = "lm"
    seed: int = 0
    fix: dict[str, Coefficient] = dataclasses.field(default_factory=dict)
    holdout: str = "none"
    weights: str | None = optional()
    select: str = "objective"
    bootstrap_by: str = "trunk"
    weight_decay_default: bool = False
    prior: PriorSummary | None = optional()
    with_rate: bool = False
    columns: Strings = dataclasses.field(default_factory=dict)
    units: Strings = dataclasses.field(default_factory=dict)
    where: tuple[str, ...] = ()
    set: Strings = dataclasses.field(default_factory=dict)
    variance: float = dataclasses.field(default=0.0, metadata=NOT_IN_JSON)
    pull: float = dataclasses.field(default=1.0, metadata=NOT_IN_JSON)
    yielded: float | None = dataclasses.field(default=None, metadata=NOT_IN_JSON)
    mix_corpora: bool = dataclasses.field(default=False, metadata=NOT_IN_JSON)
    bootstrap: int = dataclasses.field(default=0, metadata=NOT_IN_JSON)
    bootstrap_form: str = dataclasses.field(default="errors", metadata=NOT_IN_JSON)
    percentiles: tuple[float, float] = dataclasses.field(default=USUAL_PERCENTILES, metadata=NOT_IN_JSON)
    quiet: bool = dataclasses.field(default=True, metadata=NOT_IN_JSON)

    def read(self, runs: object) -> Table:
        """Reads a table of runs by the names, units, conditions and formulas that the fit was given.

        Args:
          runs: What fit.table.table.read takes; a Table is returned as it is.

        Raises:
          UserError: The table cannot be read.
        """
        return read_with(runs, self.columns, self.units, self.where, self.set)


DEFAULTS = Settings()
