"""The opening of a report: what to train. Here that of a law alone; budget_report.py has that of a budget."""

import dataclasses
import pathlib

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import lines, units
from fit.messages.lines import Line
from fit.planning import make_plan
from fit.planning.answer import plan_answer
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.plan import Plan
from fit.render import elements, figures, law_overview, sections, tables

FIRST = "2a"  # the picture of the decision: the loss over the size of the text, at equal FLOPs
CURVES = (
    "Each curve spends the same compute on models of one number of experts (E), from large ones on little text, left, "
    "to small ones on much, right. Its lowest point is the best of them, and the lowest curve has the best E."
)


@dataclasses.dataclass(frozen=True)
class Opening:
    """The opening of a report.

    Attributes:
      title: The heading of the page.
      parts: Sections of HTML.
      warnings: What to know before trusting it.
      plan: The plan for a budget, as `fit plan` makes it; None of a report on a law alone.
      summary: What was found, in short; [] for a budget.
    """

    title: str
    parts: list[str]
    warnings: list[str]
    plan: Plan | None = None
    summary: list[Line] = dataclasses.field(default_factory=list)


def opening_of_law(law: Law, measured: figures.Measured) -> Opening:
    """The model to train with the most compute that was fitted. Where the law does not plan, the page says why.

    Args:
      law: The law.
      measured: Its runs; None without runs.
    """
    where = "the most that was fitted" if "training_flops" in law.ranges else "for which the law does not say its range"
    flops = float(law.ranges.get("training_flops", tables.TABLE_1_FLOPS)[-1])
    warnings = []
    summary = []
    try:
        plan = make_plan.plan_within(Problem(law, law.architecture, Constraints(flops=flops), law.experts))
        decision = f"With {units.flops(flops)} training FLOPs, {where}: {plan_answer.what_to_train(plan)}"
        warnings = plan.warnings
        summary = law_overview.overview(law, measured[0] if measured else None, plan)
    except UserError as e:
        decision = f"Nothing that this law could decide: {e}"
    parts = [f'<p class="answer">{elements.text(decision)}</p>', *lines.html(summary)]
    parts.append(sections.figure_section(law, law.architecture, FIRST, measured))
    parts.append(f'<p class="soft">{CURVES}</p>')
    title = f"{law.form.name.capitalize()} scaling law: {pathlib.Path(law.name).name}"
    return Opening(title, parts, warnings, summary=summary)
