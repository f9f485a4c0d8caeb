"""The work of `fit lr`: the best learning rate of each model in a table, the law of these rates, and its options."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fit import options
from fit.aliases import Json
from fit.errors import UserError
from fit.fitting import learning_rate
from fit.fitting.learning_rate import BestRate
from fit.options import Options
from fit.table.table import Table


@dataclasses.dataclass(kw_only=True)
class RateOptions(Options):
    """Options: the runs that the law of learning rates is fitted to, and the model whose rate is asked for."""

    experts: tuple[int, ...] = options.experts("Numbers of experts to fit. Default: all.", ())
    with_tokens: bool = options.switch(
        "Also fit an exponent of n_tokens, which Eq. 10 lacks: the best rate depends on the tokens per parameter."
    )
    with_batch: bool = options.switch(
        "Also fit an exponent of batch_tokens, the tokens of a batch, which Eq. 10 lacks."
    )
    n_active: float | None = options.number("Also print the rate of one model: its active parameters.", None, 1)
    n_experts: int = options.whole("Its experts.", 1, least=1)
    n_tokens: float | None = options.number("Its training tokens, for --with_tokens.", None, 1)
    batch_tokens: float | None = options.number("The tokens of its batches, for --with_batch.", None, 1)


@dataclasses.dataclass(frozen=True)
class RateFit:
    """A law of learning rates, and the best rates that it was fitted to.

    Attributes:
      law: Its coefficients by name.
      experts: The numbers of experts fitted.
      optima: The best rate of each model.
      fitted: Those of them that the law was fitted to.
      left_out: How many models were tried at too few rates.
      intervals: {coefficient: its interval}; {} where the models are as many as the coefficients.
      model: The model whose rate is asked for, without its rate; None where none is.
    """

    law: dict[str, float]
    experts: list[float]
    optima: list[BestRate]
    fitted: list[BestRate]
    left_out: int
    intervals: dict[str, list[float]]
    model: BestRate | None

    def to_dict(self) -> Json:
        """The fields that `fit lr --out` writes."""
        return dict(
            lr_law=self.law,
            experts=self.experts,
            optima=[dataclasses.asdict(optimum) for optimum in self.optima],
            intervals=self.intervals or None,
        )


def fit_law(table: Table, options: RateOptions) -> RateFit:
    """Fits the law of learning rates to the runs of a table.

    Raises:
      UserError: The runs do not tell the law, or an option is missing.
    """
    optima, left_out = learning_rate.best_rates(table, options.with_batch)
    experts = _experts(options.experts, optima)
    fitted = [optimum for optimum in optima if optimum.n_experts in experts and not optimum.at_edge]
    if not fitted:
        raise UserError(f"{table.path}: the best rate of every model is at the end of its grid: widen the grids")
    law = learning_rate.fit(fitted, table.path, options.with_tokens, options.with_batch)
    model = _model(options, law)
    intervals, _ = learning_rate.spread(law, fitted)
    return RateFit(law, experts, optima, fitted, left_out, intervals, model)


def _experts(requested: Sequence[int], optima: Sequence[BestRate]) -> list[float]:
    """The numbers of experts to fit: those requested, else all. Raises UserError where one of them has no runs."""
    trained = sorted({optimum.n_experts for optimum in optima})
    absent = [n_experts for n_experts in requested if n_experts not in trained]
    if absent:
        others = ", ".join(f"{n_experts:g}" for n_experts in trained)
        raise UserError(
            f"--experts={','.join(map(str, requested))}: {absent[0]:g} is in none of the runs, which have {others}"
        )
    return list(requested or trained)


def _model(options: RateOptions, law: Mapping[str, float]) -> BestRate | None:
    """The model whose rate is asked for; None without one. Raises UserError where the law needs more of it than is
    given."""
    model = {name: getattr(options, name) for name in learning_rate.TERMS}
    if options.n_active is None and not options.changed(*model):
        return None
    for name, value in model.items():
        if value is None and name in law:
            raise UserError(f"--{name} is missing: the law of learning rates needs it of the model")
    model["n_tokens"] = options.n_tokens or 1.0
    return BestRate(**model, rate=np.nan, loss=np.nan, curvature=np.nan, at_edge=False)
