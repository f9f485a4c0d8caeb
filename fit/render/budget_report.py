"""The opening of a report on a budget: the plan, its place on the frontier, where laws disagree, its price, and
the numbers behind it.

Its sentences are the lines of `fit plan`, and its comparison is that of `fit compare`, for the same options.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.extrapolation import in_words
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.messages import lines, units
from fit.model.architecture import TRAINING
from fit.model.chips import CHIPS
from fit.planning import make_comparison, make_plan
from fit.planning.answer import plan_answer, speed_lines
from fit.planning.chosen.cost import Cost
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import MFU, SECONDS_PER_HOUR
from fit.planning.plan import Plan
from fit.planning.several_laws.comparison import Comparison, LawPlan
from fit.render import elements, figures
from fit.render.opening import Opening
from fit.render.report_options import ReportOptions, budget_options, shape_of_law
from fit.table.runs import Runs

BY_FLOPS = "by FLOPs"
BY_CLOCK = "by wall-clock time"


def opening_of_budget(law: Law, measured: figures.Measured, report: ReportOptions, options: PlanOptions) -> Opening:
    """The opening of a report on the budget and limits of the options.

    Args:
      law: The law that plans.
      measured: Its runs, and which of them the fit kept out; None without runs.
      report: The laws to compare, and whether all is shown.
      options: The budget and the limits.

    Raises:
      UserError: No model is feasible, or a law to compare cannot be read.
    """
    from fit.render.figures import budget

    others = [load(name, "laws") for name in report.laws]
    plan = make_plan.plan(law, options)
    problem = plan.problem
    assert problem is not None
    with_budget = budget.with_budget(problem, plan.best.n_active, plan.best.n_tokens)
    runs = measured[0] if measured else None
    first, *rest = plan_answer.answer(plan)
    parts = [f'<p class="answer">{elements.text(first.value)}</p>', *lines.html(rest)]
    parts.append(_frontier(with_budget, "The plan on the compute frontier", plan, runs))
    parts += _by_wall_clock_time(law, options, plan)
    parts += _other_laws(law, others, options, plan)
    parts += ["<h2>Numbers to check</h2>", elements.table(list(_checks(plan)))]
    parts += ["<h2>The best model with each number of experts</h2>", elements.table(_optima(plan))]
    if report.verbose:
        details = elements.text(lines.text(plan_answer.verbose(plan)))
        parts.append(f"<details><summary>all that fit plan prints</summary><pre>{details}</pre></details>")
    parts += _against_runs(problem, measured, plan)
    title = f"What to train with {_budget(options, plan)}, by {pathlib.Path(law.name).name}"
    return Opening(title, parts, plan.warnings, plan)


def _budget(options: PlanOptions, plan: Plan) -> str:
    """The budget and the memory, in words."""
    limits = plan.constraints
    words = []
    if options.hours is not None and plan.chips is not None:
        words.append(f"{units.duration(options.hours)} of {plan.chips.count} x {plan.chips.kind}")
    elif plan.target is not None:
        words.append(f"the fewest FLOPs for a loss of {plan.target.loss:g}")
    elif isinstance(limits.get("flops"), float):
        words.append(f"{units.flops(limits['flops'])} FLOPs")
    if limits.get("memory_bytes") is not None:
        words.append(f"{units.memory(limits['memory_bytes'])} to serve")
    if limits.get("max_tokens") is not None:
        words.append(f"{units.amount(limits['max_tokens'])} tokens of text")
    return " and ".join(words)


def _frontier(problem: Problem, caption: str, plan: Plan | None, runs: Runs | None) -> str:
    """The section with the least loss under budgets around that of the plan."""
    from fit.render.figures import budget

    best = None
    if plan is not None:
        best = (float(plan.best.n_experts), plan.best.loss)
    try:
        figure, columns = budget.frontier(problem, best, runs)
    except UserError as e:
        return f"<h2>{elements.text(caption)}</h2>\n<p>{elements.text(e)}</p>"
    note = "Each curve is the least loss with one number of experts (E) under these limits, at other budgets."
    return elements.picture(caption, figures.image(figure), columns) + f'<p class="soft">{note}</p>'


def _by_wall_clock_time(law: Law, options: PlanOptions, plan: Plan) -> Iterator[str]:
    """The plans for the same hours on the chips by FLOPs and by modelled speed. Yields nothing without chips, or where
    no speed is modelled, as of the paper's shapes."""
    if plan.chips is None or plan.best.cost is None:
        return
    caption = "By wall-clock time"
    hours = _hours(options, plan, plan.best.cost)
    plans = {}
    is_priced_by_time = plan.clock is not None and options.hours is None  # FLOPs are the budget
    try:
        same_hours = dataclasses.replace(options, flops=None, target_loss=None, hours=hours, speeds=None, mfu=None)
        plans[BY_FLOPS] = plan
        if not is_priced_by_time:
            mfu = options.mfu if options.mfu is not None else MFU
            plans[BY_FLOPS] = make_plan.best_plan(law, dataclasses.replace(same_hours, mfu=mfu))
        plans[BY_CLOCK] = make_plan.best_plan(law, dataclasses.replace(same_hours, speeds=options.speeds))
    except UserError as e:
        yield f"<h2>{caption}</h2>\n<p>{elements.text(e)}</p>"
        return
    timed = plans[BY_CLOCK]
    if timed.clock is None:
        return
    chosen = plans[BY_FLOPS].best
    chips = f"{plan.chips.count} x {plan.chips.kind}"
    if chosen.n_experts == timed.best.n_experts:
        sentence = f"{units.duration(hours)} on {chips} choose {chosen.n_experts} experts in both ways."
    else:
        sentence = (
            f"{units.duration(hours)} on {chips} choose {chosen.n_experts} experts by FLOPs, "
            f"{timed.best.n_experts} by wall-clock time."
        )
    yield f"<h2>{caption}</h2>\n<p>{elements.text(sentence)}</p>"
    rows = []
    for name, each in plans.items():
        best = each.best
        mfu, label = _mfu_and_label(each)
        row = {column: best[column] for column in ("n_experts", "n_active", "n_total", "n_tokens", "loss")}
        rows.append({"": name, **row, "MFU": f"{mfu:.2g}", "the speed is": label})
    yield elements.table(rows)
    yield from lines.html([speed_lines.speeds(timed.clock, timed.optima), *speed_lines.differing(timed.clock)])
    if plan.clock is None or is_priced_by_time:
        problem = timed.problem
        assert problem is not None
        yield _frontier(problem, "Loss against hours on the same chips", timed, None)


def _hours(options: PlanOptions, plan: Plan, cost: Cost) -> float:
    """The budget in hours on the chips; without a budget, the hours of the training."""
    problem = plan.problem
    assert problem is not None
    chips = problem.constraints.chips
    if options.hours is not None:
        return options.hours
    if plan.clock is not None:
        return plan.clock.hours
    flops = problem.constraints.flops
    if chips is None or not isinstance(flops, float):
        return cost.training_hours
    return flops / chips.rate(plan.best.n_experts) / SECONDS_PER_HOUR


def _mfu_and_label(plan: Plan) -> tuple[float, str]:
    """The MFU at which the best model of a plan trains, and how that is known."""
    best = plan.best
    if plan.clock is not None and best.speed is not None:
        return best.speed.mfu[1], plan.clock.label
    assert plan.chips is not None and best.cost is not None
    peak = (best.chips or plan.chips.count) * CHIPS[plan.chips.kind].flops
    return best.training_flops / (best.cost.training_hours * SECONDS_PER_HOUR * peak), "assumed"


def _other_laws(law: Law, others: list[Law], options: PlanOptions, plan: Plan) -> Iterator[str]:
    """The section on the answers of other laws to the same budget, and on where they disagree."""
    yield "<h2>What the laws disagree about</h2>"
    flops = None
    if plan.target is not None and plan.target.best.flops is not None:
        flops = plan.target.best.flops
        yield (
            f"<p>The other laws have the {units.flops(flops)} FLOPs that the loss takes by "
            f"{elements.text(law.name)}: losses on other texts cannot be compared.</p>"
        )
    if options.epochs is not None:
        yield "<p>Here each law reads the text once.</p>"
    laws = [law, *(other for other in others if other.name != law.name)]
    shape = shape_of_law(options, law)
    if shape:
        added = "--shape=" + ",".join(f"{name}:{value}" for name, value in shape.items())
        yield f"<p>All build models like {elements.text(law.name)}: fit compare with {added}.</p>"
    try:
        comparison = make_comparison.compare(laws, budget_options(options, law, flops))
    except UserError as e:
        yield f"<p>{elements.text(e)}</p>"
        return
    yield f"<ul>{elements.items(comparison.conclusion)}</ul>"
    yield elements.table([_law_row(each) for each in comparison.laws])
    if comparison.infeasible:
        yield f"<ul>{elements.items(f'{each.law}: {each.why}' for each in comparison.infeasible)}</ul>"
    yield f'<p class="soft">{elements.text(comparison.about)}</p>'
    yield _agreement(comparison)


def _law_row(plan: LawPlan) -> Json:
    """A law's plan as a row."""
    dense = plan.dense
    is_mixture = plan.n_experts > 1
    row: Json = dict(law=plan.law, n_experts=plan.n_experts, n_active=plan.n_active, n_total=plan.n_total)
    row["n_tokens"] = plan.n_tokens
    row["below dense"] = f"{dense.loss_saved_share:.1%}" if dense and is_mixture else None
    ratio = None
    if dense and is_mixture and dense.explicit:
        ratio = f"x {dense.ratio:.3g}" if dense.ratio else "never"
    row["dense hours" if plan.speed else "dense FLOPs"] = ratio
    row["outside its data"] = in_words(plan.extrapolation) or None
    return row


def _agreement(comparison: Comparison) -> str:
    """A collapsed table of how far the laws' answers differ."""
    rows = []
    for row in comparison.agreement:
        low, high = (units.amount(value) for value in (row.low, row.high))
        rows.append(
            {
                "of": "best dense model" if row.of == "dense" else "best model",
                "column": row.column,
                "from": f"{low} ({row.low_law})",
                "to": f"{high} ({row.high_law})",
                "factor": f"{row.factor:.3g}",
            }
        )
    return f"<details><summary>how far they lie apart</summary>{elements.table(rows)}</details>"


def _checks(plan: Plan) -> Iterator[Json]:
    """Rows of the numbers behind the plan, each with its derivation."""
    problem = plan.problem
    assert problem is not None
    best = plan.best

    def row(what: str, value: str, how: str) -> Json:
        """A row of the table."""
        return {"quantity": what, "value": value, "how it follows": how}

    size = units.amount(best.n_active)
    tokens = units.amount(best.n_tokens)
    yield row("training FLOPs", units.flops(best.training_flops), f"{TRAINING:g} x {size} active x {tokens} tokens")
    served = problem.constraints.inference_tokens
    if served:
        inference = units.flops(best.inference_flops_per_token * served)
        yield row("FLOPs of serving", inference, f"2 x {size} active x {units.amount(served)} tokens")
    yield row("tokens for each active parameter", f"{best.n_tokens / best.n_active:.1f}", f"{tokens} / {size}")
    share = best.n_active / best.n_total
    yield row("active share", f"{share:.1%}", f"{size} of {units.amount(best.n_total)}")
    limits = problem.constraints
    how = f"{limits.bytes_per_parameter:g} bytes x {units.amount(best.n_total)} weights"
    if limits.kv_tokens:
        how += f", and a cache of {units.amount(limits.kv_tokens)} tokens"
    yield row("memory to serve", units.memory(best.memory_bytes), how)
    floor_name = getattr(problem.law.form.page, "FLOOR", None)
    if floor_name is not None:
        floor = problem.law.coefficients[floor_name]
        yield row("loss above the law's floor", f"{best.loss - floor:.4f}", f"{best.loss:.4f} - {floor:.4f}")
    if plan.chips is not None and best.cost is not None:
        yield from _price_checks(plan, best.cost)
    built = plan.buildable
    if built:
        how = f"{built.exact_parameters:,} weights, counted with norms and routers"
        yield row("model to build", units.amount(built.exact_parameters), how)
        yield row(
            "its training FLOPs",
            units.flops(built.exact_training_flops),
            f"counted, with attention; 6 N D gives {units.flops(built.training_flops)}",
        )
        yield row("its loss", f"{built.loss:.4f}", f"by the law, at {units.amount(built.n_active)} active")


def _price_checks(plan: Plan, cost: Cost) -> Iterator[Json]:
    """Rows on hours and dollars of the best model."""
    chips = plan.chips
    assert chips is not None
    best = plan.best
    mfu, label = _mfu_and_label(plan)
    peak = CHIPS[chips.kind].flops
    count = best.chips or chips.count
    how = f"{units.flops(best.training_flops)} FLOPs / ({count} x {peak / 1e12:,.0f} TFLOP/s x MFU {mfu:.3f})"
    yield {"quantity": f"hours ({label})", "value": f"{cost.training_hours:,.1f}", "how it follows": how}
    if cost.training_dollars is not None:
        how = f"{cost.training_hours:,.1f} hours x {count} chips x ${chips.dollars_per_hour:g}"
        yield {"quantity": "dollars", "value": f"${cost.training_dollars:,.0f}", "how it follows": how}


def _optima(plan: Plan) -> list[Json]:
    """The best model with each number of experts, a row each."""
    rows = []
    for optimum in plan.optima:
        row: Json = {name: optimum[name] for name in ("n_experts", "n_active", "n_total", "n_tokens", "loss")}
        row["memory_bytes"] = optimum.memory_bytes
        if optimum.cost is not None:
            row["hours"] = units.duration(optimum.cost.training_hours)
        row["size bound by"] = optimum.size_bound or None
        row["outside the fitted range"] = in_words(optimum.extrapolation) or None
        rows.append(row)
    return rows


def _against_runs(problem: Problem, measured: figures.Measured, plan: Plan) -> Iterator[str]:
    """The law against its runs: isoFLOP panels at budgets that runs have, residuals at the plan's number of experts."""
    from fit.render.figures import budget, loss, style

    if measured is None:
        return
    runs, held_out = measured
    law = problem.law
    caption = "The law and its runs: isoFLOP curves at budgets that runs have"
    try:
        with style.in_style():
            picture = style.Picture(law, problem.architecture, law.experts)
            figure, columns = loss.isoflop(picture, budget.isoflop_budgets(law, runs), runs)
        yield elements.picture(caption, figures.image(figure), columns)
    except UserError as e:
        yield f"<h2>{elements.text(caption)}</h2>\n<p>{elements.text(e)}</p>"
    n_experts = budget.nearest_experts(runs, plan.best.n_experts)
    figure, columns = budget.residuals(law, runs, held_out, n_experts)
    yield elements.picture(f"Residuals with {n_experts:g} experts", figures.image(figure), columns)
    yield f"<p>{elements.text(_residuals_in_words(plan, n_experts, columns))}</p>"


def _residuals_in_words(plan: Plan, n_experts: float, columns: dict[str, list]) -> str:
    """A sentence on how far the law is from its runs of `n_experts` experts."""
    percent = np.abs(np.array(columns["percent"], float))
    nearest = ""
    if n_experts != plan.best.n_experts:
        nearest = f"No run has the plan's {plan.best.n_experts} experts; {n_experts:g} is the nearest number. "
    times = plan.best.training_flops / max(columns["training_flops"])
    return (
        f"{nearest}Of {len(percent)} runs with {n_experts:g} experts the law is {percent.mean():.2f}% off on average, "
        f"{percent.max():.2f}% at most. The plan takes {units.amount(times)} times the FLOPs of the largest of them."
    )
