"""A law, from its data up to what it says of models:

law_data.py            the fields of law.json and what follows from them; parts.py, tuning.py, settings.py, their types;
                       bounds.py, the values that these may have
models.py              the models of its runs, from their table: model_fields.py, their fields; table_architecture.py,
                       how they are built, as architecture_ratios.py says it; table_experts.py and expert_widths.py,
                       their experts; batches.py, their batches; overrides.py, what they set in their config
law.py                 the law: losses and their intervals; counting.py, how it counts parameters; intervals.py,
                       percentiles over its draws
repeated.py            a law of text that is read several times
law_files.py           laws by their name or file; codec.py, a law.json checked: decoding.py, value by value;
                       older_versions.py, files of older versions; published_draws.py, draws of published laws
extrapolation.py       what of a model lies outside its runs
planned_models.py      its losses of models of an architecture
presets/               fits of our own
"""
