"""A plan as a training config: plan_config.py writes it, emitted.py checks emitted Python before it is written."""
