"""Tables read strictly (table.py), and from Python (frames.py); files written whole (files.py); runs and
their trunks (runs.py)."""
