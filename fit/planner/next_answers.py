"""What the page holds of `fit next`: its answers to several budgets, each for plans at several budgets."""

from fit.aliases import Json
from fit.data.table import Table
from fit.errors import UserError
from fit.lawbook.lawfile import Law
from fit.next_runs import next_runs, next_text

BUDGETS = (0.1, 0.3, 1.0)  # of what the fitted runs took together; larger ones take the search long
TARGETS = (10, 100)  # times the largest run


def of(law: Law, table: Table, flops: list[float]) -> Json:
    """{answers: what `fit next` prints and the sweep file it writes, by budget and target}, or {why: the sentence of
    why there are none}. table: the runs; flops: of those that the law was fitted to. Needs jax in float64."""
    one_digit = lambda x: float(f"{x:.0e}")
    budgets, targets = [one_digit(b * sum(flops)) for b in BUDGETS], [one_digit(t * max(flops)) for t in TARGETS]
    answers = [dict(flops=b, target_flops=t) | _answer(law, table, b, t) for b in budgets for t in targets]
    whys = {answer.get("why") for answer in answers}
    if len(whys) == 1 and None not in whys:
        return dict(why=whys.pop())
    return dict(answers=answers, stages=next_text.STAGES)


def _answer(law: Law, table: Table, flops: float, target_flops: float) -> Json:
    try:
        architecture = law.shaped()
        found = next_runs.next_runs(law, table, architecture, law.experts, flops, target_flops)
    except UserError as error:
        return dict(why=error.sentence)
    answer: Json = {name: getattr(next_text, name)(found) for name in ("trunks", "summary", "certainty", "notes")}
    try:
        return answer | dict(sweep=next_text.sweep_source(law, architecture, found))
    except UserError as error:
        return answer | dict(no_sweep=error.sentence)
