"""The best dense model beside a plan, and the paper's rule of thumb for mixtures of its size."""

import dataclasses

from fit.aliases import Floats, Json
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture, training_flops
from fit.planning import optimum, repeats, target
from fit.planning.constraints import Constraints
from fit.planning.extrapolation import extrapolation_of
from fit.planning.results import DenseComparison, Optimum, RuleOfThumb


def are_compared(law: Law, constraints: Constraints) -> bool:
    """Whether a plan compares its best with dense models: under a budget, by a law that knows them itself."""
    return constraints.has_budget and law.knows_dense and not law.dense


def against_dense(
    law: Law, architecture: Architecture, constraints: Constraints, best: Optimum
) -> DenseComparison | None:
    """The savings of the best plan against the best dense model under the same constraints (Fig. 2b), in FLOPs or in
    hours. None where no dense model is feasible, or where the plan does not compare with dense ones."""
    if not are_compared(law, constraints):
        return None
    constraints = constraints.at(best.n_experts)
    solved = optimum.solve(law, 1.0, architecture, constraints)
    if not solved.feasible:
        return None
    needed = constraints.amount  # of the best itself, whose loss rounding may leave just out of reach
    if best.n_experts > 1:
        needed = target.least_flops(law, 1.0, architecture, constraints, best.loss)
    saved = None if needed is None else 1 - constraints.amount / needed
    if constraints.time_budget is None:
        savings = dict(flops_for_the_same_loss=needed, flops_saved=saved)
    else:
        savings = dict(hours_for_the_same_loss=needed, hours_saved=saved)
    model = solved.row()
    return DenseComparison(
        **model,
        extrapolation=extrapolation_of(law, architecture, **_counts(model)),
        loss_saved=float(solved.loss) - best.loss,
        **savings,
        inference_flops_ratio=best.n_active / float(solved.n_active),
        explicit=tuple(savings),
    )


def _counts(model: Json) -> Json:
    """The fields of a row of optimum.Optima that extrapolation_of reads."""
    return {name: model[name] for name in ("n_experts", "n_active", "n_tokens")}


def rules_of_thumb(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, best: Optimum
) -> list[RuleOfThumb] | None:
    """The rule of thumb under the FLOPs of the best; None in hours, or where the plan does not compare with dense
    models."""
    if constraints.time_budget is not None or not are_compared(law, constraints):
        return None
    return rule_of_thumb(repeats.of_fresh_text(law), architecture, constraints.at(best.n_experts).flops, experts)


def rule_of_thumb(law: Law, architecture: Architecture, flops: float, experts: Floats) -> list[RuleOfThumb]:
    """Checks Sec. 4.5: a mixture of E <= 8 experts with the compute-optimal dense model's total parameters, on E times
    its tokens, is better. One row for each E of `experts` from 2 to 8."""
    dense = optimum.solve(law, 1.0, architecture, Constraints(flops=flops))
    same_size = Constraints(memory_bytes=float(dense.n_total), bytes_per_parameter=1.0)
    rows = []
    for e in experts:
        if not 1 < e <= 8:
            continue
        on_more_tokens = dataclasses.replace(same_size, max_tokens=float(e * dense.n_tokens))
        mixture = optimum.solve(law, e, architecture, on_more_tokens)
        if not mixture.feasible:
            continue
        model = mixture.row()
        row = RuleOfThumb(
            **model,
            dense_loss=float(dense.loss),
            holds=bool(mixture.loss < dense.loss),
            flops_ratio=float(training_flops(mixture.n_active, mixture.n_tokens) / flops),
            extrapolation=extrapolation_of(law, architecture, **_counts(model)),
        )
        rows.append(row)
    return rows
