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
    asked = [(budget, next_runs.Goal("plan", target)) for budget in budgets for target in targets]
    try:
        architecture = law.shaped()
        found = next_runs.of_several(law, table, architecture, law.experts, asked)
    except UserError as error:
        return dict(why=error.sentence)
    answers = []
    for (budget, goal), one in zip(asked, found):
        answer: Json = dict(flops=budget, target_flops=goal.target_flops)
        if isinstance(one, UserError):
            answer |= dict(why=one.sentence)
        else:
            parts = ("trunks", "summary", "certainty", "notes")
            answer |= {name: getattr(next_text, name)(one) for name in parts}
            try:
                answer |= dict(sweep=next_text.sweep_source(law, architecture, one))
            except UserError as error:
                answer |= dict(no_sweep=error.sentence)
        answers.append(answer)
    return dict(answers=answers, stages=next_text.STAGES)
