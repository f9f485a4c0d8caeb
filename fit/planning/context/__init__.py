"""Other plans to compare a plan with, and findings to know before trusting it.

other_budget.py       the best model by hours in place of FLOPs, or by FLOPs in place of hours
dense_models.py       savings against the best dense model, and the paper's rule of thumb
reference_model.py    a model to start from: what it counts, and its loss under the same budget
repeats.py            what it is worth to read text several times
expected_tasks.py     accuracies that the model is expected to reach
reasons_to_doubt.py   whether a best model is at an edge, unbounded or mostly embedding
not_read.py           what the law does not read of how models are built
plan_findings.py      findings on best model, draws, law and chips
"""
