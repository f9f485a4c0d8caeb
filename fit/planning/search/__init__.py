"""The best models with each number of experts, as arrays: by hours models that are built, by FLOPs real sizes.

From the bottom up:

size_limits.py      the bounds on a size beside the budget; infeasible.py, which of them leaves no model
best_models.py      the best models as arrays
by_hours.py         the best candidate within hours, by enumeration
by_flops.py         the best real size within FLOPs, in closed form or by a search
solver.py           one of these two, whichever the problem asks for
target.py           the least budget that reaches a loss
"""
