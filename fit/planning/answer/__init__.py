"""A plan, or a comparison of laws, in words.

plan_answer.py       the plan in ten lines; plan_details.py, its tables and all else
price_line.py        the lines on price and serving; cost_tables.py, the tables of the chips
recipe_lines.py      the lines on rate and batch
odds_line.py         the line on the odds; task_lines.py, the lines on accuracies of tasks
compare_answer.py    a comparison of laws in a few lines, and its tables
reference_lines.py   the lines on a model to start from, of plans and comparisons
speed_lines.py       the lines on modelled speeds, of plans and comparisons
"""
