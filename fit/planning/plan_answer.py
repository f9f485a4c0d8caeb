"""A plan in ten lines: what to train, what it costs, how to build and train it, how sure that is, what to do next.

`text` is these lines, `verbose` also the tables and all the rest that plan_text.py has.
"""

import math
import re
from collections.abc import Iterator

from fit.messages import lines, sentences
from fit.messages.units import say
from fit.model.chips import CHIPS
from fit.planning import by_time, expected_tasks, odds_text, plan_text, serving
from fit.planning.results import Buildable, BuildableCost, Cost, Energy, Optimum, Plan, TrainingChips

# warnings that the lines say in their own words
IN_OTHER_WORDS = (
    sentences.BEST_OUTSIDE,
    sentences.AT_EDGE,
    sentences.UNDECIDED,
    sentences.RATES_DIFFER,
    sentences.BATCHES_DIFFER,
    sentences.NO_RANGE,
)
# warnings that come first
URGENT = (sentences.MOSTLY_EMBEDDING, sentences.STEP_TOO_LARGE, sentences.MESH_UNEVEN, sentences.SENDS_LONGER)


def sentences_of(plan: Plan) -> list[str]:
    """The ten lines or so of a plan, before they are wrapped."""
    return [*_answer(plan), *_warnings(plan), *_next(plan)]


def text(plan: Plan) -> str:
    """A plan in ten lines or so."""
    return lines.text(sentences_of(plan))


def verbose(plan: Plan) -> str:
    """The same lines, then all that is known of the plan: every table, sentence and warning."""
    details = plan_text.details(plan).split("\n")
    if plan.energy:
        details.append(_energy(plan.energy))
    return lines.text([*_answer(plan), *_next(plan), "", *details])


def _answer(plan: Plan) -> Iterator[str]:
    """The lines on what to train, what it costs, and how sure that is."""
    yield plan_text.answer(plan)
    yield from plan_text.continuous(plan)
    if plan.clock:
        yield from by_time.differing(plan.clock)
    if plan.like is not None:
        yield from _reference_model(plan)
    yield _price(plan)
    if "serve_tokens_per_second" in plan.constraints:
        yield _serve(plan)
    built = plan.buildable
    if built:
        yield _shape(built)
        yield from _mesh(built)
        yield _rate(built)
        yield _batch(built)
    if plan.tasks:
        yield expected_tasks.answer(plan)
    yield _how_sure(plan)
    yield _beyond(plan)


def _energy(energy: Energy) -> str:
    """What the training takes from the grid."""
    return say(sentences.SHORT_ENERGY, **energy)


def _reference_model(plan: Plan) -> Iterator[str]:
    """What the law that plans says of the model to start from."""
    assert plan.like is not None
    for answer in plan.like.get("laws", []):
        like = answer.like
        if answer.law != plan.law or like is None:
            continue
        stands = sentences.SHORT_KNOWN_STANDS
        if like.flops_share is not None and like.flops_share < 1:
            stands = say(sentences.SHORT_KNOWN_SAVES, saved=1 - like.flops_share)
        yield say(sentences.SHORT_KNOWN, **plan.like, its_tokens=like.n_tokens, verdict=stands)


def _price(plan: Plan) -> str:
    """Hours, dollars, chips and memory; of a plan without chips its FLOPs."""
    model = plan.buildable or plan.best
    words = []
    if plan.target:
        words.append(say(sentences.SHORT_TARGET, loss=plan.target.loss, flops=plan.target.best.flops))
    if plan.chips is None or model.cost is None:
        words.append(say(sentences.SHORT_PRICE_FLOPS, **model))
    else:
        words += _price_on_chips(plan, model, model.cost, plan.chips)
    if plan.repeats:
        repeats = plan.repeats
        words.append(say(sentences.SHORT_REPEATED, **repeats.best, unique_tokens=repeats.unique_tokens))
    return sentences.SHORT_PRICE_HEAD + "; ".join(words)


def _price_on_chips(plan: Plan, model: Optimum | Buildable, cost: Cost, chips: TrainingChips) -> Iterator[str]:
    """What it takes to train a model on the chips, and to serve it."""
    dollars = "" if cost.training_dollars is None else say(sentences.SHORT_DOLLARS, **cost)
    values = {**chips, **cost, "dollars": dollars, "chips": plan_text.chips_in_words(chips)}
    if model.speed:
        low, _, high = model.speed.hours
        label = plan.clock.label if plan.clock else serving.LABEL
        values |= dict(mfu=model.speed.mfu[1], ends=[low, high], label=label)
        yield say(sentences.SHORT_PRICE_TIME, **values)
    else:
        assumed = sentences.SHORT_ASSUMED if chips.mfu_is_assumed else ""
        yield say(sentences.SHORT_PRICE, **{**values, "mfu": _mfu_of(model, chips.mfu)}, assumed=assumed)
    mesh = cost.mesh if isinstance(cost, BuildableCost) else None
    if mesh and mesh.device_memory is not None:
        yield say(sentences.SHORT_DEVICE, **mesh)
    yield say(sentences.SHORT_SERVED, **{**model, **cost})


def _serve(plan: Plan) -> str:
    """How fast the model decodes, where the plan had to meet a speed."""
    model = plan.buildable or plan.best
    assert model.cost is not None and plan.chips is not None
    serving_cost = model.cost.serving
    decoding = serving_cost.at(plan.constraints["serve_batch"])
    return say(
        sentences.SHORT_SERVE,
        **{**serving_cost, **decoding},
        wanted=plan.constraints["serve_tokens_per_second"],
        kind=plan.chips.kind,
        prefill=serving_cost.prefill_tokens_per_second,
    )


def _mfu_of(model: Optimum | Buildable, mfu: float | dict[int, float]) -> float:
    """The MFU that a model is priced at: of the number of experts nearest to its own, where there is one for each."""
    if not isinstance(mfu, dict):
        return mfu
    nearest = min(mfu, key=lambda n_experts: abs(math.log(n_experts / model.experts_of_law)))
    return mfu[nearest]


def _shape(built: Buildable) -> str:
    """Blocks, heads and experts of the model to build."""
    kv_heads = built.n_kv_heads or built.n_heads
    shared_heads = "" if kv_heads == built.n_heads else say(sentences.SHORT_KV_HEADS, heads=kv_heads)
    if built.n_experts == 1:
        widths = say(sentences.SHORT_WIDTH, **built)
    else:
        widths = say(
            sentences.SHORT_EXPERTS,
            n_experts=built.experts_of_trainer,
            top_k=1 if built.top_k is None else built.top_k,
            width=built.width_of_expert,
        )
        if built.n_shared_experts:
            widths += say(sentences.SHORT_SHARED, **built)
        if built.n_dense_blocks:
            widths += say(sentences.SHORT_DENSE_BLOCKS, **built)
    return say(sentences.SHORT_SHAPE, **built, shared_heads=shared_heads, widths=widths)


def _mesh(built: Buildable) -> Iterator[str]:
    """How the chips share the training, where the plan chose that."""
    mesh = built.cost.mesh if built.cost else None
    if mesh and mesh.tokens_at_once is not None:
        yield say(sentences.SHORT_MESH, **mesh)


def _batch(built: Buildable) -> str:
    """The batches, and the range by the laws that tell them."""
    if not built.batch_tokens:
        return say(sentences.SHORT_BATCH_OPEN, **built)
    steps = []
    for start, tokens in built.batch_tokens:
        sentence = sentences.SHORT_BATCH_FROM if start else sentences.SHORT_BATCH_FIRST
        steps.append(say(sentence, tokens=tokens, start=start))
    source = ""
    if built.batch_range:
        best = say(sentences.SHORT_BATCH_BEST, best=built.batch_allowed[1]) if built.batch_allowed else ""
        source = say(sentences.SHORT_BATCH_OF_LAWS, ends=built.batch_range, best=best)
    return say(sentences.SHORT_BATCH, **built, ramp=", ".join(steps), source=source)


def _rate(built: Buildable) -> str:
    """The peak learning rate, and its range."""
    if not built.learning_rate or built.learning_rate_range is None:
        return say(sentences.SHORT_RATE_OPEN, **built)
    low, high = built.learning_rate_range
    ends = f"{low:.2g} to {high:.2g}"
    note = f"; {built.rate_note}" if built.rate_note else ""
    if not built.recipe_laws:
        return say(sentences.SHORT_RATE_OF_RUNS, **built, ends=ends) + note
    factor = built.recipe_extrapolation
    beyond = say(sentences.BEYOND_LAWS, factor=factor) if factor > 1 else sentences.WITHIN_LAWS
    return say(sentences.SHORT_RATE, **built, ends=ends, beyond=beyond) + note


def _how_sure(plan: Plan) -> str:
    """How sure the number of experts is, the interval of the loss of the model to build, and what to measure."""
    words = [*odds_text.clauses(plan.odds)]
    if plan.buildable and plan.buildable.loss_interval:
        words.append(_interval(plan.buildable, plan.odds.percentiles or []))
    if plan.odds.source and "law" in plan.odds.drawn:
        words.append(say(sentences.ODDS_SOURCE, **plan.odds))
    line = sentences.SHORT_SURE + "; ".join(words)
    measurement = odds_text.to_measure(plan.odds)
    return f"{line}. {measurement}" if measurement else line


def _interval(built: Buildable, percentiles: list[float]) -> str:
    """The interval of the loss of the model to build."""
    first, last = percentiles
    what = sentences.OF_A_RUN if built.interval_of_a_run else sentences.OF_THE_LAW
    return say(sentences.SHORT_INTERVAL, ends=built.loss_interval, share=last - first, what=what)


def _beyond(plan: Plan) -> str:
    """What the plan extrapolates."""
    built = plan.buildable
    outside = built.extrapolation if built else plan.best.extrapolation
    words = [sentences.SHORT_INSIDE]
    if sentences.NO_RANGE in plan.warnings:
        words = [sentences.SHORT_NO_RANGE]
    if outside:
        factors = []
        for value in outside:
            side = "above" if value["value"] > value["high"] else "below"
            factors.append(say(sentences.SHORT_FACTOR, **value, side=side))
        words = [say(sentences.SHORT_OUTSIDE, factors=", ".join(factors))]
    if plan.best_at_edge:
        compared = [row.n_experts for row in (*plan.optima, *plan.infeasible)]
        which = "most" if plan.best.n_experts == max(compared) else "fewest"
        words.append(say(sentences.SHORT_EDGE, **plan.best, which=which))
    if built and built.recipe_note:
        words.append(sentences.SHORT_RECIPE)
    return "; ".join(words)


def _beginnings(templates: tuple[str, ...]) -> tuple[str, ...]:
    """How sentences begin: their templates up to the first value."""
    return tuple(template.partition("{")[0] for template in templates)


def _warnings(plan: Plan) -> Iterator[str]:
    """The most important warning that no other line says."""
    in_other_words = _beginnings(IN_OTHER_WORDS)
    urgent = _beginnings(URGENT)
    warnings = [warning for warning in plan.warnings if not warning.startswith(in_other_words)]
    warnings.sort(key=lambda warning: not warning.startswith(urgent))
    if warnings:
        more = say(sentences.MORE_WARNINGS, count=len(warnings) - 1) if len(warnings) > 1 else ""
        yield f"warning: {warnings[0]}{more}"


def _next(plan: Plan) -> Iterator[str]:
    """What to do with the plan, and the command to type."""
    if plan.buildable is None:
        return
    config = plan.emitted
    if config is None:
        yield sentences.NEXT_EMIT
        return
    workdir = "runs/" + re.sub(r".*/|\.py$", "", config)
    if plan.chips is None or plan.chips.in_use == 1:
        yield sentences.NEXT_TRAIN
        yield f"  python -m jmoe.train --config={config} --workdir={workdir}"
        return
    yield sentences.NEXT_SWEEP
    accelerator = _accelerator(plan.chips.kind, plan.chips.in_use)
    yield (
        f"  python -m launch.sweep --sweep={config} --workdir={workdir} --accelerator={accelerator} --dry_run "
        "--text_elsewhere"
    )


def _accelerator(kind: str, count: int) -> str:
    """The --accelerator of launch.sweep for so many chips; a placeholder for TPUs, whose slices have fixed sizes."""
    if kind.startswith(("v", "tpu")):
        return f"{kind}:SLICE"
    of_machine = CHIPS[kind].machine
    if count % of_machine == 0:
        return f"{kind}:{count // of_machine}x{of_machine}"
    return f"{kind}:{count}"
