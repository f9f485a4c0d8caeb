"""The lines on the recipe of the model to build: its peak learning rate and its batches, each with its range."""

from fit.messages.lines import Line
from fit.messages.units import say
from fit.planning.chosen.buildable import Buildable


def rate(built: Buildable) -> Line:
    """The peak learning rate with its range and its source, or why there is none."""
    if not built.learning_rate or built.learning_rate_range is None:
        return Line.of("Rate", "not known ({learning_rate_from})", **built)
    low, high = built.learning_rate_range
    if built.recipe_laws:
        beyond = _beyond(built.recipe_extrapolation)
        words = "{learning_rate:.2e} ({low:.2g} to {high:.2g} by {learning_rate_from}, {beyond})"
        sentence = say(words, **built, low=low, high=high, beyond=beyond)
    else:
        words = "{learning_rate:.3e} ({learning_rate_from}; {low:.2g} to {high:.2g} costs little)"
        sentence = say(words, **built, low=low, high=high)
    return Line("Rate", f"{sentence}; {built.rate_note}" if built.rate_note else sentence)


def _beyond(factor: float) -> str:
    """How far the model lies beyond the runs that published laws were fitted to: by this factor, within them by 1."""
    if factor > 1:
        return say("up to {factor:amount} times beyond their runs", factor=factor)
    return "within the sizes of their runs"


def batch(built: Buildable) -> Line:
    """The batches, their range by published laws, the length of a row, and the warm-up that goes with them."""
    if not built.batch_tokens:
        return Line.of("Batch", "{batch_from}; rows of {sequence:,} tokens", **built)
    steps = []
    for start, tokens in built.batch_tokens:
        words = "{tokens:amount} from {start:amount}" if start else "{tokens:amount} tokens"
        steps.append(say(words, tokens=tokens, start=start))
    by_laws = ""
    warmup = ""
    if built.batch_range:
        mean = say(", mean {mean:amount}", mean=built.batch_allowed[1]) if built.batch_allowed else ""
        by_laws = say(" ({ends:amount} by the same laws{mean})", ends=built.batch_range, mean=mean)
        warmup = say("; warm-up over {warmup_tokens:amount} tokens", **built)
    return Line.of(
        "Batch",
        "{steps}{by_laws}; rows of {sequence:,}{warmup}",
        **{**built, "steps": ", ".join(steps), "by_laws": by_laws, "warmup": warmup},
    )
