"""jmoe: sharded Switch-MoE language models for scaling laws, in JAX and Flax NNX."""

__version__ = "0.3.0"
