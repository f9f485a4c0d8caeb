"""A mixture's architecture from its sizes: holistic.py, the algebra, what can be built and a budget's architecture;
holistic_runs.py, the laws fitted to the runs of a search; holistic_text.py, both in words."""
