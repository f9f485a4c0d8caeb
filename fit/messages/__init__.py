"""Findings and their catalogue (finding.py), the lines of an answer and their renderers (lines.py), the sentences of a
plan (sentences.py), formatted numbers (units.py), options that are fields of a flag (flags.py), and text made safe for
a terminal (printable.py)."""
