"""Tables, from files and from Python, read strictly (table.py); files written whole (files.py); runs, their trunks and
those kept out of a fit (runs.py); whether a table's numbers can be what they are taken for (sense.py)."""
