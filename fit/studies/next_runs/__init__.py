"""Which runs to train next.

suggest.py      all of it, for fit next; options.py, its options; results.py, its dataclasses
candidates.py   what could be trained within a budget, and a plain grid
goals.py        what the runs should make surer: a plan, or coefficients
linearised.py   the law near its fit, where it is linear
design.py       the best set of candidates for a goal
choose_runs.py  the steps from a law to the runs
next_answer.py  the answer in words; next_sweep.py, as a sweep file
"""
