"""A law: law.py, a form with coefficients, its predictions, their intervals and its range; summary.py, these for a
table, and how a fit went, for people; law_check.py, what a law.json holds; models.py, the models behind it,
table_architecture.py, how they are built, and expert_widths.py, how wide their experts are; presets/, fits of our
own."""
