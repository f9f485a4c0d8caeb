"""A mixture's architecture for a budget, and the laws behind it.

holistic.py       fit holistic: its options and its steps; result.py, what it returns
triads.py         the algebra: M, N_a and N of an architecture, and the architecture that they determine
near_models.py    models of whole blocks near a triad, and why there are none
published.py      the paper's laws, its grid, and its choices at six budgets
search_runs.py    the runs of a search, read from a table
fitted.py         laws fitted to these runs
ranks.py          whether the width keeps the rank of architectures; what M alone does not explain
architecture.py   the complete architecture for a budget, by published or fitted laws
answer.py         all of it in words
"""
