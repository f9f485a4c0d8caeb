"""A law: law.py, a form with coefficients, its predictions, their intervals and its range; summary.py, these for a
table, and how a fit went, for people; law_check.py, what a law.json holds; models.py, the models behind it, built.py,
how they are built, and totals.py, how wide experts are by n_total; presets/, fits of our own."""
