"""A law: lawfile.py, a form with coefficients, its predictions, their intervals and its range; summary.py, these for a
table, and how a fit went, for people; lawcheck.py, what a law.json holds; models.py, the models behind it, built.py,
how they are built, and totals.py, how wide experts are by n_total; presets/, fits of our own."""
