"""The best model under constraints.

A plan goes through these files in this order; planning.py takes it through them. Each file has the dataclasses that it
makes; plan.py has the whole plan.

1. What is asked:
options.py          options of fit plan and fit compare; fields_of_flags.py, which of them are fields of a flag
constraints.py      the budget, FLOPs or hours, and the limits of a plan; training_chips.py, the chips
problem.py          what a plan solves: law, architecture, constraints, experts and what the chips reach;
                    planning.problem_of makes it of the options, complete

2. What may be built, for plans on chips and for the model to build:
grid.py             shapes and layouts to choose from; mesh.py, what a mesh must divide
model_grid.py       these shapes with their counts, recipe and limits
candidates.py       these models in layouts, with their seconds per token
size_speeds.py      what chips reach of a size: its speed, and the largest they train
optima.py           the best models as arrays, by hours or by FLOPs
by_hours.py         the best candidate within hours

3. The best size, tokens and number of experts:
size_limits.py      the bounds on a size beside the budget; infeasible.py, which of them leaves no model
optimum.py          by FLOPs in closed form or by a search, in real numbers; under hours it calls by_hours.py
solve.py            the best model with each number of experts: counts, modelled_speed.py, cost.py
target.py           the least budget that reaches a loss
joint_draws.py      draws of law and speeds; odds.py, how often each number of experts is the best in them
measurement.py      what would settle that; odds_of_law.py, the odds at the most compute that a law was fitted to

4. The model to build:
shape_choice.py     the shape to build near an optimum by FLOPs
buildable.py        the model with its recipe, its counts, speed, cost and interval
recipe.py           config, batch, warm-up and peak learning rate; rates.py, published laws of these

5. What to compare it with, and what to know:
other_budget.py     the best model by hours in place of FLOPs, or by FLOPs in place of hours
dense_models.py     savings against the best dense model; repeats.py, the worth of repeated text
serving.py          speeds of decoding and of prompts
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
