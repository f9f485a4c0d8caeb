"""Findings and their catalogue (finding.py), the lines of an answer and their renderers (lines.py), the sentences of a
plan (sentences.py), formatted numbers (units.py), and text made safe for a terminal (printable.py)."""
