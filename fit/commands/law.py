"""Fit a law to a table of runs with the columns n_active, n_tokens, n_experts and loss (nats per token).

python -m fit law --runs=runs.csv --out=law.json --holdout=largest-compute:3 --bootstrap=100
python -m fit law --runs=runs.csv --form=joint,chinchilla,sparsity
python -m fit law --runs=theirs.jsonl --columns=loss:val_loss,n_tokens:D --out=law.json --fix=E_max=290.4521,c=1.2
"""

from fit.commands import flags
from fit.data.table import check_writable
from fit.errors import UserError
from fit.lawbook.lawcheck import WAYS_OF_DRAWING
from fit.laws import FORMS

FLAGS = (
    ("string", "runs", None, "Table of runs: .csv, .jsonl or .parquet."),
    (
        "list",
        "form",
        None,
        f"The law: {', '.join(FORMS)}. Several are fitted to the same runs and compared; none is written. Default: "
        "joint or joint_coupled (with one number of experts chinchilla or chinchilla_coupled), by how they predict "
        "the runs of more compute from those of less; where the runs are too few to say, joint or chinchilla.",
    ),
    ("string", "out", None, "File to write the law to (JSON)."),
    (
        "string",
        "holdout",
        "none",
        "Runs kept out of the fit: lowest-loss:30, largest-compute:3, "
        "largest-compute:20%, or column:NAME (rows where it is validation, holdout, true or 1). compute:rolling fits "
        "the runs of at most 1/2, 1/3 and 1/10 of the largest compute and predicts the others; the law that is written "
        "is fitted to all.",
    ),
    ("list", "fix", [], "Coefficients held at a value: E_max=290.4521,c=1.2."),
    ("float", "huber_delta", 1e-2, "Residual of the log loss from which the Huber loss is linear."),
    ("enum", "reduction", "sum", ["sum", "mean"], "How the Huber losses of the runs are combined."),
    (
        "string",
        "weights",
        None,
        "Weight of each run: none, inverse-loss (a run counts 1 / loss), compute^0.6 (that power of its FLOPs), or "
        "column:NAME. Default: none; without --form, compute^0.6.",
    ),
    (
        "float",
        "weight_decay",
        None,
        "Adds this / 2 times the squared parameters to the objective; the paper's is 1e-5. Default: 0, but for "
        "up to 60 runs, which may not settle all coefficients, 0.01 times their variance (1e-6 for 1% of noise).",
    ),
    (
        "string",
        "starts",
        "128",
        "Number of random starts, scaled to the runs; or paper for the published grid (joint: 19,683).",
    ),
    ("enum", "solver", "lm", ["lm", "lbfgs"], "Levenberg-Marquardt, or L-BFGS as in the paper."),
    (
        "enum",
        "select",
        "objective",
        ["objective", "rmse"],
        "Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs, as in the paper.",
    ),
    ("integer", "bootstrap", 0, "Number of fits to resampled runs, for intervals; 100 is usual.", 0),
    (
        "enum",
        "bootstrap_form",
        "errors",
        list(WAYS_OF_DRAWING),
        "What is resampled: the errors of the runs, the runs with replacement, or as in the paper 80% of the runs "
        "without replacement, whose intervals are about half too narrow by construction.",
    ),
    (
        "string",
        "bootstrap_by",
        "trunk",
        "Which runs share an error and are drawn together: trunk (those of a trunk, by the column run or by equal "
        "model, seed and config; else each run), row (each run), or a column. Profiles use it too.",
    ),
    ("list", "percentiles", ["10", "90"], "Ends of the bootstrap's intervals."),
    ("integer", "seed", 0, "Seed of the starts and of the bootstrap.", 0),
    ("bool", "mix_corpora", False, "Fit runs of several corpora together."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_columns(f)


def forms_of(f):
    """The Forms of --form, none without it; UserError on an unknown name, or for several with a flag for one."""
    if f.form is None:
        return []
    given, known = ",".join(f.form), f"expected one or more of {', '.join(FORMS)}"
    names = list(dict.fromkeys(f.form))
    if not names or not set(names) <= set(FORMS):
        raise UserError(f"--form={given}: {known}")
    alone = [f"--{name}" for name in ("out", "fix", "bootstrap", "select") if f[name].value != f[name].default]
    alone += ["--holdout=compute:rolling"] * (f.holdout == "compute:rolling")
    if len(names) > 1 and alone:
        raise UserError(f"--form={given}: {alone[0]} is for a single form")
    return [FORMS[name] for name in names]


def settings_of(f, form):
    """The Settings that the flags ask for, of a law of this Form; UserError where one is out of range."""
    from fit.fitting.problem import Settings

    if f.starts == "paper":
        starts = 0
    elif f.starts.isdecimal() and int(f.starts) > 0:
        starts = int(f.starts)
    else:
        raise UserError(f"--starts={f.starts}: expected a positive whole number, or paper")
    if not 0 < f.huber_delta < float("inf"):
        raise UserError(f"--huber_delta={f.huber_delta}: expected a positive number")
    if f.weight_decay is not None and not 0 <= f.weight_decay < float("inf"):
        raise UserError(f"--weight_decay={f.weight_decay}: expected a number from 0 up")
    return Settings(f.huber_delta, f.reduction, f.weight_decay, starts, f.solver, f.seed, fixed_of(f, form))


def fixed_of(f, form):
    """((coefficient, value), ...) of --fix; UserError unless a law of this Form can have them."""
    fixed = {}
    for text in f.fix:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in form.names or name in fixed:
            raise UserError(
                f"--fix={','.join(f.fix)}: found {text!r}, expected NAME=VALUE once for each NAME; the {form.name} "
                f"law's coefficients: {', '.join(form.names)}"
            )
        try:
            fixed[name] = float(value)
        except ValueError:
            fixed[name] = float("nan")
        low, high = (1e-6, 1e12) if form.is_positive(name) else (-20, 20)
        if not low <= fixed[name] <= high:
            raise UserError(
                f"--fix={','.join(f.fix)}: {name} is {value or 'nothing'!r}, expected a number from {low:g} to {high:g}"
            )
    for name, coefficient in form.coefficients.items():
        if fixed.get(coefficient.above, 0) >= fixed.get(name, float("inf")):
            raise UserError(f"--fix={','.join(f.fix)}: {coefficient.above} must be below {name}")
    if len(fixed) == len(form.names):
        raise UserError(
            f"--fix={','.join(f.fix)}: holds every coefficient of the {form.name} law, so nothing is left to fit"
        )
    return tuple(sorted(fixed.items()))


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


def options_of(f):
    """The fitting.Options that the flags ask for."""
    from fit.fitting import fitting, holdout

    if f.select == "rmse" and f.holdout in ("none", holdout.ROLLING):
        raise UserError("--select=rmse needs held-out runs: give --holdout")
    return fitting.Options(
        holdout=f.holdout,
        weights=f.weights,
        select=f.select,
        mix_corpora=f.mix_corpora,
        bootstrap=f.bootstrap,
        bootstrap_form=f.bootstrap_form,
        bootstrap_by=f.bootstrap_by,
        percentiles=percentiles_of(f),
        columns=flags.columns_of(f),
    )


def fitted(f, runs, form=None, quiet=False):
    """The record of the law that the flags ask for, fitted to `runs`: a path or a Table. form: its Form; without one
    the better of two is chosen."""
    from fit.fitting import choice, fitting, solvers

    with solvers.kept():
        if form is None:
            return choice.fit_best(runs, lambda form: settings_of(f, form), options_of(f), quiet)
        return fitting.fit_file(runs, form, settings_of(f, form), options_of(f), quiet)


def run(f):
    asked = forms_of(f)
    for name in ("runs", "out") if len(asked) <= 1 else ("runs",):
        if f[name].value is None:
            raise UserError(f"--{name} is missing")
    from fit.fitting import fitting, forms, solvers, summary

    if len(asked) > 1:
        with solvers.kept():
            compared = forms.compare(f.runs, asked, settings_of(f, asked[0]), options_of(f))
        print("\n".join(summary.of_forms(compared)))
        return
    check_writable(f.out)
    record = fitted(f, f.runs, *asked)
    fitting.save(record, f.out)
    for line in summary.summary(record):
        print(line)
    print(f"written to {f.out}")
