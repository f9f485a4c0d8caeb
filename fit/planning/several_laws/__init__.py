"""Several laws on one budget.

compare.py          all of it, for fit compare; comparison.py, its records
votes.py            what laws vote for with their draws; agreement.py, how far they lie apart
leverage.py         the efficiency leverage of a mixture
compare_answer.py   the comparison in a few lines, and its tables
"""
