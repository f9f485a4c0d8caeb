"""The runs to train next: what `fit next` and `fit.next` do."""

import dataclasses

from fit.fitted_law.law import Law
from fit.fitting.float64 import float64
from fit.planning.inputs.options import experts_to_compare
from fit.studies.next_runs import next_answer
from fit.studies.next_runs.options import NextOptions
from fit.studies.next_runs.results import NextRuns


def suggest(law: Law, runs: object, options: NextOptions) -> NextRuns:
    """The runs to train next.

    Args:
      law: A fitted law.
      runs: The runs that it was fitted to, as fit.table.table.read takes them.
      options: What to spend, and the goal.

    Raises:
      UserError: The law was fitted to other runs, or no run within the budget makes the goal surer.
    """
    with float64():
        from fit.studies.next_runs.choose_runs import choose_runs

        names = options.names(law)
        experts = experts_to_compare(law, options.experts)
        architecture = options.architecture(law)
        table = law.settings.read(runs)
        suggestion = choose_runs(law, table, architecture, experts, options.flops, options.target_flops, names)
    if options.verbose:
        return dataclasses.replace(suggestion, answer_of=next_answer.verbose)
    return suggestion
