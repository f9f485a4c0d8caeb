"""What do a dozen runs say of larger models? Draws of runs of at most 1/10 of a table's compute predict the others.

    python -m benchmarks.small_tables [--runs=12,16,24] [--draws=4]

Of every table of benchmarks/extrapolation.py, each draw (numpy's default_rng([draw, runs])) is fitted as the additive
law, as what `python -m fit law` takes for so few runs, which is the coupled law with weights, and as that drawn to the
law of another table (--prior): of Chinchilla's runs or, for these, of Llama 3's. Printed: the geometric mean of the
root mean square errors of a table's draws, and of all tables; first, how the exponents of the tables' laws differ, from
which come the spreads in fit/fitting/law_prior.py. Two minutes of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from absl import app, flags

import fit
from benchmarks import extrapolation
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.laws._coupled import SUFFIX

RUNS = flags.DEFINE_list("runs", ["12", "16", "24"], "How many runs.")
DRAWS = flags.DEFINE_integer("draws", 4, "How many draws of so many runs.")
CUT = 10
SWEEPS = "llama3", "marin_comma", "marin_v16", "chinchilla", "ours_e1"  # one of each sweep's tables


def fitted(table, form, **options):
    return fit.law(table, form=form, mix_corpora=True, starts=32, **options)


def spreads(found):
    """Prints the standard deviations of ln exponents and ln(1/k - 1) between two sweeps."""
    for form in ("chinchilla", "chinchilla" + SUFFIX):
        for weights in ("none", DEFAULT_WEIGHTS):
            laws = [fitted(found[name], form, weights=weights).coefficients for name in SWEEPS]
            columns = {f"ln {name}": [np.log(c[name]) for c in laws] for name in ("alpha", "beta")}
            columns |= {"ln(1/k - 1)": [np.log(1 / c["k"] - 1) for c in laws]} if "k" in laws[0] else {}
            differ = ", ".join(f"{name} {np.sqrt(2) * np.std(v, ddof=1):.2f}" for name, v in columns.items())
            print(f"{form}, weights {weights}: between two sweeps differ {differ}")


def errors(name, table, prior, runs):
    """{how it was fitted: root mean square errors [draws] of the runs beyond}; {} where there are too few."""
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    pool = np.flatnonzero(flops <= flops.max() / CUT)
    if runs > len(pool):
        return {}
    rest, out = extrapolation.part(table, flops > flops.max() / CUT), {}
    form = "joint" if name == "ours" else "chinchilla"
    coupled = dict(form=form + SUFFIX, weights=DEFAULT_WEIGHTS)
    ways = dict(additive=dict(form=form), coupled=coupled) | (dict(drawn=coupled | dict(prior=prior)) if prior else {})
    for draw in range(DRAWS.value):
        rows = np.zeros(len(flops), bool)
        rows[np.random.default_rng([draw, runs]).permutation(pool)[:runs]] = True
        for way, options in ways.items():
            try:
                law = fitted(extrapolation.part(table, rows), **options)
            except fit.UserError:  # fewer distinct runs than coefficients
                return {}
            error = np.log(law.predict(**{c: rest.numbers(c) for c in law.form.columns}) / rest.numbers("loss"))
            out.setdefault(way, []).append(np.sqrt(np.mean(error**2)))
    return out


def main(_):
    found = extrapolation.tables()
    spreads(found)
    whole = {
        name: fitted(found[name], "chinchilla" + SUFFIX, weights=DEFAULT_WEIGHTS) for name in ("chinchilla", "llama3")
    }
    for runs in map(int, RUNS.value):
        every = {}
        for name, table in found.items():
            prior = None if name == "ours" else whole["llama3" if name == "chinchilla" else "chinchilla"]
            if by_way := errors(name, table, prior, runs):
                means = {way: float(np.exp(np.mean(np.log(v)))) for way, v in by_way.items()}
                print(f"{runs} runs of {name:15}", *(f"{way} {v:.2%}" for way, v in means.items()), flush=True)
                if prior:
                    for way, v in means.items():
                        every.setdefault(way, []).append(v)
        means = {way: np.exp(np.mean(np.log(v))) for way, v in every.items()}
        print(f"{runs} runs, {len(every['additive'])} tables:", *(f"{way} {v:.2%}" for way, v in means.items()))


if __name__ == "__main__":
    app.run(main)
