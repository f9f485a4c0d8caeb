"""The lines on what a plan costs: hours, dollars and memory, and the speed of serving that it had to meet."""

from collections.abc import Iterator

from fit.messages import sentences
from fit.messages.lines import Line
from fit.messages.units import say
from fit.planning.chosen.buildable import ChosenModel
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import BuildableCost, Cost
from fit.planning.inputs.training_chips import MFU, nearest_experts_value
from fit.planning.plan import Plan


def price(plan: Plan) -> Line:
    """Hours, dollars, chips and memory; of a plan without chips its FLOPs."""
    model = plan.buildable or plan.best
    clauses = []
    if plan.target:
        best = plan.target.best
        clauses.append(
            say("loss {loss:.4f} takes {flops:flops} FLOPs at least", loss=plan.target.loss, flops=best.flops)
        )
    if plan.chips is None or model.cost is None:
        words = "{training_flops:flops} training FLOPs, {memory_bytes:memory} to serve"
        clauses += [say(words, **model), "--chips=H100:64 adds hours, dollars, a mesh"]
    else:
        clauses += _on_chips(plan, model, model.cost, plan.chips)
    if plan.repeats:
        words = "{epochs:.2f} epochs of {unique_tokens:amount} tokens"
        clauses.append(say(words, **plan.repeats.best, unique_tokens=plan.repeats.unique_tokens))
    return Line("Price", "; ".join(clauses))


def _on_chips(plan: Plan, model: ChosenModel, cost: Cost, chips: ChipsUsed) -> Iterator[str]:
    """Clauses on training a model on the chips, and on serving it."""
    dollars = "" if cost.training_dollars is None else say(sentences.SHORT_DOLLARS, **cost)
    values = {**chips, **cost, "dollars": dollars}
    if model.speed:
        low, _, high = model.speed.hours
        values |= dict(mfu=model.speed.mfu[1], ends=[low, high], chips=_chips_in_words(chips), label=plan.speed_label)
        yield say(sentences.SHORT_PRICE_TIME, **values)
    else:
        if chips.mfu_is_assumed:  # other models of the plan may have a modelled one
            values |= dict(mfu=MFU, assumed=", assumed")
        else:
            values |= dict(mfu=_mfu_of(model, chips.mfu), assumed="")
        values |= dict(chips=f"{chips.count} x {chips.kind}")  # an MFU is that of all chips
        yield say(sentences.SHORT_PRICE, **values)
    mesh = cost.mesh if isinstance(cost, BuildableCost) else None
    if mesh and mesh.device_memory is not None:
        yield say("training takes {step_bytes:memory} of a device's {device_memory:memory}", **mesh)
    yield say(sentences.SHORT_SERVED, **{**model, **cost})


def _chips_in_words(chips: ChipsUsed) -> str:
    """The chips that train: 64 x H100, or 56 of your 63 x H100."""
    if chips.used is not None:
        return say(sentences.CHIPS_IN_USE, **chips)
    return f"{chips.count} x {chips.kind}"


def _mfu_of(model: ChosenModel, mfu: float | dict[int, float]) -> float:
    """The MFU that a model is priced at: of the number of experts nearest to its own, where there is one for each."""
    if not isinstance(mfu, dict):
        return mfu
    return nearest_experts_value(mfu, model.law_experts)


def serve(plan: Plan) -> Line:
    """How fast the model decodes, where the plan had to meet a speed."""
    model = plan.buildable or plan.best
    assert model.cost is not None and plan.chips is not None
    serving_cost = model.cost.serving
    return Line.of(
        "Serve",
        sentences.SHORT_SERVE,
        **{**serving_cost, **serving_cost.at(plan.constraints["serve_batch"])},
        wanted=plan.constraints["serve_tokens_per_second"],
        kind=plan.chips.kind,
        prefill=serving_cost.prefill_tokens_per_second,
    )
