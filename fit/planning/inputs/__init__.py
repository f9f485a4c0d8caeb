"""The inputs of a plan, from the bottom up.

grid.py             the widths, chips, meshes and batches to choose from; requests.py, what a user fixes
training_chips.py   the chips to train on
constraints.py      the budget, FLOPs or hours, and the limits
problem.py          what a plan solves: law, architecture, constraints, experts, speeds and grid
chip_flags.py       values of --chips and --mfu
options.py          options of fit plan and fit compare; fields_of_flags.py, which of them are fields of a flag
"""
