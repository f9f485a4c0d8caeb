"""All of a plan that its answer leaves out: tables, and what follows from them."""

from collections.abc import Iterator

from fit.fitted_law.extrapolation import in_words, warning_of
from fit.fitted_law.published_draws import drawing_in_words
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import amount, duration, say, table
from fit.planning.answer import cost_tables, reference_lines, speed_lines, task_lines
from fit.planning.chosen.buildable import Buildable
from fit.planning.context.dense_models import DenseComparison, RuleOfThumb
from fit.planning.plan import Plan
from fit.planning.search.target import TargetRow
from fit.planning.uncertainty.odds import Odds

OPTIMA = (
    "{n_experts:>9} {n_active:amount:>8} {n_total:amount:>8} {n_tokens:amount:>8} {loss:.4f:>8} "
    "{memory_bytes:memory:>8}  {size_bound::13} {mark}"
)
NEAR_LINE = "{n_experts} experts: {near_optimal_n_active:amount}"
REPEATED = (
    "{epochs:.2f} epochs of {unique_tokens:amount} tokens are worth {effective_tokens:amount} fresh tokens, and "
    "{n_active:amount} active parameters on them {effective_n_active:amount}. The loss is {loss_saved:.4f} lower than "
    "with one epoch ({source})"
)
DRAWN = "{n_experts:>9} n_active {n_active:amount:16} n_tokens {n_tokens:amount:16} loss {loss:.4f}"
OF_BEST = (
    ", best in {best_in_draws}; regret {mean:.4f} nats ({high:.4f} at the 90th percentile), {share:.1%} of the budget"
)
BUILT = (
    "n_experts {n_experts}, d_model {d_model}, {n_blocks} blocks, {n_heads} heads, d_ff {d_ff}, vocabulary "
    "{vocab_size:,}; {n_tokens:,} tokens, loss {loss:.4f}, {memory_bytes:memory}"
)
BUILT_STRUCTURE = (
    "top_k {top_k}, d_expert {d_expert}, {n_shared_experts} shared experts, {n_dense_blocks} dense blocks, "
    "{n_kv_heads} heads of keys and values, head_dim {head_dim}"
)
BUILT_PARAMETERS = (
    "parameters {exact_parameters:,} with norms and routers ({n_active:,} active, {n_total:,} in total as the law "
    "counts)"
)
BUILT_FLOPS = (
    "training FLOPs {training_flops:.4g} as the law counts, {exact_training_flops:.4g} exactly ({sequence} tokens of "
    "context)"
)
ARCHITECTURES = "by the experts' width that a token uses, each at its best; above and below it is {active_width:g}:"
ARCHITECTURE = (
    "used {active_width:g}: n_experts {n_experts}, n_active {n_active:amount}, n_total {n_total:amount} on "
    "{n_tokens:amount} tokens, loss {loss:.4f}"
)
TARGETS = (
    "{n_experts:>9} {n_active:amount:>9} {n_tokens:amount:>9} {training_flops:.3g:>11} {inference_flops:.3g:>11} "
    "{flops:.3g:>11}{end}"
)
FRONT_LINE = (
    "{flops:.3g:>9} FLOPs{price}: loss {loss:.4f}, E = {n_experts}, n_active {n_active:amount} on {n_tokens:amount} "
    "tokens"
)
AGAINST_DENSE = (
    "against the best dense model (n_active {n_active:amount}, {n_tokens:amount} tokens, loss {loss:.4f}): loss "
    "{loss_saved:.4f} lower, {saved}; serving a token takes {inference_flops_ratio:.0%} of the dense model's FLOPs"
)
RULE_OF_THUMB = (
    "  E = {n_experts}: {verdict} here, loss {loss:.4f} against {dense_loss:.4f} (with {flops_ratio:.2f} times its "
    "FLOPs)"
)


def details(plan: Plan) -> Iterator[Line]:
    """All of a plan but its answer (plan_answer.py)."""
    return lines.joined(_parts(plan))


def _parts(plan: Plan) -> Iterator[list[Line]]:
    """The parts of the details, some of them empty."""
    if plan.like is not None:
        yield [*reference_lines.reference_lines(plan.like, plan.like.laws or [], plan.like.infeasible or [])]
    yield [*_optima(plan)]
    if plan.odds.drawn:
        yield [*_draws(plan.odds)]
    if plan.architectures:
        rows = [say(ARCHITECTURE, **row) for row in plan.architectures]
        yield [Line("", say(ARCHITECTURES, active_width=plan.active_width), tuple(rows))]
    if plan.buildable:
        yield [_buildable(plan.buildable)]
    if plan.tasks:
        yield [task_lines.all_tasks(plan)]
    if plan.chips:
        yield [*cost_tables.training(plan, plan.chips)]
        if plan.clock:
            yield [speed_lines.speeds(plan.clock, plan.optima)]
        yield [*cost_tables.serving_speeds(plan, plan.chips)]
    if plan.repeats:
        sizes = {**plan.repeats, **plan.repeats.best, "n_active": plan.best.n_active}
        yield [Line.of("", REPEATED, **sizes)]
    if plan.target:
        rows = [say(FRONT_LINE, **row, price=_price(row)) for row in plan.target.front]
        yield [_target(plan)]
        yield [Line("", "loss against cost:", tuple(rows))]
    yield [*_comparisons(plan)]
    yield lines.warnings(plan.findings)


def _draws(odds: Odds) -> Iterator[Line]:
    """The intervals of each number of experts, how often each is the best, its regret, and what decides."""
    first, last = odds.percentiles or []
    drawn = drawing_in_words(odds.form, odds.by) if odds.form else "by the spread of published speeds"
    draws = f"{odds.draws} draws of {' and '.join(odds.drawn)} ({drawn})"
    rows = []
    for row in odds.experts:
        words = say(DRAWN, **row)
        if odds.second is not None:
            words += say(OF_BEST, **row, mean=row.regret[0], high=row.regret[1], share=row.regret_share[0])
        rows.append(words)
    yield Line("", f"{first:g}th to {last:g}th percentile of {draws}:", tuple(rows))
    if odds.speed_share is not None and len(odds.drawn) > 1:
        yield Line(
            "",
            f"what decides between {odds.recommended} and {odds.second} experts: speeds have {odds.speed_share:.0%} of "
            f"the variance of the difference, the law has {1 - odds.speed_share:.0%}",
        )
    if odds.bound:
        between = f"{odds.recommended} or {odds.second} experts"
        yield Line("", f"a limit decides, too, that of {odds.bound}: it bounds the size of a model with {between}")


def _optima(plan: Plan) -> Iterator[Line]:
    """A row for each number of experts; the sizes that are nearly as good; what lies outside the fitted range.

    That leaves out the FLOPs: these are those given, and the warning below names them.
    """
    rows: list = [{**row, "mark": "<- best" if row is plan.best else ""} for row in plan.optima]
    rows += [f"{row.n_experts:9d} not feasible: {row.why}" for row in plan.infeasible]
    yield lines.rows(table(OPTIMA, rows, memory_bytes="memory", size_bound="size bound by", mark=""))
    near = [say(NEAR_LINE, **row) for row in plan.optima if row.near_optimal_n_active]
    if near:
        yield Line("n_active within 0.1% of the best loss", "; ".join(near))
    outside = []
    for row in plan.optima:
        words = in_words(value for value in row.extrapolation if value.column != "training_flops")
        if words:
            outside.append(f"{row.n_experts:9d} {words}")
    if outside:
        yield Line("", "outside the fitted range:", tuple(outside))


def _buildable(built: Buildable) -> Line:
    """The model to build: shape and exact counts."""
    more = []
    if built.top_k is not None:  # what the paper's models do not have
        tied = ", embedding and head tied" if built.tied_embeddings else ""
        more.append(say(BUILT_STRUCTURE, **{**built, "d_expert": built.width_of_expert}) + tied)
    more += [say(BUILT_PARAMETERS, **built), say(BUILT_FLOPS, **built)]
    if built.recipe_note:
        more.append(built.recipe_note)
    return Line("buildable", say(BUILT, **built), tuple(f"  {sentence}" for sentence in more))


def _target(plan: Plan) -> Line:
    """A row for each number of experts: the cheapest model that reaches the loss."""
    target = plan.target
    assert target is not None
    rows: list = []
    for row in target.optima:
        if row.flops is None:
            rows.append(f"{row.n_experts:9d} never reaches it")
            continue
        end = _price(row)
        if row.n_experts == target.best.n_experts:
            end += " <- cheapest"
        rows.append({**row, "end": end})
    inference = ""
    if plan.constraints["inference_tokens"]:
        inference = f" and {amount(plan.constraints['inference_tokens'])} inference tokens"
    head = f"least cost of loss {target.loss:.4f}, of training{inference}:"
    heads = dict(training_flops="training", inference_flops="inference", flops="FLOPs", end="")
    return Line("", head, tuple(table(TARGETS, rows, **heads)))


def _price(row: TargetRow) -> str:
    """Hours and dollars of a row, where it has them."""
    price = "" if row.hours is None else f", {duration(row.hours)}"
    return price if row.dollars is None else f"{price}, ${amount(row.dollars)}"


def _comparisons(plan: Plan) -> Iterator[Line]:
    """Lines on the best dense model, on the loss of a cap on tokens, and on the paper's rule of thumb."""
    if plan.dense and plan.best.n_experts > 1:
        yield Line("", say(AGAINST_DENSE, **plan.dense, saved=_saved(plan.dense)) + _suffix(plan.dense))
    if plan.loss_of_token_cap is not None:
        yield Line("", f"the cap on tokens costs {plan.loss_of_token_cap:.4f} nats")
    cap = plan.constraints.get("max_tokens")
    rows = []
    for row in plan.rule_of_thumb or []:
        words = say(RULE_OF_THUMB, **row, verdict="holds" if row.holds else "does not hold")
        if cap is not None and row.n_tokens > cap:
            words += f"; but it takes {amount(row.n_tokens)} tokens, and there are {amount(cap)}"
        rows.append(words + _suffix(row))
    if rows:
        rule = "a mixture of the best dense model's total size, on E times its tokens, is better"
        yield Line("", f"the paper's rule of thumb: {rule}", tuple(rows))


def _saved(dense: DenseComparison) -> str:
    """The share of FLOPs or hours that the best saves against dense models."""
    by_hours = "hours_saved" in dense
    share = dense.hours_saved if by_hours else dense.flops_saved
    if share is None:
        return "which a dense model reaches with no budget"
    if by_hours:
        return f"reached in {share:.0%} fewer hours on these chips than a dense model needs for it"
    return f"reached with {share:.0%} fewer training FLOPs than a dense model needs for it"


def _suffix(row: DenseComparison | RuleOfThumb) -> str:
    """The columns of a row that lie outside the fitted range."""
    warning = warning_of(row.extrapolation)
    return f"; {warning}" if warning else ""
