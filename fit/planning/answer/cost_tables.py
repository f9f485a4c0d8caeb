"""Tables of a plan's chips: what training costs and keeps in memory, what a step takes, and how fast they serve."""

from collections.abc import Iterator

from fit.messages import sentences
from fit.messages.lines import Line
from fit.messages.units import memory, say, table
from fit.model import serving
from fit.model.chips import CHIPS
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import Decoding, Serving
from fit.planning.plan import Plan

COSTS = (
    "{n_experts:>9} {training_hours:duration:>10} {training_dollars:dollars:>10} {training_bytes:memory:>15} "
    "{training_chips:amount:>9}"
)
COST_NOTE = (
    "training: {label}, by that MFU; training takes: modelled, after compiled steps; chips: the fewest that hold it, "
    "with at least 512 tokens at work on each and 8,192 in all"
)
MESH = "a mesh of {data} x {expert} x {model} (data x expert x model) with remat {remat}"
LAYOUT = (
    "{tokens_at_once:,} tokens at once in groups of {group_tokens:,}: {step_bytes:memory} of each device's "
    "{device_memory:memory}; a device sends {sent_bytes:memory} in a step"
)
STEP = (
    "a step of the buildable model takes about {step_bytes:memory} over all chips with {step_tokens:,} tokens at once, "
    "by the paper's recipe"
)


def training(plan: Plan, chips: ChipsUsed) -> Iterator[Line]:
    """A row for each number of experts: what training costs and keeps in memory; then what a step takes."""
    if isinstance(chips.mfu, dict):
        used = {row.n_experts: f" on {row.chips}" for row in plan.optima if row.chips is not None}
        mfu = ", ".join(f"{value:.3g} (E = {e}{used.get(e, '')})" for e, value in chips.mfu.items())
    else:
        mfu = f"{chips.mfu:g}, assumed" if chips.mfu_is_assumed else f"{chips.mfu:g}"
    dollars = "" if chips.dollars_per_hour is None else f" and ${chips.dollars_per_hour:g} an hour each"
    rows = []
    for row in plan.optima:
        assert row.cost is not None
        rows.append({**row.cost, "n_experts": row.n_experts})
    heads = dict(training_hours="training", training_dollars="price")
    heads |= dict(training_bytes="training takes", training_chips="chips")
    head = f"on {chips.count} x {chips.kind} at MFU {mfu}{dollars}:"
    yield Line("", head, tuple(table(COSTS, rows, **heads)))
    yield Line.of("", COST_NOTE, label=plan.speed_label)
    if plan.buildable:
        for sentence in _step_cost(plan.buildable, CHIPS[chips.kind].memory):
            yield Line("", sentence)


def serving_speeds(plan: Plan, chips: ChipsUsed) -> Iterator[Line]:
    """A row for each number of experts: how fast the chips decode and read prompts."""
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
    head = (
        f"serving on {chips.kind} ({serving.LABEL}): tokens/s of decoding, all sequences of a batch together, and of "
        "reading prompts (prefill):"
    )
    yield Line("", head, tuple(table(columns, rows, **heads)))
    shares = dict(bandwidth_share=serving.BANDWIDTH_SHARE, products_share=serving.products_share(chips.kind))
    yield Line.of("", sentences.SERVING_NOTE, **shares)


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
        yield say(f"trained on {MESH}, {LAYOUT}", **mesh)
        return
    if cost.step_bytes:
        yield say(STEP, **cost)
    if mesh:
        takes = say("{least_bytes:memory} at least", **mesh)
        if cost.step_tokens:
            takes += say(", {step_bytes:memory} with {step_tokens:,} tokens at once", **{**cost, **mesh})
        needed = f"{mesh.chips} chips are the fewest that hold it" if mesh.chips else "no number of such chips holds it"
        on_mesh = say(f"the buildable model on {MESH}", **mesh)
        yield f"{on_mesh}: a device takes {takes}, and has {memory(device_memory)}; {needed}"
