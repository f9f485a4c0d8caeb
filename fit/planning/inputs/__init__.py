"""The inputs of a plan, from the bottom up.

grid.py             the widths, chips, meshes and batches to choose from; requests.py, what a user fixes
training_chips.py   the chips to train on
constraints.py      the budget, FLOPs or hours, and the limits
problem.py          what a plan solves: law, architecture, constraints, experts, speeds and grid
chip_flags.py       values of --chips and --mfu
option_groups.py    the fields of flags such as --shape; fields_of_flags.py, options that became such fields
options.py          options of fit plan and fit compare
"""
