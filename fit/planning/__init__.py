"""The best model under constraints.

options.py          options of fit plan and fit compare
constraints.py      the budget, FLOPs or hours, and the limits of a plan; training_chips.py, the chips
problem.py          what a plan solves
planning.py         the plan; results.py, its dataclasses

What may be built:
grid.py             shapes and layouts to choose from
model_grid.py       these shapes with their counts, recipe and limits
candidates.py       these models in layouts, with their seconds per token
mesh.py             how chips share the training, and what a mesh must divide
buildable.py        the model to build, with its recipe and its mesh

By FLOPs:
optimum.py          the best size and tokens for each number of experts
shape_choice.py     the shape to build near that optimum
target.py           the least budget that reaches a loss

By hours:
by_hours.py         the best candidate; Optima, the best models of both ways as arrays
modelled_speed.py   speeds of models, and the best model under the other budget
page_speeds.py      the speeds of all models that a page may plan, as plain values

Parts of a plan:
recipe.py           config, batch, warm-up and peak learning rate; rates.py, published laws of these
joint_draws.py      draws of law and speeds; odds.py, how often each number of experts is the best in them
measurement.py      what would settle that
dense_models.py     savings against the best dense model; repeats.py, the worth of repeated text
cost.py             hours, dollars and energy; serving.py, speeds of decoding and of prompts
extrapolation.py    sizes outside the runs of the law; plan_findings.py, what to know
expected_tasks.py   accuracies that the model is expected to reach

Answers:
plan_answer.py      the plan in ten lines; plan_details.py, its tables and all else
plan_config.py      the plan as a config; emitted.py checks emitted Python before it is written
odds_line.py        the line on the odds; speed_lines.py, the lines on modelled speeds

Several laws:
compare.py          several laws on one budget; comparison.py, their dataclasses
votes.py            what laws vote for with their draws; agreement.py, how far they lie apart; leverage.py
compare_answer.py   the comparison in a few lines, and its tables
"""
