"""Which runs to train next: next_runs.py, by way of candidates.py, what could be trained and its cost; design.py, the
best set; next_text.py, the answer in words and as a sweep file."""
