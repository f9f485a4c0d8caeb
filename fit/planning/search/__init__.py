"""The best models with each number of experts, as arrays: by hours models that are built, by FLOPs real sizes.

From the bottom up:

size_limits.py      the bounds on a size beside the budget; infeasible.py, which of them leaves no model
best_models.py      the best models as arrays
best_size.py        the best real size, in closed form or by a search; by_flops.py, the operations by FLOPs
best_candidate.py   the best candidate, by enumeration; by_hours.py, the operations by hours
solver.py           one of these two, whichever the problem asks for
target.py           the least budget that reaches a loss, and the front around it
unconstrained.py    the compute-optimal models of a law, for figures and studies
"""
