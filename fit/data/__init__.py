"""Tables of runs: formats.py, their files; table.py, their columns as numbers; runs.py, runs as a law reads them;
sense.py and loss_sense.py, whether the numbers make sense, by known_columns.py; files.py, files written whole;
formulas.py, cells that a spreadsheet must not run."""
