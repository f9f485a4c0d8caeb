"""The models that a plan chooses from, from the bottom up.

shapes.py           the shapes of the grid; meshes.py, the meshes of chips, and what of a model they divide
model_grid.py       these shapes with their counts, recipes and limits
calibration.py      what the chips reach: ours, or by a table of the user's speeds
fewest_chips.py     how many chips hold a model at all
candidates.py       these models in layouts, with their seconds per token
layout_choices.py   the layouts in which chips hold models; two searches choose among them:
on_tokens.py        the candidates of shapes on given tokens; within_hours.py, those that could be the best within hours
size_speeds.py      what chips reach of a size: its speed, and the largest they train
"""
