"""A mixture's architecture for a budget.

holistic.py: the algebra, what can be built, and a budget's architecture. holistic_runs.py: the laws fitted to the runs
of a search. holistic_text.py: both in words.
"""
