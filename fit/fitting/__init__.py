"""From a table of runs to a law.json: fitting.py, by way of problem.py, the objective; search.py, its best point from
many starts; solvers.py, the steps of both solvers. forms.py, which form: the one taken unless one is asked for, several
side by side, one drawn to another law; sure.py, how sure a law is, and how far its form is off beyond smaller runs:
noise.py, the errors of runs; intervals.py, profiles and bootstrap. fit_law.py, all of it for fit law, with its options
in options.py."""
