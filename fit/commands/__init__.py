"""The commands: each is a dataclass of its flags, its docstring is its help, run() prints its answer. flags.py has the
flags that several share."""
