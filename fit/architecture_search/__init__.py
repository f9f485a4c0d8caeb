"""A mixture's architecture from its sizes: holistic.py, the algebra and what can be built; holistic_runs.py, the laws
fitted to the runs of a search; holistic_plan.py, the architecture for a budget; holistic_text.py, both in words."""
