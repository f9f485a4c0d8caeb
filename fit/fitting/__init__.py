"""From a table of runs to a law.json: fitting.py, by way of problem.py, the objective; search.py, its best point from
many starts; solvers.py, the steps of both solvers. rolling.py, how far a form is off beyond smaller runs; forms.py,
which form: the one taken unless one is asked for, several side by side, one drawn to another law; sure.py, how sure a
law is: noise.py, the errors of runs; intervals.py, profiles and bootstrap; summary.py, a fit in words."""
