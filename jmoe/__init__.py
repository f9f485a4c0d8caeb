"""jmoe: sharded Switch-MoE language models for scaling laws, in JAX and Flax NNX."""

import sys

__version__ = "0.1.0"

if sys.argv[:1] == ["-m"]:  # `python -m` is about to import one of the commands
    from jmoe import startup

    startup.begin()
