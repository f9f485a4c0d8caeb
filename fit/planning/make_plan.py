"""Makes a plan: the best models, how sure the choice is, the model to build, its cost, and what to know of it."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import expert_widths
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.lines import Line
from fit.messages.units import say
from fit.model.architecture import PAPER, Architecture
from fit.planning import make_problem
from fit.planning.answer import plan_answer
from fit.planning.chosen import buildable, cost, optimum
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.optimum import Infeasible, Optimum
from fit.planning.context import dense_models, expected_tasks, other_budget, plan_findings, reasons_to_doubt, repeats
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.plan import Plan
from fit.planning.recipe import which_recipe
from fit.planning.search import solver, target
from fit.planning.search.target import Target
from fit.planning.several_laws import on_reference_model
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Ranking
from fit.task_maps import maps as task_maps
from fit.task_maps.maps import TaskMaps

MAX_WIDTH_ROUNDS = 4  # plans made again, with experts as wide as the law's runs had them at the planned size
WIDTH_TOLERANCE = 1e-3  # relative change of these widths that ends the rounds
OF_ARCHITECTURES = ("n_experts", "n_active", "n_total", "n_tokens", "loss")  # columns of Plan.architectures


@dataclasses.dataclass(frozen=True)
class _Solution:
    """The best models of a problem, and which of them is recommended.

    Attributes:
      problem: The problem.
      optima: The best model with each number of experts.
      infeasible: The numbers of experts with which no model is feasible.
      ranking: The numbers of experts by their expected losses.
      reached: The least budget that reaches a loss, where the problem's budget is that.
      architectures: As in Plan, where this is the best of several architectures.
      left_out: Findings on those of them that are not feasible.
    """

    problem: Problem
    optima: list[Optimum]
    infeasible: list[Infeasible]
    ranking: Ranking
    reached: Target | None
    architectures: list[Json] | None = None
    left_out: tuple[Finding, ...] = ()

    @property
    def best(self) -> Optimum:
        """The recommended one."""
        return self.ranking.recommended

    @property
    def cost_or_loss(self) -> float:
        """The measure between architectures: FLOPs or hours that reach a target, else the expected loss."""
        return self.ranking.expected_loss if self.reached is None else self.reached.cost


def plan(law: Law, options: PlanOptions) -> Plan:
    """The best model of a law within limits, beside the model to start from.

    Raises:
      UserError: No model is feasible.
    """
    solution = _best_solution(law, options)
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
    return _plan_of(_best_solution(law, options))


def plan_within(problem: Problem) -> Plan:
    """The plan of a problem. Raises UserError where no model is feasible."""
    return _plan_of(_solve(problem, None))


def _best_solution(law: Law, options: PlanOptions) -> _Solution:
    """The solution of the best architecture.

    Raises:
      UserError: No model is feasible.
    """
    solutions: list[_Solution] = []
    refusals: list[tuple[Architecture, UserError]] = []
    for architecture in options.architectures(law):
        try:
            solutions.append(_of_architecture(law, options, architecture))
        except UserError as error:  # another of the architectures may be feasible
            refusals.append((architecture, error))
    if not solutions:
        raise refusals[-1][1]
    best = min(solutions, key=lambda solution: solution.cost_or_loss)
    if options.shape.used is None or len(options.shape.used) == 1:
        return best
    rows = []
    for solution in solutions:
        of_best = {name: solution.best[name] for name in OF_ARCHITECTURES}
        rows.append(dict(active_width=solution.problem.architecture.active_width) | of_best)
    return dataclasses.replace(
        best,
        architectures=sorted(rows, key=lambda row: row["active_width"]),
        left_out=tuple(finding("width_left_out", used=each.active_width, why=str(error)) for each, error in refusals),
    )


def _of_architecture(law: Law, options: PlanOptions, architecture: Architecture) -> _Solution:
    """The solution of one architecture, with experts as wide as the law's table has them at the size of the best."""
    solution = _solve(make_problem.problem_of(law, options, architecture), options.target_loss)
    shares = law.models.shares
    if not shares or options.like is not None or options.fixes_expert_widths:
        return solution
    for _ in range(MAX_WIDTH_ROUNDS):
        best = solution.best
        wider = expert_widths.at_size(architecture, shares, best.n_active, best.n_experts)
        if math.isclose(wider.granularity, architecture.granularity, rel_tol=WIDTH_TOLERANCE):
            break
        architecture = wider
        try:
            solution = _solve(make_problem.problem_of(law, options, architecture), options.target_loss)
        except UserError:  # with experts this wide no model is within the limits: those of the round before are
            break
    return solution


def _solve(problem: Problem, target_loss: float | None) -> _Solution:
    """The best models of a problem or, with a loss to reach, under the least budget that reaches it."""
    reached = None
    if target_loss is not None:
        _check_target(problem, target_loss)
        problem, reached = target.reach(problem, target_loss)
    optima, infeasible = optimum.optima_of(problem)
    ranking = odds.rank(problem, optima, by_medians=reached is not None)
    return _Solution(problem, optima, infeasible, ranking, reached)


def _check_target(problem: Problem, loss: float) -> None:
    """Raises UserError where a target loss comes with a budget, or needs no training."""
    if problem.constraints.has_budget:
        raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
    vocab_size = problem.architecture.vocab_size
    knows_nothing = math.log(vocab_size)
    if loss >= knows_nothing:
        sentence = sentences.TARGET_KNOWS_NOTHING
        raise UserError(say(sentence, loss=loss, size=vocab_size, nothing=knows_nothing))


def _plan_of(
    solution: _Solution,
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
    chips = _training_chips(problem, optima, built)
    training = (built or best).cost
    energy = None
    if chips is not None and training is not None:
        energy = cost.energy_of(chips, training.training_hours)
    how_sure = odds.odds_of(solution.ranking, _hours(problem, best), built, chips)
    # what to know before trusting it
    findings = [
        *plan_findings.of_best(problem, best),
        *plan_findings.of_draws(how_sure, best.n_experts),
        *plan_findings.of_law(law, architecture),
        *(run_recipe.findings if run_recipe else ()),
        *repeats.findings_of(problem, best),
        *plan_findings.of_chips(problem, best, built),
        *solution.left_out,
    ]
    tasks = {}
    if maps is not None:
        tasks = expected_tasks.of_model(built or best, law, maps)
    compared = [row.n_experts for row in optima]
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
        best_at_edge=reasons_to_doubt.is_best_at_edge(law, problem.experts, best.n_experts),
        findings=findings,
        target=solution.reached,
        repeats=repeats.repeats_of(problem, optima, best),
        clock=other_budget.against_other_budget(problem, solution.ranking.best_by_median, compared),
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


def _training_chips(problem: Problem, optima: list[Optimum], built: Buildable | None) -> ChipsUsed | None:
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
    used = chips.count
    if built and built.layout:
        used = chips.of_layout(built.layout).count
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
