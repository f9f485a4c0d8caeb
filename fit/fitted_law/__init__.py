"""A law:

law.py                 a form with coefficients: losses, their intervals, its range; codec.py, law.json
columns.py             what a law reads of models; intervals.py, percentiles over its draws
parts.py, settings.py  its parts; bounds.py, of their values; tuning.py, the best rate and batch of a model
models.py              the models behind it, from a table of runs: model_fields.py, their fields; table_architecture.py,
                       how they are built, as architecture_ratios.py says it; table_experts.py and expert_widths.py,
                       their experts; batches.py, their batches; overrides.py, what they set in their config
law_counts.py          models of real size as a law reads them; repeated.py, a law of text that is read several times
published_draws.py     draws of published laws
presets/               fits of our own
"""
