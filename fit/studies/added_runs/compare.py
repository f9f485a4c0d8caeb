"""Added runs beside the predictions of a law, and the plans of a law before and after it was fitted to them."""

import dataclasses

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages.finding import Finding
from fit.model.architecture import training_flops
from fit.planning.inputs.options import PlanOptions
from fit.planning.make_plan import best_plan
from fit.prediction import predictions
from fit.studies.added_runs.new_rows import name_of
from fit.studies.added_runs.results import AddedRun, PlanChange, PlannedModel
from fit.table.table import Table

TIMES_LARGER = 10  # times the FLOPs of the largest added run, of the second budget at which plans are compared


def with_predictions(law: Law, rows: list[Json]) -> tuple[list[AddedRun], list[Finding]]:
    """(the runs beside the predictions of a law, findings on these)."""
    prediction = _predict(law, rows)
    predicted = prediction.columns
    lows = predicted.get("predicted_loss_low", predicted.get("law_loss_low"))
    highs = predicted.get("predicted_loss_high", predicted.get("law_loss_high"))
    runs = []
    for i, row in enumerate(rows):
        loss = float(row["loss"])
        low = None
        high = None
        inside = None
        if lows and highs:
            low = lows[i]
            high = highs[i]
            inside = bool(low <= loss <= high)
        runs.append(
            AddedRun(
                run=name_of(row),
                loss=loss,
                predicted_loss=predicted["predicted_loss"][i],
                low=low,
                high=high,
                n_active=float(row["n_active"]),
                n_tokens=float(row["n_tokens"]),
                n_experts=float(row["n_experts"]),
                inside=inside,
                outside_fitted_range=predicted["outside_fitted_range"][i],
            )
        )
    return runs, prediction.findings


def with_refitted_losses(runs: list[AddedRun], refitted: Law, rows: list[Json]) -> list[AddedRun]:
    """The runs with the losses that the law of all runs predicts. rows: the same runs."""
    losses = _predict(refitted, rows).columns["predicted_loss"]
    return [dataclasses.replace(run, refitted_loss=loss) for run, loss in zip(runs, losses, strict=True)]


def _predict(law: Law, rows: list[Json]) -> predictions.Predictions:
    """The predictions of a law for runs."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return predictions.predict(law, Table("the added runs", columns, list(range(len(rows)))))


def plan_changes(before: Law, after: Law, runs: list[AddedRun]) -> list[PlanChange]:
    """The best models by two laws for the FLOPs of the largest run, and for TIMES_LARGER times as many.

    A budget that one of the laws cannot plan is left out.
    """
    flops = max(float(training_flops(run.n_active, run.n_tokens)) for run in runs)
    changes = []
    for budget in (flops, TIMES_LARGER * flops):
        try:
            models = [_best_model(law, budget) for law in (before, after)]
        except UserError:
            continue
        changes.append(PlanChange(flops=budget, before=models[0], after=models[1]))
    return changes


def _best_model(law: Law, flops: float) -> PlannedModel:
    """The best model by a law for a budget. Raises UserError where the law cannot plan it."""
    best = best_plan(law, PlanOptions(flops=flops)).best
    return PlannedModel(n_experts=best.n_experts, n_active=best.n_active, n_tokens=best.n_tokens, loss=best.loss)
