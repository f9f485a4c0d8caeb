"""A plan in words: tables, and what follows from them."""

import math
from collections.abc import Iterator

from fit.aliases import Json
from fit.fitted_law import summary
from fit.fitted_law.law import in_words, warning_of
from fit.messages import sentences
from fit.messages.units import amount, duration, say, table
from fit.planning import by_time, compare_text, expected_tasks, serving
from fit.planning.constraints import CHIPS
from fit.planning.results import (
    Buildable,
    Decoding,
    DenseComparison,
    Odds,
    Optimum,
    Plan,
    RuleOfThumb,
    Serving,
    TargetRow,
    TrainingChips,
)

OPTIMA = (
    "{n_experts:>9} {n_active:amount:>9} {n_total:amount:>9} {n_tokens:amount:>9} {loss:.4f:>8} "
    "{memory_bytes:memory:>9}  {near_optimal_n_active:amount:33} {size_bound::13} {end}"
)
DRAWN = "{n_experts:>9} n_active {n_active:amount:16} n_tokens {n_tokens:amount:16} loss {loss:.4f}"
OF_BEST = (
    ", best in {best_in_draws}; regret {mean:.4f} nats ({high:.4f} at the 90th percentile), {share:.1%} of the budget"
)
ARCHITECTURES = "by the experts' width that a token uses, each at its best; above and below it is {used:g}:"
ARCHITECTURE = (
    "used {used:g}: n_experts {n_experts}, n_active {n_active:amount}, n_total {n_total:amount} on {n_tokens:amount} "
    "tokens, loss {loss:.4f}"
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


def details(plan: Plan) -> str:
    """All of a plan but its answer (plan_answer.py), as text."""
    parts = [_optima(plan)]
    if plan.like is not None:
        parts.insert(0, [*compare_text.reference_model(plan.like, plan.like.get("laws", []))])
    if plan.odds.drawn:
        parts.append([*_draws(plan.odds)])
    if plan.architectures:
        rows = [say(ARCHITECTURE, **row) for row in plan.architectures]
        parts.append([say(ARCHITECTURES, used=plan.used), *rows])
    if plan.buildable:
        parts.append(["\n  ".join(_buildable(plan.buildable))])
    if plan.tasks:
        parts.append(expected_tasks.rows(plan))
    if plan.chips:
        parts.append([*_costs(plan)])
        if plan.clock:
            parts.append([*by_time.rows(plan.clock, plan.optima)])
        parts.append([*_serving(plan)])
    if plan.repeats:
        repeats = plan.repeats
        sizes = {**repeats.best, "n_active": plan.best.n_active}
        parts.append([say(sentences.REPEATED, **{**repeats, **sizes})])
    if plan.target:
        rows = [say(FRONT, **row, price=_price(row)) for row in plan.target.front]
        parts.append(_target(plan))
        parts.append(["loss against cost:", *rows])
    parts.append([*_comparisons(plan)])
    parts.append([f"warning: {sentence}" for sentence in plan.warnings])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _draws(odds: Odds) -> Iterator[str]:
    """The intervals of each number of experts, how often each is the best, its regret, and what decides."""
    law_draws = summary.drawn(odds.form, odds.by) if odds.form else sentences.DRAWS_OF_SPEED
    yield say(sentences.OF_DRAWS, **_of_draws(odds), drawn=law_draws, of=" and ".join(odds.drawn))
    for row in odds.experts:
        line = say(DRAWN, **row)
        if odds.second is not None:
            line += say(OF_BEST, **row, mean=row.regret[0], high=row.regret[1], share=row.regret_share[0])
        yield line
    if odds.speed_share is not None and len(odds.drawn) > 1:
        yield say(sentences.CAUSES, **odds, law_share=1 - odds.speed_share)
    if odds.bound:
        yield say(sentences.BOUND_DECIDES, **odds)


def _optima(plan: Plan) -> list[str]:
    """A line for each number of experts.

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
    return table(
        OPTIMA,
        rows,
        memory_bytes="memory",
        near_optimal_n_active="n_active within 0.1% of the best",
        size_bound="size bound by",
        end="outside the fitted range" if any_outside else "",
    )


def answer(plan: Plan) -> str:
    """What to train and how sure its loss is, in a sentence: the model to build, else the continuous optimum."""
    model = plan.buildable or plan.best
    counted = ""
    if plan.buildable and plan.buildable.experts_of_law != plan.buildable.n_experts:
        counted = say(sentences.BUILT_SPLIT, **plan.buildable)
    return say(
        sentences.ANSWER,
        **model,
        model=_kind(model),
        total=say(sentences.TOTAL, **model) if model.n_experts > 1 else "",
        interval="",
        counted=counted,
        built="" if plan.buildable else sentences.NOT_BUILT,
    )


def continuous(plan: Plan) -> Iterator[str]:
    """The line on the continuous optimum, where a plan has one beside the model to build."""
    built = plan.buildable
    if built is None or "hours" in plan.constraints:
        return
    more = -built.loss_of_building
    is_other = not math.isclose(built.experts_of_law, plan.best.n_experts, rel_tol=0.05)
    yield say(
        sentences.CONTINUOUS,
        **plan.best,
        model=_kind(plan.best),
        apart=abs(more),
        which="more" if more > 0 else "less",
        other=sentences.BUILT_OTHER if is_other else "",
    )


def chips_in_words(chips: TrainingChips) -> str:
    """The chips that train: 64 x H100, or 56 of your 63 x H100."""
    if chips.used is not None:
        return say(sentences.CHIPS_IN_USE, **chips)
    return f"{chips.count} x {chips.kind}"


def _kind(model: Optimum | Buildable) -> str:
    """Dense or a mixture, in words."""
    return say(sentences.MIXTURE if model.n_experts > 1 else sentences.DENSE, **model)


def _of_draws(odds: Odds) -> Json:
    """The number of draws, and the ends of their intervals in percent."""
    first, last = odds.percentiles or []
    return dict(draws=odds.draws, first=first, last=last)


def _buildable(built: Buildable) -> Iterator[str]:
    """Lines on the model to build: shape, exact counts and recipe."""
    yield "buildable: " + say(sentences.BUILT_SHAPE, **built)
    if built.top_k is not None:  # what the paper's models do not have
        tied = sentences.TIED if built.tied_embeddings else ""
        yield say(sentences.BUILT_MORE, **{**built, "d_expert": built.width_of_expert, "tied": tied})
    yield say(sentences.BUILT_PARAMETERS, **built)
    yield say(sentences.BUILT_FLOPS, **built)
    yield _recipe(built)
    if built.recipe_note:
        yield built.recipe_note


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


def _costs(plan: Plan) -> Iterator[str]:
    """A line for each number of experts: what training costs and keeps in memory."""
    chips = plan.chips
    assert chips is not None
    mfu = f"{chips.mfu:g}" if not isinstance(chips.mfu, dict) else ""
    if isinstance(chips.mfu, dict):
        mfu = ", ".join(f"{value:g} (E = {e})" for e, value in chips.mfu.items())
    elif chips.mfu_is_assumed:
        mfu += sentences.SHORT_ASSUMED
    dollars = "" if chips.dollars_per_hour is None else say(sentences.DOLLARS_EACH, **chips)
    yield say(sentences.COST_HEAD, **{**chips, "mfu": mfu}, dollars=dollars)
    rows = []
    for row in plan.optima:
        assert row.cost is not None
        rows.append({**row.cost, "n_experts": row.n_experts})
    yield from table(
        COSTS,
        rows,
        training_hours="training",
        training_dollars="price",
        training_bytes="training takes",
        training_chips="chips",
    )
    yield say(sentences.COST_NOTE, label=plan.clock.label if plan.clock else serving.LABEL)
    if plan.buildable:
        yield from _step_cost(plan.buildable, CHIPS[chips.kind].memory)


def _serving(plan: Plan) -> Iterator[str]:
    """A line for each number of experts: how fast the chips decode and read prompts."""
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
    yield say(sentences.SERVING_HEAD, kind=chips.kind, label=serving.LABEL)
    yield from table(columns, rows, **heads)
    shares = dict(bandwidth_share=serving.BANDWIDTH_SHARE, products_share=serving.products_share(chips.kind))
    yield say(sentences.SERVING_NOTE, **shares)


def _touched(decoding: Decoding, speeds: Serving) -> str | None:
    """The routed experts that a batch touches, of how many; None for a dense model."""
    if speeds.routed_experts == 1:
        return None
    return f"{decoding.experts_touched:.3g} of {speeds.routed_experts:g}"


def _step_cost(built: Buildable, device_memory: float) -> Iterator[str]:
    """Lines on what a step of the model to build takes. device_memory: of a chip, in bytes."""
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


def _target(plan: Plan) -> list[str]:
    """A line for each number of experts: the cheapest model that reaches the loss."""
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
    return [head, *table(TARGETS, rows, **heads)]


def _price(row: TargetRow) -> str:
    """Hours and dollars of a row, where it has them."""
    price = "" if row.hours is None else f", {duration(row.hours)}"
    return price if row.dollars is None else f"{price}, ${amount(row.dollars)}"


def _comparisons(plan: Plan) -> Iterator[str]:
    """Lines on the best dense model, on the loss of a cap on tokens, and on the paper's rule of thumb."""
    if plan.dense and plan.best.n_experts > 1:
        yield say(sentences.AGAINST_DENSE, **plan.dense, flops=_saved(plan.dense)) + _suffix(plan.dense)
    if plan.loss_of_token_cap is not None:
        yield say(sentences.TOKEN_CAP, loss_of_token_cap=plan.loss_of_token_cap)
    if plan.rule_of_thumb:
        yield sentences.RULE_OF_THUMB_HEAD
    cap = plan.constraints.get("max_tokens")
    for row in plan.rule_of_thumb or []:
        line = say(sentences.RULE_OF_THUMB, **row, so="holds" if row.holds else "does not hold")
        if cap is not None and row.n_tokens > cap:
            line += say(sentences.MORE_THAN_THERE_IS, **row, max_tokens=cap)
        yield line + _suffix(row)


def _saved(dense: DenseComparison) -> str:
    """The share of FLOPs or hours that the best saves against dense models."""
    if "hours_saved" in dense:
        return sentences.NEVER_DENSE if dense.hours_saved is None else say(sentences.HOURS_SAVED, **dense)
    return sentences.NEVER_DENSE if dense.flops_saved is None else say(sentences.FLOPS_SAVED, **dense)


def _suffix(row: DenseComparison | RuleOfThumb) -> str:
    """What of a row lies outside the fitted range."""
    warning = warning_of(row.extrapolation)
    return f"; {warning}" if warning else ""
