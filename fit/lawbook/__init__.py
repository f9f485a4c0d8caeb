"""A law: lawfile.py, a form with coefficients, its predictions and range; intervals.py, those of them;
predictions.py, both for a table;
lawcheck.py, what a law.json holds; models.py, the models behind it; shapes.py, how they are built; presets/, fits of
our own."""
