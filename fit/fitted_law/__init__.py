"""A law: law.py, a form with coefficients, its predictions, their intervals and its range; summary.py, these for a
table, and the summary of a fit, as text; codec.py, law.json; parts.py
and settings.py, what it holds, with the bounds.py of its values; models.py, the models behind it,
table_architecture.py, their architecture, and expert_widths.py, the width of their experts; presets/, fits of our
own."""
