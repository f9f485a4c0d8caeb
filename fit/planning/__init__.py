"""The best model under constraints.

options.py        options of fit plan and fit compare
constraints.py    what a plan must respect, chips among it; clock.py: hours as the budget
optimum.py        the best size and tokens for each number of experts; target.py, the least cost of a loss
grid.py           shapes and layouts to choose from; candidates.py, these with seconds; solve.py, the best in hours
built.py          the best one as the model to build; speeds.py, all as plain values; by_time.py, in words
building.py       under FLOPs the model of whole blocks and heads; startable.py, with its recipe and its mesh
planning.py       the plan; draws.py, dense_models.py, repeats.py, verdict.py, cost.py, plan_warnings.py: its parts
results.py        the plan as dataclasses; setting.py, what it was solved for
plan_answer.py    the plan in ten lines; plan_text.py, in more words; plan_config.py, as a config
compare.py        several laws on one budget; comparison.py, compare_text.py, agreement.py, leverage.py: its parts
speedup.py        how much compute a change saves; baseline_speedup.py, frontier.py: beside a baseline in one table
serving.py        how fast chips decode with a model and read prompts
memory.py         what training takes of all chips' memory; mesh.py, how they share it; recipe.py, rates.py
"""
