"""Runs compared with a law, or with baseline runs of their own table: what `fit speedup` and `fit.speedup` do."""

import dataclasses

from fit import options
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import NAMES
from fit.studies.speedup import baseline_speedup, speedup
from fit.studies.speedup.results import BaselineSpeedup, Speedup
from fit.table import table


@dataclasses.dataclass(kw_only=True)
class SpeedupOptions(options.Options):
    """The options of `fit speedup`."""

    seed: int = options.whole("Seed of the runs' errors that intervals draw.", 0)
    by: str = options.choice(
        "What is counted: flops, or time, the hours on the same chips. The table then has tokens_per_second and "
        "law_tokens_per_second, the speed of the law's recipe at the run's size; with --baseline it has hours, or "
        "tokens_per_second of runs of equal FLOPs.",
        "flops",
        ("flops", "time"),
    )
    verbose: bool = options.switch("Also print the table of the runs.")
    baseline: dict[str, str] = options.pairs(
        "In place of --law: what the rows of the baseline have in common, such as n_experts=64,top_k=4.",
        "COLUMN=VALUE",
        "=",
    )
    fix: dict[str, str] = options.pairs(
        "With --baseline: floor c and exponent b of its frontier, loss = c + A C^-b, where they are known: c=1.6.",
        "NAME=VALUE",
        "=",
    )

    def check_reference(self, has_law: bool) -> None:
        """Raises UserError unless the runs are compared with either a law or a baseline."""
        if not has_law and not self.baseline:
            raise UserError(f"--law is missing: a law.json, or one of {', '.join(NAMES)}")
        if has_law and self.baseline:
            raise UserError("--law and --baseline are both what the runs are compared with: give one of them")
        if self.fix and not self.baseline:
            raise UserError("--fix is for --baseline")


def speedup_of_runs(law: Law | None, runs: object, options: SpeedupOptions) -> Speedup | BaselineSpeedup:
    """How many times the compute, or the hours, a law's recipe or a baseline needs for the losses of runs.

    Args:
      law: The law; None with a baseline.
      runs: The runs, with a baseline also its runs.
      options: The others.

    Raises:
      UserError: Neither a law nor a baseline is given, or both, or the runs cannot be compared with it.
    """
    options.check_reference(law is not None)
    compared = table.read(runs)
    if law is None:
        return baseline_speedup.baseline_speedup(
            compared, options.baseline, options.by, options.fix, options.seed, options.verbose
        )
    return speedup.speedup(law, compared, options.seed, options.by, options.verbose)
