"""Shapes of models, and the chips that train them.

architecture.py: counts of a decoder from its width and number of experts. hardware.py: shapes in the multiples that
hardware likes. reference_model.py: published models and config.json. chips.py: peaks of accelerators.
"""
