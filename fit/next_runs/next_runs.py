"""Which runs to train next for a fitted law: the set, what it costs, what it should do for the goal."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.data.runs import Runs, read_runs
from fit.data.table import Table
from fit.errors import UserError
from fit.fitting import holdout
from fit.fitting.noise import Noise
from fit.lawbook.lawcheck import LEVEL
from fit.lawbook.lawfile import Law
from fit.next_runs import candidates, design
from fit.planning import optimum
from fit.shape.architecture import Architecture, training_flops

STAGES = ("before", "after", "grid")  # with the fitted runs alone, with the chosen ones as well, with a plain grid's


@dataclasses.dataclass(frozen=True)
class Goal:
    """kind: "plan", the loss and the best number of experts at target_flops, or "coefficients", those of `names`."""

    kind: str
    target_flops: float | None = None
    names: tuple = ()


def next_runs(
    law: Law, runs: str | Table, architecture: Architecture, experts: Floats, flops: float, goal: Goal
) -> Json:
    """What to train next within `flops`, as a dictionary ready for JSON.

    runs: the file (or Table) that the law was fitted to. The dictionary holds trunks, each with its model, budgets and
    FLOPs; flops, what they cost together; grid, what a plain grid of the same budget is; expected, how sure the goal is
    at each of STAGES.

    Raises:
      UserError: the law is not a fit to these runs or cannot be planned with, or no run within the budget is worth it.
    """
    (found,) = of_several(law, runs, architecture, experts, [(flops, goal)])
    if isinstance(found, UserError):
        raise found
    return found


def of_several(
    law: Law, runs: str | Table, architecture: Architecture, experts: Floats, asked: Sequence[tuple[float, Goal]]
) -> list[Json | UserError]:
    """What next_runs gives for each of several (flops, goal), or the error that it raises for it; the law is linearised
    once for all of them. Raises UserError where the law is not a fit to these runs or cannot be planned with."""
    fitted = *_fitted_runs(law, runs), _noise_of(law)
    begun = [_begun(law, architecture, experts, fitted[0], flops, goal) for flops, goal in asked]
    parts = [part for one in begun if not isinstance(one, UserError) for part in one[-1]]
    fixed = (law.record.get("settings") or {}).get("fix") or {}
    (of_fitted, *gradients), *other = design.gradients(law, fitted[0], parts, tuple(fixed.items()))
    left, found = iter(gradients), []
    for one, (flops, goal) in zip(begun, asked):
        if not isinstance(one, UserError):
            of_parts = [next(left) for _ in one[-1]]
            one = _chosen(law, architecture, flops, goal, fitted, one, (of_fitted, *of_parts, *other))
        found.append(one)
    return found


def _begun(
    law: Law, architecture: Architecture, experts: Floats, fitted: Runs, flops: float, goal: Goal
) -> tuple | UserError:
    """(candidates, plain grid, optima that are asked about, the columns of these three)."""
    try:
        possible = candidates.candidates(law, architecture, experts, fitted, flops)
        grid = candidates.plain_grid(law, architecture, experts, fitted, flops)
        budget = optimum.Constraints(flops=goal.target_flops or fitted.flops.max())
        solved = optimum.optima(law, architecture, budget, experts)
    except UserError as error:
        return error
    asked = candidates.columns_of(law, architecture, solved.d_model, solved.n_experts, solved.n_tokens)
    return possible, grid, solved, (possible.columns, grid.columns, asked)


def _chosen(
    law: Law, architecture: Architecture, flops: float, goal: Goal, fitted: tuple, begun: tuple, gradients: tuple
) -> Json | UserError:
    """The answer to one question, by what _fitted_runs and _noise_of, _begun and design.gradients give."""
    (runs, seed, scatter), (possible, grid, solved, _) = fitted, begun
    of_fitted, of_possible, of_grid, of_asked, of_coefficients, prior = gradients
    problem, unit = design.design_of(possible, of_fitted, of_possible, prior, scatter, runs)
    if goal.kind == "plan":
        best = int(np.nanargmin(solved.loss))
        others = [i for i in np.flatnonzero(solved.feasible).tolist() if i != best]
        goals = np.stack([of_asked[best], *(of_asked[i] - of_asked[best] for i in others)])
    else:
        goals = of_coefficients[[law.form.names.index(name) for name in goal.names]]
    problem.goals = goals @ unit
    before = problem.variances(problem.jacobian[:0], possible.model[:0])
    if goal.kind == "plan":
        # 1 for the loss; exp(-z^2 / 2) for a gap of z standard errors to the best: unsettled gaps count most
        above = np.log(solved.loss[others] / solved.loss[best])
        error = np.maximum(scatter.total, design.LEAST_NOISE) * np.sqrt(before[1:])
        problem.weights = np.append(1.0, np.exp(-0.5 * (above / np.maximum(error, 1e-300)) ** 2))
    else:  # by the share of a coefficient's variance that is left
        problem.weights = 1 / np.maximum(before, 1e-300)
    chosen = design.choose(problem, flops)
    if not chosen:
        return UserError(f"--flops={flops:g}: no run within this budget makes the goal surer by {design.GAIN:.1%}")
    after = problem.variances(problem.jacobian[chosen], possible.model[chosen])
    with_grid = problem.variances(of_grid @ unit, grid.model)
    errors = scatter.total * np.sqrt(np.stack([before, after, with_grid], axis=1))
    if goal.kind == "plan":
        expected = _plan(solved, best, others, errors)
    else:
        rows = [
            dict(name=n, value=law.coefficients[n], standard_error=_by_stage(e)) for n, e in zip(goal.names, errors)
        ]
        expected = dict(coefficients=rows)
    return dict(
        law=law.name,
        goal=goal.kind,
        target_flops=goal.target_flops,
        budget=flops,
        flops=possible.flops(chosen),
        flops_one_by_one=float(training_flops(possible.n_active[chosen], possible.n_tokens[chosen]).sum()),
        seed=seed,
        trunks=_trunks(possible, chosen, architecture),
        grid=dict(flops=grid.flops(range(len(grid))), runs=len(grid), trunks=int(grid.model.max()) + 1),
        expected=expected,
    )


def _fitted_runs(law: Law, table: str | Table) -> tuple[Runs, int]:
    """(the Runs that the law was fitted to, a seed that none of them had); UserError where it was not fitted to
    these."""
    settings, described = law.record.get("settings") or {}, law.record.get("runs") or {}
    if law.published or "fingerprint" not in described:
        raise UserError(f"--law={law.name}: expected a law.json that fit law wrote: its runs are part of the question")
    runs = read_runs(table, law.form.columns, mix_corpora=True, names=settings.get("columns"))
    if runs.fingerprint() != described["fingerprint"]:
        raise UserError(f"--runs={runs.path}: --law={law.name} was fitted to other runs ({described.get('file')})")
    law.check_plannable()
    rules = settings.get("holdout", "none"), settings.get("weights", "none"), settings.get("bootstrap_by", "trunk")
    fitted, _ = holdout.split(runs, *rules)
    seeds = runs.table.numbers("seed", (0, 2**31)) if "seed" in runs.table else np.zeros(1)
    return fitted, int(seeds.max()) + 1


def _noise_of(law: Law) -> Noise:
    """The Noise that fit law estimated from the residuals."""
    noise = law.record.get("noise") or {}
    if not {"run", "trunk", "degrees_of_freedom"} <= noise.keys():
        raise UserError(f"--law={law.name}: does not say how its runs scatter (noise): fit it again")
    return Noise(float(noise["run"]), float(noise["trunk"]), tuple(noise["degrees_of_freedom"]))


def _by_stage(errors: Array) -> Json:
    return dict(zip(STAGES, errors.tolist()))


def _plan(solved: optimum.Optima, best: int, others: list[int], errors: Array) -> Json:
    """What is expected of a plan, from the standard errors [g, stages] of the best's log loss and of the others' above
    it."""
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    loss, rows = float(solved.loss[best]), []
    for i, error in zip(others, errors[1:]):
        above = float(np.log(solved.loss[i] / loss))
        rows.append(dict(n_experts=int(solved.n_experts[i]), log_loss_above=above, log_error=_by_stage(error)))
    return dict(
        best=solved.row(best),
        level=LEVEL,
        loss=_by_stage(loss * np.exp(z * np.outer(errors[0], (-1, 1)))),
        log_error=_by_stage(errors[0]),
        others=rows,
    )


def _trunks(possible: candidates.Possible, chosen: list[int], architecture: Architecture) -> list[Json]:
    """A dictionary for each model to train, by experts and size."""
    rows = {}
    for i in chosen:
        rows.setdefault((int(possible.n_experts[i]), int(possible.n_blocks[i])), []).append(i)
    return [
        dict(
            n_experts=e,
            d_model=n_blocks * architecture.width_per_block,
            n_blocks=n_blocks,
            n_active=float(possible.n_active[of[0]]),
            n_tokens=sorted(int(possible.n_tokens[i]) for i in of),
            flops=possible.flops(of),
        )
        for (e, n_blocks), of in sorted(rows.items())
    ]
