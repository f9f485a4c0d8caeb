"""A law: lawfile.py, a form with coefficients, its predictions, their intervals and its range; predictions.py, these
for a table; lawcheck.py, what a law.json holds; models.py, the models behind it and how they are built;
presets/, fits of our own."""
