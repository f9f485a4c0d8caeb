"""Which runs to train next.

suggest.py        all of it, for fit next; options.py, its options; results.py, its dataclasses
next_runs.py      what could be trained, and what is chosen; design.py, the best set and its cost
next_answer.py    the answer in words; next_sweep.py, as a sweep file
"""
