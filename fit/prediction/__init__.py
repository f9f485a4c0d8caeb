"""What a law predicts: predictions.py, the losses of a table of models; forecast.py, `fit predict`: its options and
its answer."""
