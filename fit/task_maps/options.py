"""Options of `fit tasks`."""

import dataclasses

from fit.options import Options, pairs, switch, text, whole, words


@dataclasses.dataclass(kw_only=True)
class TaskOptions(Options):
    """Which tasks to map, their chance levels, and how to fit and check the maps."""

    tasks: tuple[str, ...] = words(
        "Columns of accuracies, as shares from 0 to 1: names, or patterns with * and ?.", ("acc_*",)
    )
    chance: dict[str, str] = pairs(
        "Accuracies of guessing, at which the maps end: acc_piqa:0.5. Of common tasks they are known, and count as one "
        "run; of others the floor is fitted.",
        "TASK:CHANCE",
        ":",
    )
    holdout: str | None = text(
        "Runs that check the maps of the others: largest-compute:N or lowest-loss:N (N runs or N%), column:NAME, or "
        "none. Default: the tenth of the largest compute or, without sizes and tokens, of the lowest loss."
    )
    bootstrap: int = whole("Fits to resampled runs, for intervals.", 100, least=10)
    seed: int = whole("Seed of the resamples.", 0)
    mix_corpora: bool = switch("Fit runs that were trained on different text together.")
    verbose: bool = switch("Also print a table of all tasks.")
