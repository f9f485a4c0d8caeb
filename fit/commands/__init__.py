"""The commands: each is a dataclass of its flags, its docstring is its help, run() does its work and prints its answer.

imports.py   fit import
laws.py      fit laws, law, predict, lr
plans.py     fit plan, compare
studies.py   fit add, next, speedup, surface, holistic
tasks.py     fit tasks
pictures.py  fit table, plot, report, page
flags.py     flags that several of them have, and how all print JSON and warnings

suggested_command.py  the command that a user typed, with the flags that make it work
former_flags.py       flags of earlier versions, and what to type now
"""
