"""Numbers as people read them (units.py) and the sentences of a plan (sentences.py)."""
