"""A run that was trained, added to the table of runs.

add.py           all of it, for fit add; results.py, its dataclasses
new_rows.py      the runs to add, and which of them are new
longer_table.py  the table with them
compare.py       their losses beside the law's predictions, and the plans before and after
refit.py         the law fitted again as it was fitted before, and the command for that
answer.py        the answer in words
"""
