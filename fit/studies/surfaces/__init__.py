"""The loss over size and sparsity at equal FLOPs.

fit_surfaces.py  all of it, for fit surface: its options, and the surface of each budget of a table
surface.py       the surface: its formula, its optima, its fit and its refits
within_runs.py   the sparsities and sizes between the runs
results.py       the dataclasses of the result; answer.py, the answer in words
"""
