"""Tables of runs: formats.py, their files; table.py, their columns as numbers; runs.py, runs as a law reads them.

reading.py reads a table as flags say: selection.py which rows, computed.py further columns. validate.py checks the
numbers, with files for counts, losses, cells, histories of single runs and columns that runs should share.
files.py writes files whole; formulas.py quotes cells that a spreadsheet must not run.
"""
