"""A run that was trained, added to the table of runs.

add.py      all of it, for fit add; results.py, its dataclasses
added.py    which runs are new, the table with them, their losses against the law's predictions
answer.py   the answer in words
"""
