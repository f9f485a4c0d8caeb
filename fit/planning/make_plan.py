"""Makes a plan: the best models, how sure the choice is, the model to build, its cost, and what to know of it."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from fit.fitted_law.law import Law
from fit.messages.finding import Finding
from fit.model.architecture import PAPER
from fit.planning import make_problem, solve
from fit.planning.answer import plan_answer
from fit.planning.chosen.build import build
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import chips_used
from fit.planning.chosen.model_cost import energy_of
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import dense_models, expected_tasks, other_budget, plan_findings, reasons_to_doubt, repeats
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.plan import Plan
from fit.planning.recipe import which_recipe
from fit.planning.search import solver
from fit.planning.several_laws import on_reference_model
from fit.planning.solve import Solution
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Odds
from fit.task_maps import maps as task_maps


def plan(law: Law, options: PlanOptions) -> Plan:
    """The best model of a law within limits, beside the model to start from, and with the accuracies to expect.

    Raises:
      UserError: No model is feasible.
    """
    maps = None if options.task_map is None else task_maps.load(options.task_map)  # a typo is to cost no search
    best = best_plan(law, options)
    given = options.given(PlanOptions)
    given.pop("verbose", None)  # of the text alone
    tasks = {}
    if maps is not None:
        tasks = expected_tasks.of_model(best.buildable or best.best, law, maps)
    return dataclasses.replace(
        best,
        like=on_reference_model.of_reference_model(law, options),
        options=given,
        **tasks,
        answer_of=plan_answer.verbose if options.verbose else plan_answer.answer,
    )


def best_plan(law: Law, options: PlanOptions) -> Plan:
    """The plan without a reference model and expected tasks.

    Raises:
      UserError: No model is feasible.
    """
    solution = solve.best_of_widths(
        [[architecture] for architecture in options.architectures(law)],
        functools.partial(make_problem.problem_of, law, options),
        fixes_expert_widths=options.fixes_expert_widths,
        target_loss=options.target_loss,
    )
    return _plan_of(solution)


def plan_within(problem: Problem) -> Plan:
    """The plan of a problem. Raises UserError where no model is feasible."""
    return _plan_of(solve.solve(problem))


def _plan_of(solution: Solution) -> Plan:
    """The plan of a solution: the model to build, its cost, how sure it is, and what to know before trusting it."""
    problem = solution.problem
    law = problem.law
    architecture = problem.architecture
    optima = solution.optima
    best = solution.best
    built = build(problem, optima, best)
    if built is None:
        base_config, overrides = which_recipe.runs_config(law, architecture == PAPER)
    else:
        base_config = built.recipe.base_config
        overrides = built.recipe.overrides
    chips = chips_used(problem, optima, best, built)
    how_sure = odds.odds_of(solution.ranking, _hours(problem, best), built, chips)
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
        findings=[*_findings(solution, how_sure, built)],
        target=solution.reached,
        repeats=repeats.repeats_of(problem, optima, best),
        clock=other_budget.against_other_budget(solution.ranking),
        chips=chips,
        architectures=solution.architectures,
        energy=None if chips is None else energy_of(built or best, chips),
        problem=problem,
        answer_of=plan_answer.answer,
        explicit=("dense",) if dense_models.are_compared(problem) else (),
    )


def _findings(solution: Solution, how_sure: Odds, built: Buildable | None) -> Iterator[Finding]:
    """Findings to know before trusting a plan."""
    problem = solution.problem
    best = solution.best
    yield from plan_findings.of_best(problem, best)
    yield from plan_findings.of_draws(how_sure, best.n_experts)
    yield from plan_findings.of_law(problem.law, solution.requested)
    if built is not None:
        yield from built.recipe.findings
    yield from repeats.findings_of(problem, best)
    yield from plan_findings.of_chips(problem, best, built)
    yield from solution.left_out


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
