"""What a law predicts.

predictions.py  the losses of a table of models, and how far measured ones are off
forecast.py     all of it, for fit predict; options.py, its options; answer.py, the answer in words
"""
