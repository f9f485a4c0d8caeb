"""What a model costs on chips. It knows no law and no plan.

shape.py          ModelShape: the trainer's fields, and all counts of parameters, FLOPs and cache
layout.py         Layout: how devices train it: mesh, batch, what is computed again
step_counts.py    what a device does, sends and keeps in a step; each count stands there alone
step_cost.py      step_cost(shape, layout, chip, efficiencies): seconds, memory, bytes sent, as arrays
chips.py          peaks of chips (chips.json)
efficiencies.py   what chips reach of them (efficiencies.json), by published speeds
measured.py       these speeds (measured.csv), and a table of your own
"""
