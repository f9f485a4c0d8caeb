"""The compute that a recipe saves against a law's recipe or a baseline.

speedup_of_runs.py   all of it, for fit speedup; results.py, its dataclasses
speedup.py           speed-ups by a law
baseline_speedup.py  speed-ups beside baseline runs of the same table; frontier.py, the frontier of these
speedup_answer.py    the answer in words; baseline_answer.py, beside a baseline
"""
