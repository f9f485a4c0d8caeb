"""The models that a plan has chosen, as records, from the bottom up.

Both kinds, the best model with each number of experts and the one to build, are made in the same steps: a shape with
its tokens and loss, how fast the chips train it, a record of it, and then its cost.

modelled_speed.py   how fast the chips train them; planned_layout.py, in which layout
cost.py             the records of what they cost
optimum.py          the record of the best model with one number of experts, perhaps of real size
buildable.py        the record of the model to build, with recipe and layout
chips_used.py       the chips of a plan, and how many train its model
step_memory.py      how the chips share a step, and its memory; model_cost.py, all that a model costs
optima.py           makes the best model with each number of experts
shape_choice.py     by FLOPs, the shape of the grid to build near an optimum
whole_blocks.py     the same of whole blocks and heads of the law's own shape
build.py            makes the model to build
"""
