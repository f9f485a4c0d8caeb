"""From a table of runs to a Law, from the top down:

fit_law.py          all of it, for fit law and fit.law; options.py, its options
forms.py            which form is fitted unless the user names one; form_comparison.py, several forms side by side
fitting.py          the fit and its Law; fit_warnings.py, sentences about the runs and the law
uncertainty.py      noise, intervals and draws; rolling.py, errors beyond the fitted runs
law_prior.py        priors: another law's, or by population.py that of other sweeps
intervals.py        profiles and bootstrap; noise.py, how far runs scatter, and standard errors
search.py           the best point from many starts; solvers.py, the steps of the solvers
problem.py          the objective
with_rate.py        loss, learning rate and batch fitted at once
isoflop.py          parabolas over size at equal FLOPs
learning_rate.py    peak learning rates (Eq. 10); fit_rates.py, what fit lr does; rates_answer.py, its answer
"""
