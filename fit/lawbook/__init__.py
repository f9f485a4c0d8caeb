"""A law: lawfile.py, a form with coefficients, its predictions and range; intervals.py, those of its predictions;
lawcheck.py, whether a law.json is whole; models.py, the models behind it; shapes.py, how they are built; presets/, fits
of our own."""
