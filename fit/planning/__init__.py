"""The best model under constraints.

A plan goes through these files in this order; planning.py takes it through them, results.py has its dataclasses.

1. What is asked:
options.py          options of fit plan and fit compare
constraints.py      the budget, FLOPs or hours, and the limits of a plan; training_chips.py, the chips
problem.py          what a plan solves: law, architecture and constraints; on chips, also what these reach

2. The best size, tokens and number of experts:
optimum.py          by FLOPs in closed form or by a search, in real numbers; under hours it calls by_hours.py
target.py           the least budget that reaches a loss

3. What may be built, for plans on chips and for the model to build:
grid.py             shapes and layouts to choose from; mesh.py, what a mesh must divide
model_grid.py       these shapes with their counts, recipe and limits
candidates.py       these models in layouts, with their seconds per token
by_hours.py         the best candidate within hours; Optima, the best models of both ways as arrays

4. The model to build:
shape_choice.py     the shape to build near an optimum by FLOPs
buildable.py        the model with its recipe, its counts and its interval
recipe.py           config, batch, warm-up and peak learning rate; rates.py, published laws of these

5. What it takes, and how sure it is:
modelled_speed.py   speeds of models, and the best model under the other budget
joint_draws.py      draws of law and speeds; odds.py, how often each number of experts is the best in them
measurement.py      what would settle that
dense_models.py     savings against the best dense model; repeats.py, the worth of repeated text
cost.py             hours, dollars and energy; serving.py, speeds of decoding and of prompts
extrapolation.py    sizes outside the runs of the law; plan_findings.py, what to know
expected_tasks.py   accuracies that the model is expected to reach

6. Answers:
plan_answer.py      the plan in ten lines; plan_details.py, its tables and all else
price_line.py       the lines on price and serving; cost_tables.py, the tables of the chips
recipe_lines.py     the lines on rate and batch
plan_config.py      the plan as a config; emitted.py checks emitted Python before it is written
odds_line.py        the line on the odds; speed_lines.py, the lines on modelled speeds

Several laws:
compare.py          several laws on one budget; comparison.py, their dataclasses
votes.py            what laws vote for with their draws; agreement.py, how far they lie apart; leverage.py
compare_answer.py   the comparison in a few lines, and its tables

For the page:
page_speeds.py      the speeds of all models that a page may plan, as plain values
"""
