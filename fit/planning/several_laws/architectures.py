"""The architectures among which a law chooses, where several laws plan for one budget."""

import dataclasses
import math
from collections.abc import Sequence

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import Architecture
from fit.model.reference_model import PublishedModel
from fit.planning.search.infeasible import NoModel

SIZES = ("vocab_size", "width_per_block")  # fields of Architecture that laws share, so that they count alike
GRANULARITIES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32)
MOST_SHARED = 64  # numbers of shared experts that are tried


def granularities(law: Law) -> Sequence[int]:
    """The GRANULARITIES within the law's data; [1] where granularity makes no difference to the law."""
    columns = [name for name in ("top_k", "granularity") if name in law.form.columns]
    if not columns:
        return [1]
    return [k for k in GRANULARITIES if all(k <= law.ranges.get(name, (1, k))[1] for name in columns)]


def to_try(
    law: Law, shape: Json, used: Sequence[float] | None, reference: PublishedModel | None = None
) -> list[list[Architecture]]:
    """The architectures that the law can tell apart, in a list for each width of the experts that a token uses.

    With a law that reads neither sparsity nor top_k, a token uses one expert's width. Models are built like the model
    to start from, else like the law's runs where these were not built like the paper's.

    Args:
      law: The law.
      shape: {field of Architecture: value} that all of them have.
      used: Widths of experts that a token may use; None takes the architecture's own.
      reference: The model to start from.

    Raises:
      NoModel: No whole number of experts makes up such a width.
    """
    given = law.shaped(shape["vocab_size"], shape["width_per_block"])
    if reference is not None:
        given = reference.architecture(counts_routed_experts=bool(law.models.architecture))
    fields = [name for name in shape if name not in SIZES]
    if (fields or used) and law.holds_for_mixtures and law.only_n_experts is not None:  # it counts what a token chooses
        given = dataclasses.replace(given, counts_routed_experts=True)
    if reference is not None or given.counts_routed_experts:
        given = dataclasses.replace(given, **shape)
        widths = used if used and law.reads_active_width else [given.active_width]
        narrow = [max(given.shared + 1, round(u * given.granularity)) for u in widths]
        return [[dataclasses.replace(given, active_width=n / given.granularity)] for n in dict.fromkeys(narrow)]
    most_shared = 0
    if "shared_share" in law.form.columns:
        most_shared = law.ranges.get("shared_share", (0, 1))[1]
    widths = used if used and law.reads_active_width else (1.0,)
    splits = [shape["granularity"]] if "granularity" in shape else granularities(law)
    by_width = []
    for u in dict.fromkeys(widths):
        architectures = []
        for k in splits:
            for s in [shape["shared"]] if "shared" in shape else _shared_of(u * k):
                is_whole = s <= most_shared * u * k and float(u * k).is_integer()
                if "shared" in shape or is_whole:
                    finer = dataclasses.replace(given, granularity=k, shared=s, active_width=u)
                    architectures.append(dataclasses.replace(finer, **shape))
        if architectures:
            by_width.append(architectures)
    if not by_width:
        typed = ",".join(f"used:{u:g}" for u in used or ())
        values = dict(split=splits[-1], shared=shape.get("shared", 0), used=widths[-1])
        raise NoModel(say(sentences.NO_WHOLE_CHOICE, value=typed, **values))
    return by_width


def _shared_of(chosen: float) -> Sequence[int]:
    """How many of the experts that a token uses may be shared: all numbers, or MOST_SHARED of them, evenly spaced."""
    numbers = range(math.ceil(chosen))
    step = math.ceil(len(numbers) / MOST_SHARED)
    return numbers[::step]
