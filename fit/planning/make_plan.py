"""Makes a plan: the best models, how sure the choice is, the model to build, its cost, and what to know of it."""

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.messages.finding import Finding
from fit.messages.lines import Line
from fit.model.architecture import PAPER
from fit.planning import make_problem, solve
from fit.planning.answer import plan_answer
from fit.planning.chosen import buildable, cost
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import dense_models, expected_tasks, other_budget, plan_findings, reasons_to_doubt, repeats
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.plan import Plan
from fit.planning.recipe import which_recipe
from fit.planning.recipe.recipe import Recipe
from fit.planning.search import solver
from fit.planning.several_laws import on_reference_model
from fit.planning.solve import Solution
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Odds
from fit.task_maps import maps as task_maps
from fit.task_maps.maps import TaskMaps


def plan(law: Law, options: PlanOptions) -> Plan:
    """The best model of a law within limits, beside the model to start from.

    Raises:
      UserError: No model is feasible.
    """
    solution = _solution_of(law, options)
    given = options.given(PlanOptions)
    given.pop("verbose", None)  # of the text alone
    like = on_reference_model.of_reference_model(law, options)
    maps = None
    if options.task_map is not None:
        maps = task_maps.load(options.task_map)
    answer_of = plan_answer.verbose if options.verbose else plan_answer.answer
    return _plan_of(solution, answer_of, given, like, maps)


def best_plan(law: Law, options: PlanOptions) -> Plan:
    """The plan without a reference model and expected tasks.

    Raises:
      UserError: No model is feasible.
    """
    return _plan_of(_solution_of(law, options))


def plan_within(problem: Problem) -> Plan:
    """The plan of a problem. Raises UserError where no model is feasible."""
    return _plan_of(solve.solve(problem))


def _solution_of(law: Law, options: PlanOptions) -> Solution:
    """The solution of the best width of experts that a token may use. Raises UserError where no model is feasible."""
    return solve.best_of_widths(
        [[architecture] for architecture in options.architectures(law)],
        functools.partial(make_problem.problem_of, law, options),
        fixes_expert_widths=options.fixes_expert_widths,
        target_loss=options.target_loss,
    )


def _plan_of(
    solution: Solution,
    answer_of: Callable[[Plan], Iterable[Line]] = plan_answer.answer,
    options: Json | None = None,
    like: Json | None = None,
    maps: TaskMaps | None = None,
) -> Plan:
    """The plan of a solution: the model to build, its cost, how sure it is, and what to know before trusting it.

    Args:
      solution: The solution.
      answer_of: What makes its answer.
      options, like: As in Plan.
      maps: From losses to accuracies of tasks.
    """
    problem = solution.problem
    law = problem.law
    architecture = problem.architecture
    optima = solution.optima
    best = solution.best
    # build
    built, run_recipe = buildable.build(problem, optima, best)
    if run_recipe is None:
        base_config, overrides = which_recipe.runs_config(law, architecture == PAPER)
    else:
        base_config = run_recipe.base_config
        overrides = run_recipe.overrides
    # cost
    chips = _training_chips(problem, optima, best, built)
    training = (built or best).cost
    energy = None
    if chips is not None and training is not None:
        # at an MFU the hours are those of all chips
        n_chips = chips.count if (built or best).speed is None else chips.n_used
        energy = cost.energy_of(chips.kind, n_chips, training.training_hours)
    how_sure = odds.odds_of(solution.ranking, _hours(problem, best), built, chips)
    tasks = {}
    if maps is not None:
        tasks = expected_tasks.of_model(built or best, law, maps)
    built_like = architecture.to_json()
    if solution.architectures is not None:
        built_like |= dict(active_width=architecture.active_width)
    return Plan(
        law=law.name,
        form=law.form.name,
        **built_like,
        constraints=problem.constraints.to_json(),
        optima=optima,
        infeasible=solution.infeasible,
        best=best,
        buildable=built,
        odds=how_sure,
        loss_of_token_cap=_loss_of_token_cap(problem, optima),
        dense=dense_models.against_dense(problem, best),
        rule_of_thumb=dense_models.rules_of_thumb(problem, best),
        base_config=base_config,
        overrides=overrides,
        extrapolation=best.extrapolation,
        best_at_edge=reasons_to_doubt.edge_of_best(law, problem.experts, best.n_experts) is not None,
        findings=[*_findings(solution, how_sure, built, run_recipe)],
        target=solution.reached,
        repeats=repeats.repeats_of(problem, optima, best),
        clock=other_budget.against_other_budget(solution.ranking),
        chips=chips,
        architectures=solution.architectures,
        like=like,
        energy=energy,
        options=options,
        problem=problem,
        **tasks,
        answer_of=answer_of,
        explicit=("dense",) if dense_models.are_compared(problem) else (),
    )


def _findings(
    solution: Solution, how_sure: Odds, built: Buildable | None, run_recipe: Recipe | None
) -> Iterator[Finding]:
    """Findings to know before trusting a plan."""
    problem = solution.problem
    best = solution.best
    yield from plan_findings.of_best(problem, best)
    yield from plan_findings.of_draws(how_sure, best.n_experts)
    yield from plan_findings.of_law(problem.law, solution.requested)
    if run_recipe is not None:
        yield from run_recipe.findings
    yield from repeats.findings_of(problem, best)
    yield from plan_findings.of_chips(problem, best, built)
    yield from solution.left_out


def _training_chips(
    problem: Problem, optima: list[Optimum], best: Optimum, built: Buildable | None
) -> ChipsUsed | None:
    """The chips as a plan has them, with the MFU of each optimum where speeds are modelled; None without chips."""
    chips = problem.constraints.chips
    if chips is None:
        return None
    mfu = chips.mfu
    is_assumed = chips.mfu_is_assumed
    if problem.has_modelled_speeds:
        mfu = buildable.modelled_mfu(optima)
        models = [*optima, built] if built else optima
        is_assumed = any(model.speed is None for model in models)
    used = best.chips if built is None else built.n_chips
    return ChipsUsed(
        kind=chips.kind,
        count=chips.count,
        used=used if used != chips.count else None,
        mfu=mfu,
        mfu_is_assumed=is_assumed or None,
        dollars_per_hour=chips.dollars_per_hour,
        devices=chips.devices,
    )


def _hours(problem: Problem, best: Optimum) -> float | None:
    """Hours of a budget by hours, else of the best model with its inference tokens; None without chips."""
    if problem.is_by_hours:
        return problem.budget_hours
    if best.cost is None:
        return None
    return best.cost.training_hours * (1 + problem.inference_equivalent / best.n_tokens)


def _loss_of_token_cap(problem: Problem, optima: list[Optimum]) -> float | None:
    """Nats per token that the cap on tokens costs the best, by the medians; None without a cap, or without a budget."""
    if problem.constraints.max_tokens is None or not problem.constraints.has_budget:
        return None
    solved = solver.best_of_each_number(repeats.of_fresh_text(problem.within(max_tokens=None)))
    return min(row.loss for row in optima) - float(np.nanmin(solved.loss))
