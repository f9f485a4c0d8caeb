"""All of a plan that its answer leaves out: tables, and what follows from them."""

from collections.abc import Iterator

from fit.aliases import Json
from fit.fitted_law.law import in_words, warning_of
from fit.fitted_law.published_draws import drawing_in_words
from fit.messages import lines, sentences
from fit.messages.lines import Line
from fit.messages.units import amount, duration, say, table
from fit.model.chips import CHIPS
from fit.planning import compare_answer, expected_tasks, serving, speed_lines
from fit.planning.buildable import Buildable
from fit.planning.cost import Decoding, Serving
from fit.planning.dense_models import DenseComparison, RuleOfThumb
from fit.planning.odds import Odds
from fit.planning.plan import Plan
from fit.planning.target import TargetRow

OPTIMA = (
    "{n_experts:>9} {n_active:amount:>9} {n_total:amount:>9} {n_tokens:amount:>9} {loss:.4f:>8} "
    "{memory_bytes:memory:>9}  {near_optimal_n_active:amount:33} {size_bound::13} {end}"
)
DRAWN = "{n_experts:>9} n_active {n_active:amount:16} n_tokens {n_tokens:amount:16} loss {loss:.4f}"
OF_BEST = (
    ", best in {best_in_draws}; regret {mean:.4f} nats ({high:.4f} at the 90th percentile), {share:.1%} of the budget"
)
ARCHITECTURES = "by the experts' width that a token uses, each at its best; above and below it is {active_width:g}:"
ARCHITECTURE = (
    "used {active_width:g}: n_experts {n_experts}, n_active {n_active:amount}, n_total {n_total:amount} on "
    "{n_tokens:amount} tokens, loss {loss:.4f}"
)
COSTS = (
    "{n_experts:>9} {training_hours:duration:>10} {training_dollars:dollars:>10} {training_bytes:memory:>15} "
    "{training_chips:amount:>9}"
)
TARGETS = (
    "{n_experts:>9} {n_active:amount:>9} {n_tokens:amount:>9} {training_flops:.3g:>11} {inference_flops:.3g:>11} "
    "{flops:.3g:>11}{end}"
)
FRONT = (
    "{flops:.3g:>9} FLOPs{price}: loss {loss:.4f}, E = {n_experts}, n_active {n_active:amount} on {n_tokens:amount} "
    "tokens"
)


def details(plan: Plan) -> Iterator[Line]:
    """All of a plan but its answer (plan_answer.py)."""
    return lines.joined(_parts(plan))


def _parts(plan: Plan) -> Iterator[list[Line]]:
    """The parts of the details, some of them empty."""
    if plan.like is not None:
        yield [*compare_answer.reference_model(plan.like, plan.like.get("laws", []))]
    yield [_optima(plan)]
    if plan.odds.drawn:
        yield [*_draws(plan.odds)]
    if plan.architectures:
        rows = [say(ARCHITECTURE, **row) for row in plan.architectures]
        yield [Line("", say(ARCHITECTURES, active_width=plan.active_width), tuple(rows))]
    if plan.buildable:
        yield [_buildable(plan.buildable)]
    if plan.tasks:
        yield [expected_tasks.all_tasks(plan)]
    if plan.chips:
        yield [*_costs(plan)]
        if plan.clock:
            yield [speed_lines.speeds(plan.clock, plan.optima)]
        yield [*_serving(plan)]
    if plan.repeats:
        sizes = {**plan.repeats, **plan.repeats.best, "n_active": plan.best.n_active}
        yield [Line("", say(sentences.REPEATED, **sizes))]
    if plan.target:
        rows = [say(FRONT, **row, price=_price(row)) for row in plan.target.front]
        yield [_target(plan)]
        yield [Line("", "loss against cost:", tuple(rows))]
    yield [*_comparisons(plan)]
    yield lines.warnings(plan.findings)


def _draws(odds: Odds) -> Iterator[Line]:
    """The intervals of each number of experts, how often each is the best, its regret, and what decides."""
    law_draws = drawing_in_words(odds.form, odds.by) if odds.form else sentences.DRAWS_OF_SPEED
    head = say(sentences.OF_DRAWS, **_of_draws(odds), drawn=law_draws, of=" and ".join(odds.drawn))
    rows = []
    for row in odds.experts:
        words = say(DRAWN, **row)
        if odds.second is not None:
            words += say(OF_BEST, **row, mean=row.regret[0], high=row.regret[1], share=row.regret_share[0])
        rows.append(words)
    yield Line("", head, tuple(rows))
    if odds.speed_share is not None and len(odds.drawn) > 1:
        yield Line("", say(sentences.CAUSES, **odds, law_share=1 - odds.speed_share))
    if odds.bound:
        yield Line("", say(sentences.BOUND_DECIDES, **odds))


def _optima(plan: Plan) -> Line:
    """A row for each number of experts.

    The end of a line names what lies outside the fitted range, except for the FLOPs: these are those given, and the
    warning below names them.
    """
    rows: list = []
    any_outside = False
    for row in plan.optima:
        end = in_words(value for value in row.extrapolation if value["column"] != "training_flops")
        any_outside |= bool(end)
        if row is plan.best:
            end += " <- best"
        rows.append({**row, "end": end})
    rows += [f"{row.n_experts:9d} not feasible: {row.why}" for row in plan.infeasible]
    heads = dict(memory_bytes="memory", near_optimal_n_active="n_active within 0.1% of the best")
    heads |= dict(size_bound="size bound by", end="outside the fitted range" if any_outside else "")
    return lines.rows(table(OPTIMA, rows, **heads))


def _of_draws(odds: Odds) -> Json:
    """The number of draws, and the ends of their intervals in percent."""
    first, last = odds.percentiles or []
    return dict(draws=odds.draws, first=first, last=last)


def _buildable(built: Buildable) -> Line:
    """The model to build: shape, exact counts and recipe."""
    more = []
    if built.top_k is not None:  # what the paper's models do not have
        tied = sentences.TIED if built.tied_embeddings else ""
        more.append(say(sentences.BUILT_MORE, **{**built, "d_expert": built.width_of_expert, "tied": tied}))
    more += [say(sentences.BUILT_PARAMETERS, **built), say(sentences.BUILT_FLOPS, **built), _recipe(built)]
    if built.recipe_note:
        more.append(built.recipe_note)
    return Line("buildable", say(sentences.BUILT_SHAPE, **built), tuple(f"  {sentence}" for sentence in more))


def _recipe(built: Buildable) -> str:
    """Peak learning rate and batches, each with its range and its source."""
    steps = []
    for start, tokens in built.batch_tokens or []:
        steps.append(say(sentences.BATCH_FROM if start else sentences.BATCH, tokens=tokens, start=start))
    batch = f"; batch {', '.join(steps)}" if steps else ""
    rate = sentences.NOT_KNOWN
    source = built.learning_rate_from
    if built.learning_rate:
        rate = say("{learning_rate:.2e}" if built.recipe_laws else "{learning_rate:.3e}", **built)
        source = _range_of_rates(built)
    if built.batch_range:
        low, high = built.batch_range
        batch += say(sentences.BATCH_BY_LAWS, low=low, high=high)
        batch += say(sentences.ROWS_AND_WARMUP, **built)
    return say(sentences.BUILT_RATE, rate=rate, source=source, batch=batch)


def _range_of_rates(built: Buildable) -> str:
    """The source of the peak learning rate, its range, and how far that extrapolates."""
    assert built.learning_rate_range is not None
    low, high = built.learning_rate_range
    ends = dict(low=low, high=high, source=built.learning_rate_from)
    factor = built.recipe_extrapolation
    if built.recipe_laws:
        beyond = say(sentences.BEYOND_LAWS, factor=factor) if factor > 1 else sentences.WITHIN_LAWS
        return say(sentences.BY_LAWS, **ends, beyond=beyond)
    beyond = say(sentences.BEYOND_RUNS, factor=factor) if factor > 1 else ""
    return say(sentences.NEAR_OPTIMAL, **ends, beyond=beyond)


def _costs(plan: Plan) -> Iterator[Line]:
    """A row for each number of experts: what training costs and keeps in memory."""
    chips = plan.chips
    assert chips is not None
    mfu = f"{chips.mfu:g}" if not isinstance(chips.mfu, dict) else ""
    if isinstance(chips.mfu, dict):
        mfu = ", ".join(f"{value:g} (E = {e})" for e, value in chips.mfu.items())
    elif chips.mfu_is_assumed:
        mfu += sentences.SHORT_ASSUMED
    dollars = "" if chips.dollars_per_hour is None else say(sentences.DOLLARS_EACH, **chips)
    head = say(sentences.COST_HEAD, **{**chips, "mfu": mfu}, dollars=dollars)
    rows = []
    for row in plan.optima:
        assert row.cost is not None
        rows.append({**row.cost, "n_experts": row.n_experts})
    heads = dict(training_hours="training", training_dollars="price")
    heads |= dict(training_bytes="training takes", training_chips="chips")
    yield Line("", head, tuple(table(COSTS, rows, **heads)))
    yield Line("", say(sentences.COST_NOTE, label=plan.clock.label if plan.clock else serving.LABEL))
    if plan.buildable:
        for sentence in _step_cost(plan.buildable, CHIPS[chips.kind].memory):
            yield Line("", sentence)


def _serving(plan: Plan) -> Iterator[Line]:
    """A row for each number of experts: how fast the chips decode and read prompts."""
    chips = plan.chips
    assert chips is not None
    columns = "{n_experts:>9} {chips:amount:>9}"
    heads = {"chips": "served on"}
    rows = []
    batches: list[int] = []
    for optimum in plan.optima:
        assert optimum.cost is not None
        speeds = optimum.cost.serving
        batches = [decoding.batch for decoding in speeds.decoding]
        row = {"n_experts": optimum.n_experts, "chips": speeds.chips, "prefill": speeds.prefill_tokens_per_second}
        for decoding in speeds.decoding:
            row[f"touched_{decoding.batch}"] = _touched(decoding, speeds)
            row[f"decode_{decoding.batch}"] = decoding.decode_tokens_per_second
        rows.append(row)
    for batch in batches:
        columns += f" {{touched_{batch}::>16}} {{decode_{batch}:amount:>9}}"
        heads |= {f"touched_{batch}": "experts touched", f"decode_{batch}": f"batch {batch}"}
    columns += " {prefill:amount:>9}"
    head = say(sentences.SERVING_HEAD, kind=chips.kind, label=serving.LABEL)
    yield Line("", head, tuple(table(columns, rows, **heads)))
    shares = dict(bandwidth_share=serving.BANDWIDTH_SHARE, products_share=serving.products_share(chips.kind))
    yield Line("", say(sentences.SERVING_NOTE, **shares))


def _touched(decoding: Decoding, speeds: Serving) -> str | None:
    """The routed experts that a batch touches, of how many; None for a dense model."""
    if speeds.routed_experts == 1:
        return None
    return f"{decoding.experts_touched:.3g} of {speeds.routed_experts:g}"


def _step_cost(built: Buildable, device_memory: float) -> Iterator[str]:
    """Sentences on what a step of the model to build takes. device_memory: of a chip, in bytes."""
    cost = built.cost
    if cost is None:
        return
    mesh = cost.mesh
    if mesh and mesh.tokens_at_once:
        yield say(sentences.LAYOUT, **mesh)
        return
    if cost.step_bytes:
        yield say(sentences.STEP_TAKES, **cost)
    if mesh:
        step = say(sentences.ON_MESH_STEP, **{**cost, **mesh}) if cost.step_tokens else ""
        needed = say(sentences.ON_MESH_CHIPS if mesh.chips else sentences.ON_MESH_NONE, **mesh)
        yield say(sentences.ON_MESH, **mesh, step=step, limit=device_memory, needed=needed)


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
    inference = say(sentences.AND_INFERENCE, **plan.constraints) if plan.constraints["inference_tokens"] else ""
    head = say(sentences.TARGET_HEAD, **target, inference=inference)
    heads = dict(training_flops="training", inference_flops="inference", flops="FLOPs", end="")
    return Line("", head, tuple(table(TARGETS, rows, **heads)))


def _price(row: TargetRow) -> str:
    """Hours and dollars of a row, where it has them."""
    price = "" if row.hours is None else f", {duration(row.hours)}"
    return price if row.dollars is None else f"{price}, ${amount(row.dollars)}"


def _comparisons(plan: Plan) -> Iterator[Line]:
    """Lines on the best dense model, on the loss of a cap on tokens, and on the paper's rule of thumb."""
    if plan.dense and plan.best.n_experts > 1:
        yield Line("", say(sentences.AGAINST_DENSE, **plan.dense, flops=_saved(plan.dense)) + _suffix(plan.dense))
    if plan.loss_of_token_cap is not None:
        yield Line("", say(sentences.TOKEN_CAP, loss_of_token_cap=plan.loss_of_token_cap))
    cap = plan.constraints.get("max_tokens")
    rows = []
    for row in plan.rule_of_thumb or []:
        words = say(sentences.RULE_OF_THUMB, **row, so="holds" if row.holds else "does not hold")
        if cap is not None and row.n_tokens > cap:
            words += say(sentences.MORE_THAN_THERE_IS, **row, max_tokens=cap)
        rows.append(words + _suffix(row))
    if rows:
        yield Line("", sentences.RULE_OF_THUMB_HEAD, tuple(rows))


def _saved(dense: DenseComparison) -> str:
    """The share of FLOPs or hours that the best saves against dense models."""
    if "hours_saved" in dense:
        return sentences.NEVER_DENSE if dense.hours_saved is None else say(sentences.HOURS_SAVED, **dense)
    return sentences.NEVER_DENSE if dense.flops_saved is None else say(sentences.FLOPS_SAVED, **dense)


def _suffix(row: DenseComparison | RuleOfThumb) -> str:
    """The columns of a row that lie outside the fitted range."""
    warning = warning_of(row.extrapolation)
    return f"; {warning}" if warning else ""
