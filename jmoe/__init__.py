"""jmoe: sharded Switch-MoE language models for scaling laws, in JAX and Flax NNX."""

import sys

__version__ = "0.2.0"

if sys.argv[:1] == ["-m"]:  # python -m jmoe.COMMAND: Python imports this package first, and then the command's module
    from jmoe import startup

    startup.begin()
