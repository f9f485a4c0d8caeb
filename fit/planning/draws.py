"""A plan by the draws of the law's bootstrap: intervals, and how often each number of experts is the best."""

import numpy as np

from fit.aliases import ByName, Floats, Json
from fit.fitted_law import own_counts
from fit.fitted_law.law import Law
from fit.planning import optimum
from fit.planning.constraints import Constraints
from fit.planning.results import Bootstrap, DrawnOptimum
from fit.shape.architecture import Architecture, training_flops


def bootstrap(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, planned: float
) -> Bootstrap | None:
    """The plan solved again for each draw of the law's bootstrap.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: The budget and the limits.
      experts: The numbers of experts compared.
      planned: The number of experts of the plan's best.

    Returns:
      None without draws, or where none of them has an optimum.
    """
    if not law.draws:
        return None
    usable = optimum.usable_draws(law, experts)
    if not usable.any():
        return None
    draws = {name: values[usable] for name, values in law.draws.items()}
    solved = [optimum.solve(law, e, architecture, constraints.at(e), draws) for e in experts]
    losses = np.array([np.where(s.feasible, s.loss, np.inf) for s in solved])  # [n_experts, draws]
    best = np.argmin(losses, axis=0)
    chosen = losses[list(experts).index(planned)]
    rows = []
    for i, s in enumerate(solved):
        if not s.feasible.all():
            continue
        # the form's own error is the same for all numbers of experts: it widens the losses, and changes no best one
        flops = training_flops(own_counts.size(law, architecture, s.n_active, s.d_model), s.n_tokens)
        drifted = s.loss * np.exp(law.log_change(flops, usable))
        columns = dict(n_active=s.n_active, n_tokens=s.n_tokens, loss=drifted)
        ends = np.percentile(list(columns.values()), law.percentiles, axis=1, method="weibull").T.tolist()
        row = DrawnOptimum(
            n_experts=int(experts[i]),
            best_in_draws=int(np.sum(best == i)),
            behind=np.percentile(losses[i] - chosen, law.percentiles, method="weibull").tolist(),
            **dict(zip(columns, ends, strict=True)),
            forms=medians_by_form(draws, columns),
        )
        rows.append(row)
    settings = law.record["bootstrap"]
    regret = np.percentile(chosen - losses.min(axis=0), law.percentiles[1], method="weibull")
    return Bootstrap(
        form=settings["form"],
        percentiles=law.percentiles,
        by=settings.get("by", "runs"),
        draws=int(usable.sum()),
        draws_without_optimum=int((~usable).sum()),
        regret=float(regret),
        optima=rows,
        source=law.source_of_draws or None,
    )


def medians_by_form(draws: ByName, columns: ByName) -> Json | None:
    """{additive, coupled: {draws, and the median of each column}} of draws of both forms, those with k = 1 and the
    others; None where all are of one form. columns: {name: [n_draws]}."""
    if "k" not in draws:
        return None
    is_additive = np.asarray(draws["k"]) == 1
    if is_additive.all() or not is_additive.any():
        return None
    by_form = {}
    for name, of_form in (("additive", is_additive), ("coupled", ~is_additive)):
        medians = {column: float(np.median(np.asarray(values)[of_form])) for column, values in columns.items()}
        by_form[name] = dict(draws=int(of_form.sum())) | medians
    return by_form
