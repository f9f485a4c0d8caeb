"""Scaling laws of dense and mixture-of-experts language models: fit them, predict with them, plan by them.

Standalone: needs numpy and absl; to fit also jax, jaxopt, scipy and tqdm, to draw matplotlib, for Parquet pyarrow; and
nothing of the trainer. Start at `python -m fit help`.

  laws/         one file per law: its parameters, log-space prediction, start grid and published presets
  runs.py       runs as a law reads them, from tables checked strictly; files.py, tables read, files written whole
  lawfile.py    a law with its coefficients: presets, law.json (lawcheck.py), prediction, ranges fitted
  models.py     which models a law was fitted to, from the columns of the runs
  fitting.py    from a file of runs to a law.json; holdout.py, runs kept out; summary.py, what was found, in words
  regress.py    fit a law to runs: objective, search over many starts; prepare.py, its data; compiled.py, programs kept
  sure.py       how sure a fit is: noise.py and trunks.py, what runs err by and share; profile.py and bootstrap.py,
                intervals; uncertainty.py, what the runs do not pin down
  architecture.py  (n_active, n_experts) to width, n_total, key-value cache, exact counts, learning rate
  learning_rate.py  the best rate of each model in a table of runs; Eq. 10
  optimum.py    the best (n_active, n_tokens, n_experts) under constraints; roots.py, bisection of many at once
  planning.py   a plan; marks.py, what to know before trusting it; plan_text.py, told; plan_config.py, as a config
  recipe.py     the config and the learning rates of a law's runs
  solvers.py    the only module that knows jaxopt
  tables.py, figures/, report.py  the paper's tables and figures for any law
  units.py      numbers as people read them
  commands/     one file per command: its flags and its output
"""


class UserError(Exception):
    """A mistake in what the user gave, told in one sentence; the command line prints it and exits with 2."""
