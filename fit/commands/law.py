"""Fit a law to a table of runs with the columns n_active, n_tokens, n_experts and loss (nats per token).

python -m fit law --runs=runs.csv --form=joint --out=law.json --holdout=largest-compute:3
"""

from absl import flags

from fit import UserError
from fit import runs as runs_lib


def define_flags(f):
    flags.DEFINE_string("runs", None, "Table of runs: .csv, .jsonl or .parquet.", flag_values=f)
    flags.DEFINE_enum("form", "joint", ["joint", "chinchilla", "clark"], "The law.", flag_values=f)
    flags.DEFINE_string("out", None, "Where the law goes (JSON).", flag_values=f)
    flags.DEFINE_string(
        "holdout",
        "none",
        "Runs kept out of the fit: lowest-loss:30, largest-compute:3, "
        "largest-compute:20%, or column:NAME (rows where it is validation, holdout, true or 1).",
        flag_values=f,
    )
    flags.DEFINE_float("huber_delta", 1e-2, "Where the Huber loss of the log loss turns linear.", flag_values=f)
    flags.DEFINE_enum("reduction", "sum", ["sum", "mean"], "Of the Huber losses over the runs.", flag_values=f)
    flags.DEFINE_string(
        "weights",
        "none",
        "Weight of each run: none, inverse-loss (a run counts 1 / loss), or column:NAME.",
        flag_values=f,
    )
    flags.DEFINE_float(
        "weight_decay",
        0.0,
        "Adds this / 2 times the squared parameters to the objective; the paper's is 1e-5.",
        flag_values=f,
    )
    flags.DEFINE_string(
        "starts", "256", "How many of the law's start grid to try, or paper for all of it.", flag_values=f
    )
    flags.DEFINE_enum("solver", "lm", ["lm", "lbfgs"], "Levenberg-Marquardt, or L-BFGS as in the paper.", flag_values=f)
    flags.DEFINE_enum(
        "select",
        "objective",
        ["objective", "rmse"],
        "Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs, as in the paper.",
        flag_values=f,
    )
    flags.DEFINE_integer(
        "bootstrap", 0, "Fits to resampled runs, for intervals; 100 is usual.", lower_bound=0, flag_values=f
    )
    flags.DEFINE_enum(
        "bootstrap_form",
        "replacement",
        ["replacement", "paper"],
        "Resample with replacement, or as the paper 80% of the runs without: about half too narrow by construction.",
        flag_values=f,
    )
    flags.DEFINE_list("percentiles", ["10", "90"], "Ends of the bootstrap's intervals.", flag_values=f)
    flags.DEFINE_integer("seed", 0, "Of the choice of starts and of the bootstrap.", lower_bound=0, flag_values=f)
    flags.DEFINE_bool("mix_corpora", False, "Fit runs of several corpora together.", flag_values=f)


def settings_of(f):
    """The Settings that the flags ask for; UserError where one is out of range."""
    from fit import regress

    if f.starts == "paper":
        starts = 0
    elif f.starts.isdecimal() and int(f.starts) > 0:
        starts = int(f.starts)
    else:
        raise UserError(f"--starts={f.starts}: expected a positive whole number, or paper")
    if not 0 < f.huber_delta < float("inf"):
        raise UserError(f"--huber_delta={f.huber_delta}: expected a positive number")
    if not 0 <= f.weight_decay < float("inf"):
        raise UserError(f"--weight_decay={f.weight_decay}: expected a number from 0 up")
    return regress.Settings(f.huber_delta, f.reduction, f.weight_decay, starts, f.solver, f.seed)


def percentiles_of(f):
    """The two percentiles of --percentiles; UserError unless they rise within 0 and 100."""
    try:
        low, high = (float(text) for text in f.percentiles)
        if 0 <= low < high <= 100:
            return low, high
    except ValueError:
        pass
    raise UserError(
        f"--percentiles={','.join(f.percentiles)}: expected two rising numbers from 0 to 100, such as 10,90"
    )


def run(f):
    for name in ("runs", "out"):
        if f[name].value is None:
            raise UserError(f"--{name} is missing")
    from fit import fitting

    settings = settings_of(f)
    runs_lib.check_writable(f.out)
    record = fitting.fit_file(
        f.runs,
        f.form,
        settings,
        holdout=f.holdout,
        weights=f.weights,
        select=f.select,
        mix_corpora=f.mix_corpora,
        bootstrap=f.bootstrap,
        bootstrap_form=f.bootstrap_form,
        percentiles=percentiles_of(f),
    )
    fitting.save(record, f.out)
    for line in fitting.summary(record):
        print(line)
    print(f"written to {f.out}")
