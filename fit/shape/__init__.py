"""What a width and a number of experts make: architecture.py, counts of a decoder; reference_model.py, published
models and config.json."""
