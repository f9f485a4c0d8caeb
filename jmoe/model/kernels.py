"""Which kernels the steps of this process call, and where another one stands in for the fastest.

A kernel is chosen while JAX traces a step, which it does at each start, also where the compiled step is in the cache.
The choice is noted here, and the run prints what is new after each step that was traced (run/train_step.py).
"""

_lines: dict[str, None] = {}  # in the order in which they were noted


def note(product: str, kernel: str, because: str = "") -> None:
    """Notes a choice.

    Args:
      product: What is computed, such as "attention".
      kernel: What computes it.
      because: Why no faster kernel does; "" where this is the fastest one.
    """
    reason = f", a fall-back: {because}" if because else ""
    _lines[f"{product} by {kernel}{reason}"] = None


def take() -> list[str]:
    """The notes since the last call, each once."""
    lines = list(_lines)
    _lines.clear()
    return lines
