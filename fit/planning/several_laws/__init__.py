"""The plans of several laws for one budget.

shared_problem.py       the problem that all laws solve
law_plan.py             the plan of one law: its best model and its best dense one; architectures.py, its choice
comparison.py           records of the plans and of what the laws together say
votes.py                what laws vote for with their draws; agreement.py, how far their plans lie apart
leverage.py             the efficiency leverage of a mixture
on_reference_model.py   plans instead of a model to start from
"""
