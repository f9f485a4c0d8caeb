"""A plan in ten lines: what to train, what it costs, how to build and train it, how sure that is, what to do next.

`text` is these lines, `verbose` also the tables and all the rest that plan_text.py has. No line is wider than WIDTH.
"""

import math
import re
import textwrap
from collections.abc import Iterator

from fit.aliases import Json
from fit.messages import sentences
from fit.messages.units import say
from fit.planning import by_time, plan_text, verdict

WIDTH = 120  # characters of a line
GPUS_OF_MACHINE = {"GB200": 4}  # others have 8
# warnings that the lines say in their own words, by how they begin
SAID = (
    sentences.BEST_OUTSIDE,
    sentences.AT_EDGE,
    sentences.UNDECIDED,
    sentences.RATES_DIFFER,
    sentences.BATCHES_DIFFER,
    sentences.NO_RANGE,
)
# warnings that come first
URGENT = (sentences.STEP_TOO_LARGE, sentences.MESH_UNEVEN, sentences.SENDS_LONGER)


def text(plan: Json) -> str:
    """The plan that planning.plan made, in ten lines or so."""
    return "\n".join(_wrapped([*_answer(plan), *_warnings(plan), *_next(plan)]))


def verbose(plan: Json) -> str:
    """The same lines, then all that is known of the plan: every table, sentence and warning."""
    details = plan_text.details(plan).split("\n")
    return "\n".join(_wrapped([*_answer(plan), *_next(plan), "", *details]))


def _answer(plan: Json) -> Iterator[str]:
    yield plan_text.answer(plan)
    decided = verdict.text(plan["verdict"], plan["optima"])
    if decided:
        yield ". ".join(decided)
    if "like" in plan:
        yield from _like(plan)
    yield _price(plan)
    if "clock" in plan:
        yield from by_time.text(plan)
    built = plan["buildable"]
    if built:
        yield _shape(built)
        yield from _mesh(built)
        yield _rate(built)
        yield _batch(built)
    yield _how_sure(plan)
    yield _beyond(plan)


def _like(plan: Json) -> Iterator[str]:
    """What the law that plans says of the model to start from."""
    known = plan["like"]
    for row in known.get("laws", []):
        if row["law"] != plan["law"] or not row["like"]:
            continue
        share = row["like"]["flops_share"]
        saves = share is not None and share < 1
        words = say(sentences.SHORT_KNOWN_SAVES, saved=1 - share) if saves else sentences.SHORT_KNOWN_STANDS
        yield say(sentences.SHORT_KNOWN, **known, its_tokens=row["like"]["n_tokens"], verdict=words)


def _price(plan: Json) -> str:
    """Hours, dollars, chips and memory; of a plan without chips its FLOPs."""
    model = plan["buildable"] or plan["best"]
    words = []
    if "target" in plan:
        target = plan["target"]
        words.append(say(sentences.SHORT_TARGET, loss=target["loss"], flops=target["best"]["flops"]))
    if "chips" not in plan:
        words.append(say(sentences.SHORT_PRICE_FLOPS, **model))
    else:
        cost, chips = model["cost"], plan["chips"]
        dollars = "" if cost["training_dollars"] is None else say(sentences.SHORT_DOLLARS, **cost)
        if "clock" in plan:
            low, _, high = model["speed"]["hours"]
            own = dict(mfu=model["speed"]["mfu"][1], ends=[low, high], label=plan["clock"]["label"])
            words.append(say(sentences.SHORT_PRICE_TIME, **chips | cost | own, dollars=dollars))
        else:
            own = dict(mfu=_mfu_of(model, chips["mfu"]))
            words.append(say(sentences.SHORT_PRICE, **chips | cost | own, dollars=dollars))
        mesh = cost.get("mesh") or {}
        if "device_memory" in mesh:
            words.append(say(sentences.SHORT_DEVICE, **mesh))
        words.append(say(sentences.SHORT_SERVED, **model | cost))
    if "repeats" in plan:
        repeats = plan["repeats"]
        words.append(say(sentences.SHORT_REPEATED, **repeats["best"], unique_tokens=repeats["unique_tokens"]))
    return sentences.SHORT_PRICE_HEAD + "; ".join(words)


def _mfu_of(model: Json, mfu: float | dict[int, float]) -> float:
    """The MFU that a model is priced at: of the number of experts nearest to its own, where there is one for each."""
    if not isinstance(mfu, dict):
        return mfu
    n_experts = model.get("law_experts", model["n_experts"])
    return mfu[min(mfu, key=lambda known: abs(math.log(known / n_experts)))]


def _shape(built: Json) -> str:
    heads = built.get("n_kv_heads") or built["n_heads"]
    shared_heads = "" if heads == built["n_heads"] else say(sentences.SHORT_KV_HEADS, heads=heads)
    if built["n_experts"] == 1:
        widths = say(sentences.SHORT_WIDTH, **built)
    else:
        own = dict(top_k=built.get("top_k", 1), width=built.get("d_expert") or built["d_ff"])
        widths = say(sentences.SHORT_EXPERTS, n_experts=built.get("routed_experts", built["n_experts"]), **own)
        if built.get("n_shared_experts"):
            widths += say(sentences.SHORT_SHARED, **built)
        if built.get("n_dense_blocks"):
            widths += say(sentences.SHORT_DENSE_BLOCKS, **built)
    return say(sentences.SHORT_SHAPE, **built, shared_heads=shared_heads, widths=widths)


def _mesh(built: Json) -> Iterator[str]:
    cost = built.get("cost") or {}
    mesh = cost.get("mesh")
    if mesh and "tokens_at_once" in mesh:
        yield say(sentences.SHORT_MESH, **mesh)


def _batch(built: Json) -> str:
    if not built["batch_tokens"]:
        return say(sentences.SHORT_BATCH_OPEN, **built)
    ramp = ", ".join(
        say(sentences.SHORT_BATCH_FROM if start else sentences.SHORT_BATCH_FIRST, tokens=tokens, start=start)
        for start, tokens in built["batch_tokens"]
    )
    source = say(sentences.SHORT_BATCH_OF_LAWS, ends=built["batch_range"]) if built["batch_range"] else ""
    return say(sentences.SHORT_BATCH, **built, ramp=ramp, source=source)


def _rate(built: Json) -> str:
    if not built["learning_rate"]:
        return say(sentences.SHORT_RATE_OPEN, **built)
    low, high = built["learning_rate_range"]
    ends = f"{low:.2g} to {high:.2g}"
    if not built["recipe_laws"]:
        return say(sentences.SHORT_RATE_OF_RUNS, **built, ends=ends)
    factor = built["recipe_extrapolation"]
    beyond = say(sentences.BEYOND_LAWS, factor=factor) if factor > 1 else sentences.WITHIN_LAWS
    return say(sentences.SHORT_RATE, **built, ends=ends, beyond=beyond)


def _how_sure(plan: Json) -> str:
    """The interval of the loss of the model to build, and how often its number of experts is the best."""
    drawn, built = plan.get("bootstrap"), plan["buildable"]
    if not drawn:
        return sentences.SHORT_NOT_SURE
    first, last = drawn["percentiles"]
    words = []
    interval = built and built["loss_interval"]
    if interval:
        what = sentences.OF_A_RUN if built["interval_of_a_run"] else sentences.OF_THE_LAW
        words.append(say(sentences.SHORT_INTERVAL, ends=interval, share=last - first, what=what))
    often = sorted(drawn["optima"], key=lambda row: -row["best_in_draws"])
    wins = ", ".join(say(sentences.WIN, **row) for row in often if row["best_in_draws"])
    settled = sentences.SHORT_UNDECIDED if plan["best_undecided"] else sentences.SHORT_DECIDED
    words.append(say(settled, wins=wins, draws=drawn["draws"]))
    return sentences.SHORT_SURE + "; ".join(words)


def _beyond(plan: Json) -> str:
    """What the plan extrapolates."""
    built = plan["buildable"]
    outside = (built or plan["best"])["extrapolation"]
    words = [sentences.SHORT_INSIDE]
    if sentences.NO_RANGE in plan["warnings"]:
        words = [sentences.SHORT_NO_RANGE]
    if outside:
        factors = ", ".join(
            say(sentences.SHORT_FACTOR, **one, side="above" if one["value"] > one["high"] else "below")
            for one in outside
        )
        words = [say(sentences.SHORT_OUTSIDE, factors=factors)]
    if plan["best_at_edge"]:
        which = "most" if plan["best"]["n_experts"] == max(_compared(plan)) else "fewest"
        words.append(say(sentences.SHORT_EDGE, **plan["best"], which=which))
    if built and built["recipe_note"]:
        words.append(sentences.SHORT_RECIPE)
    return "; ".join(words)


def _compared(plan: Json) -> list[int]:
    """The numbers of experts compared."""
    return [row["n_experts"] for row in (*plan["optima"], *plan["infeasible"])]


def _warnings(plan: Json) -> Iterator[str]:
    """The most important warning that no other line says."""
    said, urgent = (tuple(template.partition("{")[0] for template in some) for some in (SAID, URGENT))
    left = [warning for warning in plan["warnings"] if not warning.startswith(said)]
    left.sort(key=lambda warning: not warning.startswith(urgent))
    if left:
        more = say(sentences.MORE_WARNINGS, count=len(left) - 1) if len(left) > 1 else ""
        yield f"warning: {left[0]}{more}"


def _next(plan: Json) -> Iterator[str]:
    """What to do with the plan, and the command to type."""
    if plan["buildable"] is None:
        return
    config = plan.get("emitted")
    if config is None:
        yield sentences.NEXT_EMIT
        return
    workdir = "runs/" + re.sub(r".*/|\.py$", "", config)
    chips = plan.get("chips") or {}
    if chips.get("count", 1) == 1:
        yield sentences.NEXT_TRAIN
        yield f"  python -m jmoe.train --config={config} --workdir={workdir}"
        return
    yield sentences.NEXT_SWEEP
    accelerator = _accelerator(chips["kind"], chips["count"])
    yield (
        f"  python -m launch.sweep --sweep={config} --workdir={workdir} --accelerator={accelerator} --dry_run "
        "--text_elsewhere"
    )


def _accelerator(kind: str, count: int) -> str:
    """What launch.sweep calls so many chips: of TPUs, whose slices have sizes of their own, what to put there."""
    if kind.startswith(("v", "tpu")):
        return f"{kind}:SLICE"
    of_machine = GPUS_OF_MACHINE.get(kind, 8)
    if count % of_machine == 0:
        return f"{kind}:{count // of_machine}x{of_machine}"
    return f"{kind}:{count}"


def _wrapped(lines: list[str]) -> Iterator[str]:
    """The lines, none wider than WIDTH; what is left of a line follows it, indented further. A command that is too
    long goes on after a backslash."""
    for line in lines:
        if len(line) <= WIDTH:
            yield line
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        command = line.lstrip().startswith("python ")
        width = WIDTH - 2 if command else WIDTH
        parts = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        yield (" \\\n" if command else "\n").join(parts)
