"""Formatted numbers (units.py) and the sentences of a plan (sentences.py)."""
