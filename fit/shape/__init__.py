"""What a width and a number of experts make: architecture.py, the paper's decoder; mixture.py, others; roots.py."""
