"""The lines on a model to start from, in plans and comparisons of laws."""

from collections.abc import Iterator, Sequence

from fit.fitted_law.extrapolation import in_words
from fit.messages import sentences
from fit.messages.lines import Line
from fit.messages.units import say
from fit.planning.context.reference_model import ReferenceCounts
from fit.planning.several_laws.comparison import LawPlan, NoPlan


def reference_lines(
    reference: ReferenceCounts, plans: list[LawPlan], without_model: Sequence[NoPlan] = ()
) -> Iterator[Line]:
    """The counts of a published model; then a line for each law: its loss, and the model to build instead.

    Args:
      reference: The counts.
      plans: By each law.
      without_model: Laws without a plan, whose reasons no other line says.
    """
    counts = say(sentences.KNOWN, **reference, cache=2 * reference.cache_elements_per_token)
    yield Line(reference.name, counts)
    yield from (Line("", note) for note in reference.notes)
    for plan in plans:
        trained = plan.like
        if trained is None:
            continue
        verdict = "which is no better"
        if trained.flops_share is not None and trained.flops_share < 1:
            verdict = f"which has its loss with {1 - trained.flops_share:.0%} of the FLOPs saved"
        outside = in_words(trained.extrapolation)
        far = f"; outside the law's data: {outside}" if outside else ""
        yield Line.of(
            plan.law,
            "this budget trains it on {its_tokens:amount} tokens; the law would build {n_active:amount} active of "
            "{n_total:amount} on {n_tokens:amount} tokens (E = {n_experts}), {verdict}{far}",
            **plan,
            its_tokens=trained.n_tokens,
            verdict=verdict,
            far=far,
        )
    yield from (Line(law.law, f"no plan: {law.why}") for law in without_model)
