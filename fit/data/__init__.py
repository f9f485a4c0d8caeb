"""Tables, from files and from Python, read strictly (table.py); files written whole (files.py); runs and their trunks
(runs.py)."""
