"""The models that a plan names, as records, from the bottom up.

modelled_speed.py   how fast the chips train them
planned_layout.py   how the chips train them; chips_used.py, how many chips that takes
cost.py             what they cost: hours, dollars, memory, speeds of serving
optimum.py          the best model with each number of experts, perhaps of real size
shape_choice.py     by FLOPs, the shape to build near an optimum
buildable.py        the model to build, with recipe, counts, speed, cost and interval of its loss
"""
