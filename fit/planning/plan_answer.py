"""A plan in ten lines: what to train, what it costs, how to build and train it, how sure that is, what to do next.

`answer` is these lines, `verbose` also the tables and all the rest that plan_details.py has.
"""

import math
import re
from collections.abc import Iterator

from fit.messages import lines, sentences
from fit.messages.finding import URGENT
from fit.messages.lines import Line
from fit.messages.units import say
from fit.model.chips import CHIPS
from fit.planning import expected_tasks, odds_line, plan_details, serving, speed_lines
from fit.planning.buildable import Buildable
from fit.planning.cost import BuildableCost, Cost
from fit.planning.plan import Plan
from fit.planning.solve import Optimum
from fit.planning.training_chips import TrainingChips

# codes of the findings that the lines say in their own words
IN_OTHER_WORDS = ("best_outside", "at_edge", "undecided", "rates_differ", "batches_differ", "no_range")


def answer(plan: Plan) -> Iterator[Line]:
    """A plan in ten lines or so."""
    yield from _answer(plan)
    yield from _first_finding(plan)
    yield from _next(plan)


def verbose(plan: Plan) -> Iterator[Line]:
    """The same lines, then all that is known of the plan: every table, sentence and finding."""
    yield from _answer(plan)
    yield from _next(plan)
    yield lines.BLANK
    yield from plan_details.details(plan)
    if plan.energy:
        yield Line("Energy", say(sentences.SHORT_ENERGY, **plan.energy))


def _answer(plan: Plan) -> Iterator[Line]:
    """The lines on what to train, what it costs, and how sure that is."""
    yield Line("", what_to_train(plan))
    yield from continuous(plan)
    if plan.clock:
        yield from speed_lines.differing(plan.clock)
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


def what_to_train(plan: Plan) -> str:
    """The sentence on what to train and how sure its loss is: the model to build, else the continuous optimum."""
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


def continuous(plan: Plan) -> Iterator[Line]:
    """The line on the continuous optimum, where a plan has one beside the model to build."""
    built = plan.buildable
    if built is None or "hours" in plan.constraints:
        return
    more = -built.loss_of_building
    is_other = not math.isclose(built.experts_of_law, plan.best.n_experts, rel_tol=0.05)
    sentence = say(
        sentences.CONTINUOUS,
        **plan.best,
        model=_kind(plan.best),
        apart=abs(more),
        which="more" if more > 0 else "less",
        other=sentences.BUILT_OTHER if is_other else "",
    )
    yield Line("", sentence)


def _kind(model: Optimum | Buildable) -> str:
    """Dense or a mixture, in words."""
    return say(sentences.MIXTURE if model.n_experts > 1 else sentences.DENSE, **model)


def _reference_model(plan: Plan) -> Iterator[Line]:
    """The line of the planning law on the model to start from."""
    assert plan.like is not None
    for answer in plan.like.get("laws", []):
        like = answer.like
        if answer.law != plan.law or like is None:
            continue
        stands = sentences.SHORT_KNOWN_STANDS
        if like.flops_share is not None and like.flops_share < 1:
            stands = say(sentences.SHORT_KNOWN_SAVES, saved=1 - like.flops_share)
        sentence = say(sentences.SHORT_KNOWN, **plan.like, its_tokens=like.n_tokens, verdict=stands)
        yield Line(plan.like["name"], sentence)


def _price(plan: Plan) -> Line:
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
    return Line("Price", "; ".join(words))


def _price_on_chips(plan: Plan, model: Optimum | Buildable, cost: Cost, chips: TrainingChips) -> Iterator[str]:
    """The cost of training a model on the chips, and of serving it."""
    dollars = "" if cost.training_dollars is None else say(sentences.SHORT_DOLLARS, **cost)
    values = {**chips, **cost, "dollars": dollars, "chips": _chips_in_words(chips)}
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


def _chips_in_words(chips: TrainingChips) -> str:
    """The chips that train: 64 x H100, or 56 of your 63 x H100."""
    if chips.used is not None:
        return say(sentences.CHIPS_IN_USE, **chips)
    return f"{chips.count} x {chips.kind}"


def _serve(plan: Plan) -> Line:
    """How fast the model decodes, where the plan had to meet a speed."""
    model = plan.buildable or plan.best
    assert model.cost is not None and plan.chips is not None
    serving_cost = model.cost.serving
    decoding = serving_cost.at(plan.constraints["serve_batch"])
    sentence = say(
        sentences.SHORT_SERVE,
        **{**serving_cost, **decoding},
        wanted=plan.constraints["serve_tokens_per_second"],
        kind=plan.chips.kind,
        prefill=serving_cost.prefill_tokens_per_second,
    )
    return Line("Serve", sentence)


def _mfu_of(model: Optimum | Buildable, mfu: float | dict[int, float]) -> float:
    """The MFU that a model is priced at: of the number of experts nearest to its own, where there is one for each."""
    if not isinstance(mfu, dict):
        return mfu
    nearest = min(mfu, key=lambda n_experts: abs(math.log(n_experts / model.experts_of_law)))
    return mfu[nearest]


def _shape(built: Buildable) -> Line:
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
    return Line("Shape", say(sentences.SHORT_SHAPE, **built, shared_heads=shared_heads, widths=widths))


def _mesh(built: Buildable) -> Iterator[Line]:
    """How the chips share the training, where the plan chose that."""
    mesh = built.cost.mesh if built.cost else None
    if mesh and mesh.tokens_at_once is not None:
        yield Line("Mesh", say(sentences.SHORT_MESH, **mesh))


def _batch(built: Buildable) -> Line:
    """The batches, and the range by the laws that tell them."""
    if not built.batch_tokens:
        return Line("Batch", say(sentences.SHORT_BATCH_OPEN, **built))
    steps = []
    for start, tokens in built.batch_tokens:
        sentence = sentences.SHORT_BATCH_FROM if start else sentences.SHORT_BATCH_FIRST
        steps.append(say(sentence, tokens=tokens, start=start))
    source = ""
    if built.batch_range:
        best = say(sentences.SHORT_BATCH_BEST, best=built.batch_allowed[1]) if built.batch_allowed else ""
        source = say(sentences.SHORT_BATCH_OF_LAWS, ends=built.batch_range, best=best)
    return Line("Batch", say(sentences.SHORT_BATCH, **built, ramp=", ".join(steps), source=source))


def _rate(built: Buildable) -> Line:
    """The peak learning rate, and its range."""
    return Line("Rate", _rate_in_words(built))


def _rate_in_words(built: Buildable) -> str:
    """The peak learning rate with its range, or why there is none."""
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


def _how_sure(plan: Plan) -> Line:
    """How sure the number of experts is, the interval of the loss of the model to build, and what to measure."""
    words = []
    if plan.buildable and plan.buildable.loss_interval:
        words.append(_interval(plan.buildable, plan.odds.percentiles or []))
    if plan.odds.source and "law" in plan.odds.drawn:
        words.append(say(sentences.ODDS_SOURCE, **plan.odds))
    return odds_line.line(plan.odds, words)


def _interval(built: Buildable, percentiles: list[float]) -> str:
    """The interval of the loss of the model to build."""
    first, last = percentiles
    what = sentences.OF_A_RUN if built.interval_of_a_run else sentences.OF_THE_LAW
    return say(sentences.SHORT_INTERVAL, ends=built.loss_interval, share=last - first, what=what)


def _beyond(plan: Plan) -> Line:
    """The line on what the plan extrapolates."""
    built = plan.buildable
    outside = built.extrapolation if built else plan.best.extrapolation
    label = "Extrapolates"
    words = [sentences.SHORT_INSIDE]
    if any(finding.code == "no_range" for finding in plan.findings):
        words = [sentences.SHORT_NO_RANGE]
    if outside:
        factors = []
        for value in outside:
            side = "above" if value["value"] > value["high"] else "below"
            factors.append(say(sentences.SHORT_FACTOR, **value, side=side))
        label = "Extrapolates from the law's runs"
        words = [", ".join(factors)]
    if plan.best_at_edge:
        compared = [row.n_experts for row in (*plan.optima, *plan.infeasible)]
        which = "most" if plan.best.n_experts == max(compared) else "fewest"
        words.append(say(sentences.SHORT_EDGE, **plan.best, which=which))
    if built and built.recipe_note:
        words.append(sentences.SHORT_RECIPE)
    return Line(label, "; ".join(words))


def _first_finding(plan: Plan) -> Iterator[Line]:
    """The most important finding that no other line says."""
    findings = [finding for finding in plan.findings if finding.code not in IN_OTHER_WORDS]
    findings.sort(key=lambda finding: finding.severity != URGENT)
    if findings:
        more = say(sentences.MORE_WARNINGS, count=len(findings) - 1) if len(findings) > 1 else ""
        yield Line(lines.WARNING, f"{findings[0]}{more}")


def _next(plan: Plan) -> Iterator[Line]:
    """The next step, and the command to type."""
    if plan.buildable is None:
        return
    config = plan.emitted
    if config is None:
        yield Line("Next", sentences.NEXT_EMIT)
        return
    workdir = "runs/" + re.sub(r".*/|\.py$", "", config)
    if plan.chips is None or plan.chips.in_use == 1:
        command = f"  python -m jmoe.train --config={config} --workdir={workdir}"
        yield Line("Next", sentences.NEXT_TRAIN, (command,))
        return
    accelerator = _accelerator(plan.chips.kind, plan.chips.in_use)
    command = (
        f"  python -m launch.sweep --sweep={config} --workdir={workdir} --accelerator={accelerator} --dry_run "
        "--text_elsewhere"
    )
    yield Line("Next", sentences.NEXT_SWEEP, (command,))


def _accelerator(kind: str, count: int) -> str:
    """The --accelerator of launch.sweep for some chips; a placeholder for TPUs, whose slices have fixed sizes."""
    if kind.startswith(("v", "tpu")):
        return f"{kind}:SLICE"
    of_machine = CHIPS[kind].machine
    if count % of_machine == 0:
        return f"{kind}:{count // of_machine}x{of_machine}"
    return f"{kind}:{count}"
