"""A plan: the optima under constraints, the best model that can be built, what it costs, and what to know before
trusting it. plan_answer.py puts it into words, plan_config.py makes a training config of it.
"""

import dataclasses
import math

import numpy as np

from fit.aliases import Floats
from fit.errors import UserError
from fit.fitted_law import expert_widths
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.model.architecture import INFERENCE, PAPER, Architecture, training_flops
from fit.model.layout import Layout
from fit.planning import (
    buildable,
    by_hours,
    compare,
    cost,
    dense_models,
    expected_tasks,
    modelled_speed,
    odds,
    optimum,
    plan_answer,
    plan_findings,
    recipe,
    repeats,
    target,
)
from fit.planning.constraints import Constraints
from fit.planning.extrapolation import extrapolation_of
from fit.planning.options import PlanOptions, experts_to_compare
from fit.planning.problem import Problem, ProblemOnChips, problem_on_chips
from fit.planning.results import (
    OF_ARCHITECTURES,
    Buildable,
    ClockComparison,
    Infeasible,
    Odds,
    Optimum,
    Plan,
    Speed,
    Target,
    TrainingChips,
)
from fit.planning.training_chips import Chips
from fit.task_maps import maps as task_maps

MAX_WIDTH_ROUNDS = 4  # plans made again, with experts as wide as the law's runs had them at the planned size
WIDTH_TOLERANCE = 1e-3  # relative change of these widths that ends the rounds
OPTIMUM_COLUMNS = ("n_active", "n_total", "n_tokens", "loss", "d_model")  # columns of optimum.Optima that a plan has


def plan(law: Law, options: PlanOptions) -> Plan:
    """The best model of a law within limits, beside the model to start from.

    Raises:
      UserError: No model is feasible.
    """
    best = best_plan(law, options)
    if options.verbose:
        best = dataclasses.replace(best, answer_of=plan_answer.verbose)
    given = options.given(PlanOptions)
    given.pop("verbose", None)  # of the text alone
    best = dataclasses.replace(best, energy=cost.energy_of(best), options=given)
    if options.task_map is not None:
        best = expected_tasks.with_tasks(best, law, task_maps.load(options.task_map))
    reference = options.reference_model
    if reference:
        like = compare.of_reference_model(reference, law, options.shape_fields, options.constraints())
        best = dataclasses.replace(best, like=like)
    return best


def best_plan(law: Law, options: PlanOptions) -> Plan:
    """The plan without a reference model. Of several architectures, the best one's, with the best model of each.

    Raises:
      UserError: No model is feasible.
    """
    plans: list[tuple[Architecture, Plan]] = []
    refusal = None
    for architecture in options.architectures(law):
        try:
            plans.append((architecture, _plan_of_architecture(law, options, architecture)))
        except UserError as error:  # another of the architectures may be feasible
            refusal = error
    if refusal and not plans:
        raise refusal
    best = min((plan for _, plan in plans), key=_flops_or_loss)
    if options.shape.used is not None and len(options.shape.used) > 1:
        best = _with_architectures(best, plans)
    return best


def _flops_or_loss(plan: Plan) -> float:
    """The measure that decides between plans: the FLOPs that reach a target, else the loss."""
    if plan.target is not None and plan.target.best.flops is not None:
        return plan.target.best.flops
    return plan.best.loss


def _with_architectures(best: Plan, plans: list[tuple[Architecture, Plan]]) -> Plan:
    """The best plan, with the best model of each architecture."""
    rows = []
    for architecture, plan in plans:
        best_of_width = {name: plan.best[name] for name in OF_ARCHITECTURES}
        rows.append(dict(active_width=architecture.active_width) | best_of_width)
    rows.sort(key=lambda row: row["active_width"])
    active_width = 1.0 if best.active_width is None else best.active_width  # the paper's own architecture has none
    return dataclasses.replace(best, architectures=rows, active_width=active_width)


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
    experts = experts_to_compare(law, options.experts)
    constraints = dataclasses.replace(options.constraints(experts), epochs=options.epochs)
    if options.epochs is not None and options.max_tokens is not None:
        slack = optimum.NEAR if options.target_loss is None else 0  # a target is met exactly
        law = repeats.of_law(law, options.max_tokens, slack)
    reached = None
    if options.target_loss is not None:
        _check_target(options, architecture, constraints)
        constraints, reached = target.reach(law, architecture, constraints, experts, options.target_loss)
    request = constraints.request
    if constraints.chips is not None and request is not None and (options.is_by_time or options.prices_by_time):
        calibration = modelled_speed.calibration_of(law, architecture, constraints.chips, request, options.speeds)
        if options.is_by_time and options.hours is not None:
            constraints = constraints.in_hours(options.hours, calibration)
        else:
            constraints = dataclasses.replace(constraints, calibration=calibration)
    return plan_within(law, architecture, constraints, experts, reached)


def _check_target(options: PlanOptions, architecture: Architecture, constraints: Constraints) -> None:
    """Raises UserError where a target loss comes with a budget, or needs no training."""
    loss = options.target_loss
    assert loss is not None
    if options.hours is not None or constraints.flops is not None:
        raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
    knows_nothing = math.log(architecture.vocab_size)
    if loss >= knows_nothing:
        sentence = sentences.TARGET_KNOWS_NOTHING
        raise UserError(sentence.format(loss=loss, size=architecture.vocab_size, nothing=knows_nothing))


def odds_within(law: Law, architecture: Architecture, constraints: Constraints, experts: Floats) -> Odds:
    """How sure the best number of experts is under constraints, without the plan of its model.

    Raises:
      UserError: No model is feasible.
    """
    solved = optimum.optima(law, architecture, constraints, experts)
    optima, _ = _optimum_of_each(law, architecture, constraints, solved)
    return odds.of_plan(law, architecture, constraints, optima)


def plan_within(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    experts: Floats,
    reached: Target | None = None,
) -> Plan:
    """The plan of one architecture under constraints.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: The budget and the limits.
      experts: The numbers of experts to compare.
      reached: The least budget that reaches a loss, where the constraints' budget is that.

    Raises:
      UserError: No model is feasible.
    """
    problem = Problem(law=law, architecture=architecture, constraints=constraints, experts=experts)
    # solve
    solved = optimum.optima(law, architecture, constraints, experts)
    optima, infeasible = _optimum_of_each(law, architecture, constraints, solved)
    # how sure it is, and what is best
    how_sure = odds.of_plan(law, architecture, constraints, optima)
    best_by = how_sure.recommended if reached is None else how_sure.by_median  # the target is met by the median
    (best,) = (row for row in optima if row.n_experts == best_by)
    # build
    built, run_recipe = buildable.of_plan(problem, optima, best)
    base_config, overrides = _config(law, architecture, run_recipe)
    # cost
    priced = _priced(problem, optima, built, reached)
    (priced_best,) = (row for row in priced.optima if row.n_experts == best.n_experts)
    # what to know before trusting it
    findings = [
        *plan_findings.of_best(law, architecture, constraints, experts, best),
        *plan_findings.of_draws(how_sure, best.n_experts),
        *plan_findings.of_law(law, architecture),
        *(run_recipe.findings if run_recipe else ()),
        *repeats.findings_of(law, best),
        *plan_findings.of_chips(law, architecture, constraints, experts, best, priced.built),
    ]
    return Plan(
        law=law.name,
        form=law.form.name,
        **architecture.to_json(),
        constraints=constraints.to_json(),
        optima=priced.optima,
        infeasible=infeasible,
        best=priced_best,
        buildable=priced.built,
        odds=odds.priced(how_sure, priced.built, priced.chips, _hours(constraints, priced_best)),
        loss_of_token_cap=_loss_of_token_cap(law, architecture, constraints, experts, best),
        dense=dense_models.against_dense(law, architecture, constraints, best),
        rule_of_thumb=dense_models.rules_of_thumb(law, architecture, constraints, solved.n_experts, best),
        base_config=base_config,
        overrides=overrides,
        extrapolation=best.extrapolation,
        best_at_edge=plan_findings.is_best_at_edge(law, experts, best.n_experts),
        findings=findings,
        target=priced.target,
        repeats=repeats.repeats_of(law, architecture, constraints, experts, optima, best),
        clock=priced.clock,
        chips=priced.chips,
        problem=problem,
        answer_of=plan_answer.answer,
        explicit=("dense",) if dense_models.are_compared(law, constraints) else (),
    )


@dataclasses.dataclass(frozen=True)
class _Priced:
    """The models of a plan with their speeds and costs.

    Attributes:
      optima: The best model with each number of experts.
      built: The model to build; None where none can be built.
      clock: What FLOPs would choose in place of hours, or hours in place of FLOPs; None without modelled speeds.
      chips: The chips to train on; None without chips.
      target: The least budget that reaches a loss, where that is planned.
    """

    optima: list[Optimum]
    built: Buildable | None
    target: Target | None
    clock: ClockComparison | None = None
    chips: TrainingChips | None = None


def _priced(problem: Problem, optima: list[Optimum], built: Buildable | None, reached: Target | None) -> _Priced:
    """The models with their costs on the chips, at their modelled speeds where these are known."""
    architecture = problem.architecture
    constraints = problem.constraints
    chips = constraints.chips
    if chips is None:
        return _Priced(optima, built, reached)
    comparison = None
    if constraints.time_budget is not None or constraints.calibration is not None:
        on_chips = problem_on_chips(problem.law, architecture, constraints)
        optima = [_timed(row, on_chips) for row in optima]
        if built:
            built = dataclasses.replace(built, speed=_speed_of_buildable(built, on_chips))
        if reached:
            reached = modelled_speed.priced_target(reached, on_chips)
        comparison = _against_other_budget(on_chips, optima)
        chips = modelled_speed.with_modelled_mfu(chips, optima, built is None or built.speed is not None)
    with_costs = []
    for row in optima:
        row_cost = cost.cost_of(row, architecture, constraints, _in_use(chips, row.chips))
        with_costs.append(dataclasses.replace(row, cost=row_cost))
    used = None
    if built:
        used = _chips_of(built.layout, chips) if built.layout else None
        built_cost = cost.cost_of_buildable(built, architecture, constraints, _in_use(chips, used))
        built = dataclasses.replace(built, cost=built_cost)
    training_chips = TrainingChips(
        kind=chips.kind,
        count=chips.count,
        used=used if used != chips.count else None,
        mfu=chips.mfu,
        mfu_is_assumed=chips.mfu_is_assumed or None,
        dollars_per_hour=chips.dollars_per_hour,
        devices=chips.devices,
    )
    return _Priced(with_costs, built, reached, comparison, training_chips)


def _against_other_budget(problem: ProblemOnChips, optima: list[Optimum]) -> ClockComparison | None:
    """What FLOPs would choose in place of hours, or hours in place of FLOPs; None where no speed is modelled."""
    constraints = problem.constraints
    best = min(optima, key=lambda row: row.loss)  # by the medians, as the other budget's best is
    experts = [row.n_experts for row in optima]
    if constraints.time_budget is not None:
        return modelled_speed.against_flops(problem.law, problem.architecture, constraints, best, experts)
    if best.speed is None:
        return None
    hours = modelled_speed.hours_with_serving(constraints, best.n_tokens, best.speed)
    return modelled_speed.against_hours(problem, best.n_experts, hours, experts)


def _timed(row: Optimum, problem: ProblemOnChips) -> Optimum:
    """The best model with one number of experts, with its speed: by hours on the chips that it uses."""
    constraints = problem.constraints
    if constraints.time_budget is None:
        speed = modelled_speed.speed_of_optimum(problem, row.n_experts, row.n_active, row.n_tokens)
        return dataclasses.replace(row, speed=speed)
    chosen = by_hours.best_of(problem.law, problem.architecture, constraints, row.n_experts)
    assert chosen is not None
    used = chosen.chips if chosen.chips != problem.chips.count else None
    return dataclasses.replace(row, speed=modelled_speed.speed_of_best(chosen), chips=used)


def _speed_of_buildable(built: Buildable, problem: ProblemOnChips) -> Speed | None:
    """The speed of the model to build: in its own layout or, where that has none, of models of its size.

    None where the chips train no such model.
    """
    if built.modelled_speed is None or built.layout is None:
        return modelled_speed.speed_of_optimum(problem, built.experts_of_law, built.n_active, built.n_tokens)
    chips = problem.chips
    used = _in_use(chips, _chips_of(built.layout, chips))
    return modelled_speed.speed_of(problem.calibration, used, built.modelled_speed, built.n_active, built.n_tokens)


def _chips_of(layout: Layout, chips: Chips) -> int:
    """Number of chips of a layout."""
    return int(layout.n_devices) // chips.chip.devices


def _in_use(chips: Chips, count: int | None) -> Chips:
    """So many of the chips; None stands for all of them."""
    return chips if count is None else dataclasses.replace(chips, count=count)


def _hours(constraints: Constraints, best: Optimum) -> float | None:
    """Hours of the budget: those given, else those of the best model; None where they are not known."""
    if constraints.time_budget is not None:
        return float(np.asarray(constraints.hours))
    return best.cost.training_hours if best.cost else None


def _config(
    law: Law, architecture: Architecture, run_recipe: recipe.Recipe | None
) -> tuple[str | None, dict[str, str]]:
    """(config file that the training starts from, {field: literal} on top of it)."""
    if run_recipe:
        return run_recipe.base_config, run_recipe.overrides
    return recipe.runs_config(law, architecture == PAPER)


def _optimum_of_each(
    law: Law, architecture: Architecture, constraints: Constraints, solved: optimum.Optima
) -> tuple[list[Optimum], list[Infeasible]]:
    """The best model with each number of experts, and the numbers with which none is feasible."""
    low, high = optimum.near_optimal(law, architecture, constraints, solved)
    optima = []
    infeasible = []
    for i, e in enumerate(solved.n_experts):
        if not solved.feasible[i]:
            why = optimum.why_infeasible(law, architecture, constraints.at(e), e)
            infeasible.append(Infeasible(n_experts=int(e), why=why))
            continue
        model = solved.row(i, OPTIMUM_COLUMNS)
        memory_bytes = float(constraints.memory(architecture, solved.d_model[i], e))
        n_blocks = model["d_model"] / architecture.width_per_block
        if constraints.time_budget is not None:
            chosen = by_hours.best_of(law, architecture, constraints, e)
            assert chosen is not None
            memory_bytes = chosen.memory_bytes
            n_blocks = chosen.n_blocks
        optimum_row = Optimum(
            **model,
            size_bound=str(solved.size_bound[i]),
            memory_bytes=memory_bytes,
            training_flops=float(training_flops(solved.n_active[i], solved.n_tokens[i])),
            inference_flops_per_token=float(INFERENCE * solved.n_active[i]),
            near_optimal_n_active=[float(low[i]), float(high[i])] if np.isfinite(low[i]) else None,
            extrapolation=extrapolation_of(
                law,
                architecture,
                n_experts=model["n_experts"],
                n_active=model["n_active"],
                n_tokens=model["n_tokens"],
                n_total=model["n_total"],
                shape=(model["d_model"], n_blocks),
            ),
        )
        optima.append(optimum_row)
    return optima, infeasible


def _loss_of_token_cap(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, best: Optimum
) -> float | None:
    """Nats per token that the cap on tokens costs; None without a cap, or without a budget."""
    if constraints.max_tokens is None or not constraints.has_budget:
        return None
    uncapped = dataclasses.replace(constraints, max_tokens=None)
    solved = optimum.optima(repeats.of_fresh_text(law), architecture, uncapped, experts)
    return best.loss - float(np.nanmin(solved.loss))
