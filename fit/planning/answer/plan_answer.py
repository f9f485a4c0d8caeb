"""A plan in ten lines: what to train, what it costs, how to build and train it, how sure that is, what to do next.

`answer` is these lines, `verbose` also the tables and all the rest that plan_details.py has.
"""

import math
import re
from collections.abc import Iterator

from fit.messages import lines, sentences
from fit.messages.catalogue import URGENT
from fit.messages.lines import Line
from fit.messages.units import counted, say
from fit.model.chips import CHIPS
from fit.planning.answer import odds_line, plan_details, price_line, recipe_lines, speed_lines, task_lines
from fit.planning.chosen.buildable import Buildable, ChosenModel
from fit.planning.plan import Plan
from fit.planning.several_laws.on_reference_model import ReferencePlans
from fit.planning.space.model_grid import nearest_experts

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
        yield Line.of(
            "Energy", "{kwh:,.0f} kWh at the chips' full {watts:g} W, without hosts and cooling", **plan.energy
        )


def _answer(plan: Plan) -> Iterator[Line]:
    """The lines on what to train, what it costs, and how sure that is."""
    yield Line("", what_to_train(plan))
    yield from continuous(plan)
    if plan.clock:
        yield from speed_lines.differing(plan.clock)
    if plan.like is not None:
        yield from _reference_model(plan.like, plan.law)
    yield price_line.price(plan)
    if "serve_tokens_per_second" in plan.constraints:
        yield price_line.serve(plan)
    built = plan.buildable
    if built:
        yield _shape(built)
        yield from _mesh(built)
        yield recipe_lines.rate(built)
        yield recipe_lines.batch(built)
    if plan.tasks:
        yield task_lines.answer(plan)
    yield _how_sure(plan)
    yield _beyond(plan)


def what_to_train(plan: Plan) -> str:
    """The sentence on what to train and how sure its loss is: the model to build, else the continuous optimum."""
    model = plan.buildable or plan.best
    in_law = ""
    if plan.buildable and plan.buildable.law_experts != plan.buildable.n_experts:
        in_law = say(
            "; the law counts its {n_experts} experts as {law_experts:.4g} as wide as a dense layer", **plan.buildable
        )
    return say(
        sentences.ANSWER,
        **model,
        model=_kind(model),
        total=say(sentences.TOTAL, **model) if model.n_experts > 1 else "",
        interval="",  # that of the planner page
        counted=in_law,
        built="" if plan.buildable else "; with whole blocks and heads no model meets the limits",
    )


def continuous(plan: Plan) -> Iterator[Line]:
    """The line on the continuous optimum, where a plan has one beside the model to build."""
    built = plan.buildable
    if built is None or "hours" in plan.constraints:
        return
    other = ""
    if not math.isclose(built.law_experts, plan.best.n_experts, rel_tol=0.05):
        other = "; with whole blocks and heads none with this number of experts meets the limits"
        if plan.problem and built.n_experts == nearest_experts(plan.problem.architecture, plan.best.n_experts):
            other = f"; {built.n_experts} experts are the nearest number that is built"
    yield Line.of(
        "",
        "Continuous optimum (sizes that need not be whole blocks and heads): {model} with {n_active:amount} active on "
        "{n_tokens:amount} tokens, loss {loss:.4f}, {apart:.4f} {which}{other}",
        **plan.best,
        model=_kind(plan.best),
        apart=abs(built.loss_of_building),
        which="more" if built.loss_of_building < 0 else "less",
        other=other,
    )


def _kind(model: ChosenModel) -> str:
    """Dense or a mixture, in words."""
    return say(sentences.MIXTURE if model.n_experts > 1 else sentences.DENSE, **model)


def _reference_model(reference: ReferencePlans, law: str) -> Iterator[Line]:
    """The line of the planning law on the model to start from. law: its name."""
    for plan in reference.laws or []:
        trained = plan.like
        if plan.law != law or trained is None:
            continue
        verdict = "nothing reaches its loss with fewer FLOPs"
        if trained.flops_share is not None and trained.flops_share < 1:
            verdict = say("{saved:.0%} fewer FLOPs would reach its loss", saved=1 - trained.flops_share)
        yield Line.of(
            reference.name,
            "{n_active:amount} active of {n_total:amount} parameters; this budget trains it on {its_tokens:amount} "
            "tokens; by the law {verdict}",
            **reference,
            its_tokens=trained.n_tokens,
            verdict=verdict,
        )


def _shape(built: Buildable) -> Line:
    """Blocks, heads and experts of the model to build."""
    parts = [f"d_model {built.d_model}", counted(built.n_blocks, "block"), counted(built.n_heads, "head")]
    if built.n_kv_heads not in (None, built.n_heads):
        parts[-1] += f" ({built.n_kv_heads} key-value)"
    if built.n_experts == 1:
        parts.append(f"d_ff {built.d_ff}")
    else:
        parts.append(f"{built.n_experts} experts of width {built.width_of_expert} (top {built.top_k or 1})")
        if built.n_shared_experts:
            parts.append(f"{built.n_shared_experts} shared")
        if built.n_dense_blocks:
            parts.append(f"{built.n_dense_blocks} dense of d_ff {built.d_ff}")
    return Line("Shape", ", ".join([*parts, f"vocabulary {built.vocab_size:,}"]))


def _mesh(built: Buildable) -> Iterator[Line]:
    """How the chips share the training, where the plan chose that."""
    mesh = built.cost.mesh if built.cost else None
    if mesh and mesh.tokens_at_once is not None:
        words = "{data} x {expert} x {model} (data x expert x model), remat {remat}, {tokens_at_once:,} tokens at once"
        yield Line.of("Mesh", words, **mesh)


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
    low, high = built.loss_interval or []
    what = "a run's loss" if built.interval_of_a_run else "the law's loss"
    return f"{what} lies from {low:.4f} to {high:.4f} in {last - first:g} of 100 cases"


def _beyond(plan: Plan) -> Line:
    """The line on what the plan extrapolates."""
    built = plan.buildable
    outside = built.extrapolation if built else plan.best.extrapolation
    label = "Extrapolates"
    words = [sentences.SHORT_INSIDE]
    if any(finding.code == "no_range" for finding in plan.findings):
        words = [sentences.SHORT_NO_RANGE]
    if outside:
        label = "Extrapolates from the law's runs"
        words = [", ".join(row.in_short for row in outside)]
    if plan.best_at_edge:
        compared = [row.n_experts for row in (*plan.optima, *plan.infeasible)]
        which = "most" if plan.best.n_experts == max(compared) else "fewest"
        words.append(say(sentences.SHORT_EDGE, **plan.best, which=which))
    if built and built.recipe_note:
        words.append("recipe of published models, configs/pretrain.py")
    return Line(label, "; ".join(words))


def _first_finding(plan: Plan) -> Iterator[Line]:
    """The most important finding that no other line says."""
    findings = [finding for finding in plan.findings if finding.code not in IN_OTHER_WORDS]
    findings.sort(key=lambda finding: finding.severity != URGENT)
    if findings:
        more = f" ({len(findings) - 1} more: --verbose)" if len(findings) > 1 else ""
        yield Line(lines.WARNING, f"{findings[0]}{more}")


def _next(plan: Plan) -> Iterator[Line]:
    """The next step, and the command to type."""
    if plan.buildable is None:
        return
    config = plan.emitted
    if config is None:
        words = "add --emit_config=planned.py, which writes the training config (--verbose: tables and all warnings)"
        yield Line("Next", words)
        return
    workdir = "runs/" + re.sub(r".*/|\.py$", "", config)
    if plan.chips is None or plan.chips.n_used == 1:
        words = "train it on your text (--config.data.path); the run ends with its loss against this prediction"
        command = f"  python -m jmoe.train --config={config} --workdir={workdir}"
    else:
        words = (
            "check the start by this dry run; then replace its last two flags by --backend and your text "
            "(--config.data.path)"
        )
        accelerator = _accelerator(plan.chips.kind, plan.chips.n_used)
        command = (
            f"  python -m launch.sweep --sweep={config} --workdir={workdir} --accelerator={accelerator} --dry_run "
            "--text_elsewhere"
        )
    yield Line("Next", words, (command,))


def _accelerator(kind: str, count: int) -> str:
    """The --accelerator of launch.sweep for some chips; a placeholder for TPUs, whose slices have fixed sizes."""
    if kind.startswith(("v", "tpu")):
        return f"{kind}:SLICE"
    of_machine = CHIPS[kind].machine
    if count % of_machine == 0:
        return f"{kind}:{count // of_machine}x{of_machine}"
    return f"{kind}:{count}"
