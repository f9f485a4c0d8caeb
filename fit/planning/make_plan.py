"""Makes a plan: the best models, how sure the choice is, the model to build, its cost, and what to know of it."""

import dataclasses
import math

import numpy as np

from fit.errors import UserError
from fit.fitted_law import expert_widths, repeated
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.finding import finding
from fit.messages.units import say
from fit.model.architecture import PAPER, Architecture
from fit.planning.answer import expected_tasks, plan_answer
from fit.planning.chosen import buildable, cost, optimum
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import dense_models, other_budget, plan_findings, repeats
from fit.planning.inputs.options import PlanOptions, experts_to_compare
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import TrainingChips
from fit.planning.plan import Plan
from fit.planning.search import solver, target
from fit.planning.search.target import Target
from fit.planning.several_laws import compare
from fit.planning.space import calibration, recipe
from fit.planning.uncertainty import odds
from fit.task_maps import maps as task_maps

MAX_WIDTH_ROUNDS = 4  # plans made again, with experts as wide as the law's runs had them at the planned size
WIDTH_TOLERANCE = 1e-3  # relative change of these widths that ends the rounds
OF_ARCHITECTURES = ("n_experts", "n_active", "n_total", "n_tokens", "loss")  # columns of Plan.architectures


def plan(law: Law, options: PlanOptions) -> Plan:
    """The best model of a law within limits, beside the model to start from.

    Raises:
      UserError: No model is feasible.
    """
    best = best_plan(law, options)
    given = options.given(PlanOptions)
    given.pop("verbose", None)  # of the text alone
    like = None
    if options.reference_model:
        like = compare.of_reference_model(options.reference_model, law, options.shape_fields, options.constraints())
    tasks = {}
    if options.task_map is not None:
        tasks = expected_tasks.of_plan(best, law, task_maps.load(options.task_map))
    return dataclasses.replace(
        best,
        answer_of=plan_answer.verbose if options.verbose else plan_answer.answer,
        options=given,
        like=like,
        **tasks,
    )


def best_plan(law: Law, options: PlanOptions) -> Plan:
    """The plan without a reference model. Of several architectures, the best one's, with the best model of each.

    Raises:
      UserError: No model is feasible.
    """
    plans: list[tuple[Architecture, Plan]] = []
    refusals: list[tuple[Architecture, UserError]] = []
    for architecture in options.architectures(law):
        try:
            plans.append((architecture, _plan_of_architecture(law, options, architecture)))
        except UserError as error:  # another of the architectures may be feasible
            refusals.append((architecture, error))
    if not plans:
        raise refusals[-1][1]
    best = min((plan for _, plan in plans), key=_cost_or_loss)
    if options.shape.used is not None and len(options.shape.used) > 1:
        best = _with_architectures(best, plans, refusals)
    return best


def _cost_or_loss(plan: Plan) -> float:
    """The measure that decides between plans: the FLOPs or hours that reach a target, else the loss."""
    return plan.best.loss if plan.target is None else plan.target.cost


def _with_architectures(
    best: Plan, plans: list[tuple[Architecture, Plan]], refusals: list[tuple[Architecture, UserError]]
) -> Plan:
    """The best plan, with the best model of each architecture, and findings on those with which none is feasible."""
    rows = []
    for architecture, plan in plans:
        best_of_width = {name: plan.best[name] for name in OF_ARCHITECTURES}
        rows.append(dict(active_width=architecture.active_width) | best_of_width)
    rows.sort(key=lambda row: row["active_width"])
    active_width = 1.0 if best.active_width is None else best.active_width  # the paper's own architecture has none
    left_out = [finding("width_left_out", used=refused.active_width, why=str(error)) for refused, error in refusals]
    findings = [*best.findings, *left_out]
    return dataclasses.replace(best, architectures=rows, active_width=active_width, findings=findings)


def _plan_of_architecture(law: Law, options: PlanOptions, architecture: Architecture) -> Plan:
    """The plan of one architecture, with experts as wide as the law's table has them at the size of the best model."""
    plan = _plan_of_widths(law, options, architecture)
    shares = law.models.shares
    if not shares or options.like is not None or options.fixes_expert_widths:
        return plan
    for _ in range(MAX_WIDTH_ROUNDS):
        wider = expert_widths.at_size(architecture, shares, plan.best.n_active, plan.best.n_experts)
        if math.isclose(wider.granularity, architecture.granularity, rel_tol=WIDTH_TOLERANCE):
            break
        architecture = wider
        plan = _plan_of_widths(law, options, architecture)
    return plan


def _plan_of_widths(law: Law, options: PlanOptions, architecture: Architecture) -> Plan:
    """The plan of one architecture, with its experts as wide as it says."""
    problem = problem_of(law, options, architecture)
    if options.target_loss is None:
        return plan_within(problem)
    _check_target(problem, options)
    problem, reached = target.reach(problem, options.target_loss)
    return plan_within(problem, reached)


def problem_of(law: Law, options: PlanOptions, architecture: Architecture) -> Problem:
    """The problem of models of one architecture.

    Raises:
      UserError: An option does not suit the law, or a table of speeds cannot be read.
    """
    experts = experts_to_compare(law, options.experts)
    plateau_tolerance = 0.0
    if options.epochs is not None and options.max_tokens is not None:
        law = repeated.of_law(law, options.max_tokens)
        plateau_tolerance = solver.NEAR if options.target_loss is None else 0.0  # a target is met exactly
    problem = Problem(law, architecture, options.constraints(experts), experts, plateau_tolerance=plateau_tolerance)
    if options.has_modelled_speeds:
        return calibration.at_modelled_speeds(problem, options.speeds)
    return problem


def _check_target(problem: Problem, options: PlanOptions) -> None:
    """Raises UserError where a target loss comes with a budget, or needs no training."""
    loss = options.target_loss
    assert loss is not None
    if options.hours is not None or problem.constraints.flops is not None:
        raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
    vocab_size = problem.architecture.vocab_size
    knows_nothing = math.log(vocab_size)
    if loss >= knows_nothing:
        sentence = sentences.TARGET_KNOWS_NOTHING
        raise UserError(say(sentence, loss=loss, size=vocab_size, nothing=knows_nothing))


def plan_within(problem: Problem, reached: Target | None = None) -> Plan:
    """The plan of one architecture under constraints.

    Args:
      problem: The problem.
      reached: The least budget that reaches a loss, where the problem's budget is that.

    Raises:
      UserError: No model is feasible.
    """
    law = problem.law
    architecture = problem.architecture
    constraints = problem.constraints
    # solve
    optima, infeasible = optimum.optima_of(problem)
    compared = [row.n_experts for row in optima]
    # how sure it is, and what is best
    ranking = odds.ranked(problem, optima)
    best = ranking.recommended if reached is None else ranking.best_by_median  # the target is met by the median
    # build
    built, run_recipe = buildable.of_plan(problem, optima, best)
    if run_recipe is None:
        base_config, overrides = recipe.runs_config(law, architecture == PAPER)
    else:
        base_config = run_recipe.base_config
        overrides = run_recipe.overrides
    # cost
    chips = _training_chips(problem, optima, built)
    training = (built or best).cost
    energy = None
    if chips is not None and training is not None:
        energy = cost.energy_of(chips, training.training_hours)
    how_sure = odds.of_ranking(ranking, _hours(problem, best), built, chips)
    # what to know before trusting it
    findings = [
        *plan_findings.of_best(problem, best),
        *plan_findings.of_draws(how_sure, best.n_experts),
        *plan_findings.of_law(law, architecture),
        *(run_recipe.findings if run_recipe else ()),
        *repeats.findings_of(problem, best),
        *plan_findings.of_chips(problem, best, built),
    ]
    return Plan(
        law=law.name,
        form=law.form.name,
        **architecture.to_json(),
        constraints=constraints.to_json(),
        optima=optima,
        infeasible=infeasible,
        best=best,
        buildable=built,
        odds=how_sure,
        loss_of_token_cap=_loss_of_token_cap(problem, best),
        dense=dense_models.against_dense(problem, best),
        rule_of_thumb=dense_models.rules_of_thumb(problem.at(best.n_experts)),
        base_config=base_config,
        overrides=overrides,
        extrapolation=best.extrapolation,
        best_at_edge=plan_findings.is_best_at_edge(law, problem.experts, best.n_experts),
        findings=findings,
        target=reached,
        repeats=repeats.repeats_of(problem, optima, best),
        clock=other_budget.against_other_budget(problem, ranking.best_by_median, compared),
        chips=chips,
        energy=energy,
        problem=problem,
        answer_of=plan_answer.answer,
        explicit=("dense",) if dense_models.are_compared(problem) else (),
    )


def _training_chips(problem: Problem, optima: list[Optimum], built: Buildable | None) -> TrainingChips | None:
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
    return TrainingChips(
        kind=chips.kind,
        count=chips.count,
        used=used if used != chips.count else None,
        mfu=mfu,
        mfu_is_assumed=is_assumed or None,
        dollars_per_hour=chips.dollars_per_hour,
        devices=chips.devices,
    )


def _hours(problem: Problem, best: Optimum) -> float | None:
    """Hours of the budget: those given, else those of the best model; None where they are not known."""
    if problem.is_by_hours:
        return problem.budget_hours
    return best.cost.training_hours if best.cost else None


def _loss_of_token_cap(problem: Problem, best: Optimum) -> float | None:
    """Nats per token that the cap on tokens costs; None without a cap, or without a budget."""
    if problem.constraints.max_tokens is None or not problem.constraints.has_budget:
        return None
    solved = solver.best_of_each_number(repeats.of_fresh_text(problem.within(max_tokens=None)))
    return best.loss - float(np.nanmin(solved.loss))
