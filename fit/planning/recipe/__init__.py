"""How planned models are trained: config, rows, batches, warm-up and peak learning rate, from the bottom up.

rates.py              published laws of learning rate and batch
ramps.py              batches that rise, in whole units of a mesh
which_recipe.py       whose recipe a model has: that of the law's runs, or of published models
allowed_batches.py    the batches that models may have on their tokens
recipe.py             the record of a recipe
runs_recipe.py        the recipe of the law's runs
published_recipe.py   the recipe of published models
make_recipe.py        the recipe of a planned model
"""
