"""Words for results.

finding.py     a finding, which has a code; catalogue.py, the templates of all codes
lines.py       the lines of an answer, and their renderers
sentences.py   the sentences that the planner page says too; refusals, recipe and config of a plan
units.py       formatted numbers, and templates filled in with them
printable.py   text made safe for a terminal
"""
