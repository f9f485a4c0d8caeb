"""From a table of runs to a law.json: fitting.py, by way of problem.py, the objective; search.py, its best point from
many starts; solvers.py, the steps of both solvers; prior.py, exponents drawn to another law's. holdout.py, runs kept
out; rolling.py, how far a form is off beyond smaller runs; choice.py, the form taken unless one is asked for;
forms.py, several forms fitted to the same runs; sure.py, how sure a law is: noise.py, the errors of runs;
intervals.py, profiles and bootstrap; summary.py, a fit in words."""
