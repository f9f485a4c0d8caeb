"""jmoe: sharded Switch-MoE language models for scaling laws, in JAX and Flax NNX."""

import sys

from jmoe import startup

__version__ = "0.2.0"

if sys.argv[:1] == ["-m"]:  # what it is while Python looks for the module of `python -m jmoe.NAME`: a command begins
    startup.begin()
