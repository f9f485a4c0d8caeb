"""The complete architecture of a mixture for a budget, by the published laws or by fitted ones."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fit.errors import UserError
from fit.model.shape import ModelShape
from fit.results import Record
from fit.studies.architecture_search import near_models, published, triads
from fit.studies.architecture_search.fitted import BandLaws
from fit.studies.architecture_search.published import Quantity, power

LARGEST = 1e27  # FLOPs: far beyond what the laws can know


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltModel(Record):
    """A model of whole numbers: its fields as the trainer names them, its counts, and the tokens of the budget.

    Attributes:
      flops_per_token: M.
      n_active, n_total: N_a and N.
      m_over_active, total_over_active: M/N_a and N/N_a.
      n_tokens: D.
    """

    d_model: int
    n_blocks: int
    n_dense_blocks: int
    d_ff: int
    d_expert: int
    n_experts: int
    top_k: int
    n_shared_experts: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    flops_per_token: float
    n_active: float
    n_total: float
    m_over_active: float
    total_over_active: float
    n_tokens: int

    @classmethod
    def of(cls, shape: ModelShape, flops: float, seq_len: int) -> "BuiltModel":
        """The model of a shape of whole numbers at a budget, M D."""
        m, n_active, n_total = map(float, triads.of_shape(shape, seq_len))
        return cls(
            d_model=int(shape.d_model),
            n_blocks=int(shape.n_blocks),
            n_dense_blocks=int(shape.n_dense_blocks),
            d_ff=int(shape.d_ff),
            d_expert=int(shape.d_expert),
            n_experts=int(shape.n_experts),
            top_k=int(shape.top_k),
            n_shared_experts=int(shape.n_shared_experts),
            n_heads=int(shape.n_heads),
            n_kv_heads=int(shape.n_kv_heads),
            head_dim=int(shape.head_dim),
            flops_per_token=m,
            n_active=n_active,
            n_total=n_total,
            m_over_active=m / n_active,
            total_over_active=n_total / n_active,
            n_tokens=round(flops / m),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetArchitecture(Record):
    """The complete architecture for a budget.

    Attributes:
      flops: The budget, M D.
      quantities: {name: quantity} of all that determine the architecture; the item "values", for a mapping has a method
        of that name.
      model: The nearest buildable one.
      off: How far its triad is from the one asked for, as a share.
      widths: The least and the largest feasible one.
      outside: Whether the budget is outside the paper's.
    """

    flops: float
    quantities: dict[str, Quantity]
    model: BuiltModel
    off: float
    widths: tuple[int, int]
    outside: bool

    def names(self) -> list[str]:
        """The names of the items, with "values" in place of the field's name."""
        return ["values" if name == "quantities" else name for name in super().names()]

    def __getitem__(self, name: str) -> Any:
        return self.quantities if name == "values" else super().__getitem__(name)


def architecture_at(flops: float, laws: Mapping[str, BandLaws] | None = None) -> BudgetArchitecture:
    """The complete architecture for a budget.

    Where no law gives the width, it is the middle one of the feasible widths, as in the paper's phase 1.

    Args:
      flops: the budget, M D.
      laws: {quantity: its fitted laws}, which take the place of the published ones.

    Raises:
      UserError: where the budget is too large, or no model can be built.
    """
    if flops > LARGEST:
        raise UserError(f"--flops={flops:g}: expected at most {LARGEST:g}: the laws are of 1e18 to 3e20")
    quantities = published.quantities(flops)
    for name, law in (laws or {}).items():
        if law.best:
            quantities[name] = _fitted(name, law, flops)
    fixed = published.family_at(flops)
    total_over_active = quantities["total_over_active"].known
    most = float(triads.largest_total_over_active(fixed))
    if not 1 < total_over_active < most:
        raise UserError(
            f"--flops={flops:g}: no model can be built: the fitted law gives N/N_a {total_over_active:.4g}, and "
            f"mixtures of {fixed.n_experts} experts have more than 1 and less than {most:.4g}"
        )
    triad = triads.of_ratios(quantities["flops_per_token"].known, quantities["m_over_active"].known, total_over_active)
    models = near_models.models_near(triad, fixed)
    if not models.by_width:
        why = near_models.why_none(triad, fixed, models.nearest)
        raise UserError(f"--flops={flops:g}: no model can be built: {why}")
    chosen = _of_width(models, quantities["d_model"].value)
    return BudgetArchitecture(
        flops=flops,
        quantities=quantities,
        model=BuiltModel.of(chosen.shape, flops, near_models.PAPER_GRID.seq_len),
        off=chosen.off,
        widths=(min(models.by_width), max(models.by_width)),
        outside=not published.BUDGETS[0] <= flops <= published.BUDGETS[-1],
    )


def _of_width(models: near_models.NearModels, wanted: float | None) -> near_models.NearModel:
    """The model of the feasible width nearest to the one wanted; of the middle one if none is."""
    if wanted is None:
        return models.middle
    return models.by_width[min(models.by_width, key=lambda d_model: abs(math.log(d_model / wanted)))]


def _fitted(name: str, laws: BandLaws, flops: float) -> Quantity:
    """A quantity by its fitted laws."""
    above = 6 if name == "m_over_active" else 0  # its laws are of M/N_a - 6

    def value_of(law: tuple[float, float] | None) -> float | None:
        """The value of one of the power laws; None where there is none."""
        return above + power(law, flops) if law else None

    return Quantity(value=value_of(laws.best), origin="fitted", low=value_of(laws.low), high=value_of(laws.high))
