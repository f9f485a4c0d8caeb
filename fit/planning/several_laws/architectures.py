"""The architectures among which a law chooses, where several laws plan for one budget."""

import dataclasses
import math
from collections.abc import Sequence

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture

GRANULARITIES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32)
MOST_SHARED = 64  # numbers of shared experts that are tried


def granularities(law: Law) -> Sequence[int]:
    """The GRANULARITIES within the law's data; [1] where granularity makes no difference to the law."""
    columns = [name for name in ("top_k", "granularity") if name in law.form.columns]
    if not columns:
        return [1]
    return [k for k in GRANULARITIES if all(k <= law.ranges.get(name, (1, k))[1] for name in columns)]


def to_try(law: Law, shape: Json, used: Sequence[float] | None) -> list[Architecture]:
    """The architectures that the law can tell apart.

    With a law that reads neither sparsity nor top_k, a token uses one expert's width. With a law whose runs were not
    built like the paper's, they are built like those runs.
    """
    of_runs = law.shaped(shape["vocab_size"], shape["width_per_block"])
    if of_runs.counts_routed_experts:
        of_runs = dataclasses.replace(of_runs, **shape)
        widths = used if used and law.reads_active_width else [of_runs.active_width]
        narrow = [max(of_runs.shared + 1, round(u * of_runs.granularity)) for u in widths]
        return [dataclasses.replace(of_runs, active_width=n / of_runs.granularity) for n in dict.fromkeys(narrow)]
    most_shared = 0
    if "shared_share" in law.form.columns:
        most_shared = law.ranges.get("shared_share", (0, 1))[1]
    widths = used if used and law.reads_active_width else (1.0,)
    splits = [shape["granularity"]] if "granularity" in shape else granularities(law)
    architectures = []
    for u in widths:
        for k in splits:
            for s in [shape["shared"]] if "shared" in shape else _shared_of(u * k):
                is_whole = s <= most_shared * u * k and float(u * k).is_integer()
                if "shared" in shape or is_whole:
                    architectures.append(
                        dataclasses.replace(Architecture(granularity=k, shared=s, active_width=u), **shape)
                    )
    return architectures


def _shared_of(chosen: float) -> Sequence[int]:
    """How many of the experts that a token uses may be shared: all numbers, or MOST_SHARED of them, evenly spaced."""
    numbers = range(math.ceil(chosen))
    step = math.ceil(len(numbers) / MOST_SHARED)
    return numbers[::step]
