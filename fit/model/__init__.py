"""Models, and the cost of training them on chips. It knows no law and no plan.

shape.py          ModelShape: the trainer's fields, and all counts of parameters, FLOPs and cache
architecture.py   the shape of a width and a number of experts, by the paper's rule or a published family's
hardware.py       shapes in the multiples that hardware likes (divisibility.json)
reference_model.py  published models (published.json), and those of a config file
layout.py         Layout: how devices train it: mesh, batch, rematerialization
step_counts.py    what a device does, sends and keeps in a step, counted before anything runs
step_cost.py      step_cost(shape, layout, chip, efficiencies): seconds, memory, bytes sent, as arrays
chips.py          peaks of chips (chips.json)
efficiencies.py   the shares of these peaks that training reaches (efficiencies.json), fitted to published speeds
serving.py        how fast chips decode with a model and read prompts
measured.py       these speeds (measured.csv), and a table of your own
"""
