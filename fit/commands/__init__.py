"""The commands: each is a dataclass of its flags, its docstring is its help, run() prints its answer.

laws.py: laws fitted and asked for losses; plans.py: what to train; pictures.py: tables, pictures, pages; flags.py: what
they share.
"""
