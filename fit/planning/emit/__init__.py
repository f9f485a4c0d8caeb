"""A plan as a training config.

base_config.py   the config file that it starts from
emitted.py       checks emitted Python before it is written
plan_config.py   its source
"""
