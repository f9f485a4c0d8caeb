"""The best model under constraints: make_plan.py, from options to a plan; make_comparison.py, from laws and a budget to
their plans beside each other.

They go through these folders, from the top down. Commands call them, then emit/.

inputs/          the problem: law, budget, limits, numbers of experts, chips, and the grid to choose from
recipe/          how a model is trained: that of the law's runs, or of published models
space/           the models of that grid, and how fast chips train them in their layouts
make_problem.py  a problem, complete, from the options of a plan or from the limits that laws share
search/          the best size and tokens with each number of experts, as arrays: by FLOPs or by hours
chosen/          the best models as records, with speed and cost, and the model to build
uncertainty/     joint draws of law and speeds, and how often each number of experts is the best in them
solve.py         the solution of a problem, for plans and comparisons: its best models, and the recommended one
context/         the same under the other budget, dense, or on fresh text; a model to start from; what to know before
                 trusting it
several_laws/    the plans of several laws for one budget, and what the laws together say
plan.py          the record of a whole plan, of which each folder makes its own parts
answer/          a plan in ten lines, a comparison of laws, and their tables
emit/            a plan as a training config
"""
