"""Which runs to train next.

suggest.py          all of it, for fit next; options.py, its options
next_runs.py        what could be trained, and the answer; design.py, the best set and its cost
next_answer.py      the answer in words; next_sweep.py, as a sweep file
add.py, added.py    a run that was trained, added to the table
"""
