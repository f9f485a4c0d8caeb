"""How sure the best number of experts is, from the bottom up.

joint_draws.py      joint draws of law and speeds, and the best models in them
measurement.py      what would settle the choice between the first two
odds.py             how often each number of experts is the best, and what a wrong one costs
odds_of_law.py      the same at the most compute that a law was fitted to
"""
