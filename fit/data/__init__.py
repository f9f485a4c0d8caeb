"""Tables read strictly (table.py), and from Python (frames.py); runs and their trunks (runs.py)."""
