"""Studies beside a plan, each with its own command.

next_runs/            fit next: the runs to train next
added_runs/           fit add: a finished run added to the table
speedup/              fit speedup: the compute that a recipe saves
surfaces/             fit surface: the loss over size and sparsity at equal FLOPs
architecture_search/  fit holistic: a mixture's whole architecture for a budget
optimum_intervals.py  intervals of compute-optimal models: table 5 of fit table
"""
