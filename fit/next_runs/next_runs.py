"""Which runs to train next for a fitted law: the set, what it costs, what it should do for the goal."""

import ast
import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.data.runs import Runs, read_runs, split
from fit.data.table import Table
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_check import LEVEL
from fit.fitting.noise import Noise
from fit.next_runs import design
from fit.next_runs.design import Possible
from fit.planning import optimum
from fit.shape.architecture import Architecture, training_flops

DECAY = 0.2  # the part of each budget that its branch trains alone, unless the runs' config says otherwise
WIDTHS = 12  # of the candidates, evenly spaced in the logarithm
REACH = 4.0  # candidates have this many times more or fewer tokens a parameter than the runs had, at most
GRID_WIDTHS, GRID_BUDGETS = 4, (0.25, 0.5, 1.0)  # of the plain grid
STAGES = ("before", "after", "grid")  # with the fitted runs alone, with the chosen ones as well, with a plain grid's


def next_runs(
    law: Law,
    table: Table,
    architecture: Architecture,
    experts: Floats,
    flops: float,
    target_flops: float | None = None,
    names: Sequence[str] = (),
) -> Json:
    """What to train next within `flops`, as a dictionary ready for JSON.

    table: the runs that the law was fitted to. The goal is to know the loss and the best number of experts at
    target_flops or, without these, the coefficients `names`. The dictionary holds trunks, each with its model, budgets
    and FLOPs; flops, what they cost together; grid, what a plain grid of the same budget is; expected, how sure the
    goal is at each of STAGES. Raises UserError where the law is not a fit to these runs or cannot be planned with, or
    no run within the budget is worth it.
    """
    runs, seed = _fitted_runs(law, table)
    scatter = _noise_of(law)
    possible = candidates(law, architecture, experts, runs, flops)
    grid = plain_grid(law, architecture, experts, runs, flops)
    budget = optimum.Constraints(flops=target_flops or runs.flops.max())
    solved = optimum.optima(law, architecture, budget, experts)
    asked = optimum.columns_of(law, architecture, solved.d_model, solved.n_experts, solved.n_tokens)
    parts, of_coefficients, known = design.linearised(law, runs, scatter, (possible.columns, grid.columns, asked))
    of_possible, of_grid, of_asked = parts
    best = int(np.nanargmin(solved.loss))
    others = [i for i in np.flatnonzero(solved.feasible).tolist() if i != best]
    if target_flops:
        goals = np.stack([of_asked[best], *(of_asked[i] - of_asked[best] for i in others)])
    else:
        goals = of_coefficients[[law.form.names.index(name) for name in names]]
    problem = design.Design(possible, of_possible, goals, np.ones(len(goals)), **known)
    before = problem.variances(problem.jacobian[:0], possible.model[:0])
    if target_flops:
        # 1 for the loss; exp(-z^2 / 2) for a gap of z standard errors to the best: unsettled gaps count most
        above = np.log(solved.loss[others] / solved.loss[best])
        error = np.maximum(scatter.total, design.LEAST_NOISE) * np.sqrt(before[1:])
        problem.weights = np.append(1.0, np.exp(-0.5 * (above / np.maximum(error, 1e-300)) ** 2))
    else:  # by the share of a coefficient's variance that is left
        problem.weights = 1 / np.maximum(before, 1e-300)
    chosen = design.choose(problem, flops)
    if not chosen:
        raise UserError(f"--flops={flops:g}: no run within this budget makes the goal surer by {design.GAIN:.1%}")
    after = problem.variances(problem.jacobian[chosen], possible.model[chosen])
    with_grid = problem.variances(of_grid, grid.model)
    errors = scatter.total * np.sqrt(np.stack([before, after, with_grid], axis=1))
    if target_flops:
        expected = _plan(solved, best, others, errors)
    else:
        values = [dict(name=name, value=law.coefficients[name]) for name in names]
        expected = dict(
            coefficients=[row | dict(standard_error=_by_stage(e)) for row, e in zip(values, errors, strict=True)]
        )
    return dict(
        law=law.name,
        goal="plan" if target_flops else "coefficients",
        target_flops=target_flops,
        budget=flops,
        flops=possible.flops(chosen),
        flops_one_by_one=float(training_flops(possible.n_active[chosen], possible.n_tokens[chosen]).sum()),
        seed=seed,
        trunks=_trunks(possible, chosen, architecture),
        grid=dict(flops=grid.flops(range(len(grid))), runs=len(grid), trunks=int(grid.model.max()) + 1),
        expected=expected,
    )


def _fitted_runs(law: Law, table: Table) -> tuple[Runs, int]:
    """The Runs that the law was fitted to, and a seed that none of them had."""
    settings, described = law.record.get("settings") or {}, law.record.get("runs") or {}
    if law.published or "fingerprint" not in described:
        raise UserError(f"--law={law.name}: expected a law.json that fit law wrote: its runs are part of the question")
    runs = read_runs(table, law.form.columns, mix_corpora=True)
    if not runs.has(described["fingerprint"]):
        raise UserError(f"--runs={runs.path}: --law={law.name} was fitted to other runs ({described.get('file')})")
    law.check_plannable()
    rules = settings.get("holdout", "none"), settings.get("weights", "none"), settings.get("bootstrap_by", "trunk")
    fitted, _ = split(runs, *rules)
    seeds = runs.table.numbers("seed", (0, 2**31)) if "seed" in runs.table else np.zeros(1)
    return fitted, int(seeds.max()) + 1


def _noise_of(law: Law) -> Noise:
    """The Noise that fit law estimated from the residuals."""
    noise = law.record.get("noise") or {}
    if not {"run", "trunk", "degrees_of_freedom"} <= noise.keys():
        raise UserError(f"--law={law.name}: does not say how its runs scatter (noise): fit it again")
    return Noise(float(noise["run"]), float(noise["trunk"]), tuple(noise["degrees_of_freedom"]))


def _by_stage(errors: Array) -> Json:
    return dict(zip(STAGES, errors.tolist(), strict=True))


def _plan(solved: optimum.Optima, best: int, others: list[int], errors: Array) -> Json:
    """From the standard errors [g, stages] of the best's log loss and of the others' above it."""
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    loss, rows = float(solved.loss[best]), []
    for i, error in zip(others, errors[1:], strict=True):
        above = float(np.log(solved.loss[i] / loss))
        rows.append(dict(n_experts=int(solved.n_experts[i]), log_loss_above=above, log_error=_by_stage(error)))
    return dict(
        best=solved.row(best),
        level=LEVEL,
        loss=_by_stage(loss * np.exp(z * np.outer(errors[0], (-1, 1)))),
        log_error=_by_stage(errors[0]),
        others=rows,
    )


def _trunks(possible: Possible, chosen: list[int], architecture: Architecture) -> list[Json]:
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


def decay_of(law: Law) -> float:
    """The share of each budget in which the learning rate decays, by the config of the law's runs."""
    return float(ast.literal_eval((law.models["overrides"] or {}).get("optimizer.decay_fraction", str(DECAY))))


def possible_runs(law: Law, architecture: Architecture, n_blocks: Array, n_experts: Array, n_tokens: Array) -> Possible:
    """The Possible runs of these numbers; UserError where the law reads a column that no architecture determines."""
    d_model = n_blocks * float(architecture.width_per_block)
    columns = optimum.columns_of(law, architecture, d_model, n_experts, n_tokens)
    model = np.unique(np.stack([n_blocks, n_experts]), axis=1, return_inverse=True)[1].ravel()
    n_active = np.asarray(architecture.n_active(d_model, n_experts))
    return Possible(n_blocks, n_experts, n_tokens, model, n_active, columns, decay_of(law))


def _blocks(architecture: Architecture, n_active: float) -> int:
    """Whole blocks of about so many active parameters, at least the smallest model's."""
    least = round(architecture.smallest / architecture.width_per_block)
    return max(least, round(float(architecture.d_model(n_active)) / architecture.width_per_block))


def candidates(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
    """The Possible runs within a budget: widths from the narrowest of `runs` up; tokens from the fewest of `runs` up,
    doubled each time, at most as many as their text has. UserError where not even the cheapest is within the budget."""
    sizes, fewest, width = runs.n_active, runs.n_tokens.min(), float(architecture.width_per_block)
    narrowest = _blocks(architecture, sizes.min())
    cheapest = training_flops(architecture.n_active(narrowest * width), fewest)
    if cheapest > flops:
        raise UserError(
            f"--flops={flops:g}: the cheapest run, as small and short as those there are, takes {cheapest:.3g}"
        )
    widest = float(architecture.d_model(flops / training_flops(1, fewest))) / width
    blocks = np.unique(np.geomspace(narrowest, max(narrowest, int(widest)), WIDTHS).round().astype(int))
    experts = np.asarray(experts, int)[architecture.has_enough_experts(experts)]
    most = min(flops / cheapest * fewest, law.models["unique_tokens"] or np.inf)
    tokens = np.round(fewest * 2.0 ** np.arange(int(np.log2(max(most / fewest, 1))) + 1)).astype(int)
    grid = [a.ravel() for a in np.meshgrid(blocks, experts, tokens, indexing="ij")]
    n_active = architecture.n_active(grid[0] * width, grid[1])
    ratio, had = grid[2] / n_active, runs.n_tokens / sizes
    fine = (ratio >= had.min() / REACH) & (ratio <= had.max() * REACH)
    fine &= training_flops(n_active, grid[2]) <= flops * (1 + 1e-9)
    return possible_runs(law, architecture, *(a[fine] for a in grid))


def plain_grid(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
    """The Possible runs of a log-uniform grid that costs `flops`: GRID_WIDTHS widths from the narrowest of `runs` up,
    every number of experts, and budgets that are GRID_BUDGETS times the longest. The widest has about as many tokens a
    parameter as the median of `runs`."""
    decay, wanted = decay_of(law), np.median(runs.n_tokens / runs.n_active)
    narrowest = _blocks(architecture, runs.n_active.min())
    tried = []
    for widest in np.unique(np.geomspace(narrowest, 64 * narrowest, 64).round().astype(int)):
        blocks = np.unique(np.geomspace(narrowest, widest, GRID_WIDTHS).round().astype(int))
        n_active = architecture.n_active(blocks[:, None] * float(architecture.width_per_block), np.array(experts))
        n_active = np.broadcast_to(n_active, (len(blocks), len(experts))).mean(axis=1)
        each = training_flops(n_active.sum() * len(experts), (1 - decay) + decay * sum(GRID_BUDGETS))
        longest = min(flops / each, law.models["unique_tokens"] or np.inf)
        tried.append((abs(np.log(longest / n_active[-1] / wanted)), blocks, longest))
    _, blocks, longest = min(tried, key=lambda one: one[0])
    tokens = np.maximum(1, np.floor(longest * np.array(GRID_BUDGETS))).astype(int)
    grid = np.meshgrid(blocks, np.asarray(experts, int), np.unique(tokens), indexing="ij")
    return possible_runs(law, architecture, *(a.ravel() for a in grid))
