"""Runs for the tests of fit, and the joint law once more in plain NumPy, written from the paper's Eq. 4 and 6."""

import csv
import json
import pathlib

import numpy as np

from fit.fitted_law import models
from fit.fitted_law.parts import Bootstrap
from fit.fitting.problem import residual_function
from fit.laws import FORMS
from fit.model.architecture import training_flops
from fit.table.runs import Runs
from fit.table.table import Table, read

DATA = pathlib.Path(__file__).parents[1] / "data"
CORPUS = "1a2b3c4d5e6f7a8b"  # of the demo's runs: no text has it
# Table 3 with E_start as its Table 4 implies.
TABLE_3 = dict(
    a=35.91,
    alpha=-0.1889,
    delta=-0.2285,
    gamma=0.0098,
    b=35.98,
    beta=-0.1775,
    omega=0.5529,
    zeta=-0.0259,
    E_start=2.0832,
    E_max=290.4521,
    c=1.3637,
)

# A law of byte models of 10^4 parameters: losses of 1.6 to 2.6 nats, more experts better than dense by a few percent.
TINY = dict(
    a=7.2,
    alpha=-0.25,
    delta=-0.12,
    gamma=0.003,
    b=48.0,
    beta=-0.3,
    omega=0.05,
    zeta=-0.002,
    E_start=1.5,
    E_max=60.0,
    c=0.8,
)


def joint_loss(n_active, n_tokens, n_experts, c):
    """Eq. 6 as printed, no logarithms of sums."""
    e = 1 / (1 / (n_experts - 1 + 1 / (1 / c["E_start"] - 1 / c["E_max"])) + 1 / c["E_max"])
    return (
        c["a"] * e ** c["delta"] * n_active ** (c["alpha"] + c["gamma"] * np.log(e))
        + c["b"] * e ** c["omega"] * n_tokens ** (c["beta"] + c["zeta"] * np.log(e))
        + c["c"]
    )


def runs_of(path, n_active, n_tokens, n_experts, loss, table=None):
    """Runs of these columns; of a table of nothing else unless one is given."""
    columns = dict(n_active=n_active, n_tokens=n_tokens, n_experts=n_experts)
    return Runs(path, columns, loss, Table(path, {}, list(range(len(loss)))) if table is None else table)


def objective(problem, free):
    """The objective of a fit at the law's own `free` [n]."""
    return 0.5 * float(np.sum(residual_function(problem.form)(problem.centre(free[None])[0], problem.data) ** 2))


def log_loss(form, free, ln_n, ln_d, n_experts):
    """ln of the loss of a form, from logarithms of sizes and tokens."""
    columns = dict(n_active=np.exp(ln_n), n_tokens=np.exp(ln_d), n_experts=np.asarray(n_experts, float))
    return FORMS[form].log_loss(free, columns | {"ln n_active": ln_n, "ln n_tokens": ln_d})


def paper_grid():
    """(n_active, n_tokens, n_experts) of the paper's 270 runs."""
    with open(DATA / "joint_moe_appendix_h.csv", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    return tuple(np.array([float(row[name]) for row in rows]) for name in ("N_act", "D", "E"))


def paper_runs(noise=0.0, seed=0):
    """The paper's grid with losses from Table 3 and log-normal noise."""
    n, d, e = paper_grid()
    loss = joint_loss(n, d, e, TABLE_3) * np.exp(noise * np.random.default_rng(seed).normal(size=len(n)))
    return runs_of("the paper's grid", n, d, e, loss)


def chinchilla_runs():
    """The 240 points of Besiroglu et al.: 245 less the 5 highest losses."""
    table = read(str(DATA / "chinchilla_svg_245.csv"))
    columns = [table.numbers(name) for name in ("n_active", "n_tokens", "n_experts", "loss")]
    rows = np.sort(np.argsort(columns[3], kind="stable")[:-5])
    return runs_of(table.path, *(column[rows] for column in columns), table)


def write_csv(path, runs, **more):
    """Writes runs as the trainer does; more columns by name."""
    columns = dict(
        n_active=runs.n_active,
        n_total=runs.n_active,
        n_tokens=runs.n_tokens,
        n_experts=runs.n_experts.astype(int),
        loss=runs.loss,
        **more,
    )
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(columns)

        def text(v):
            return v if isinstance(v, str) else repr(v.item() if hasattr(v, "item") else v)

        writer.writerows([[text(v) for v in row] for row in zip(*columns.values(), strict=True)])
    return str(path)


def demo_runs(noise=0.01, seed=0):
    """(Runs, more columns) as launch.sweep writes them for a sweep like the demo's; losses from TINY and noise."""
    from configs import quickstart

    config_file = "configs/quickstart.py"
    jobs = [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (327_680, 655_360, 1_310_720)}
        for d_model in (16, 24, 32)
        for n_experts in (1, 2, 4, 8)
    ]
    rows = []
    for job in jobs:
        config = quickstart.get_config()
        config.model.d_model = job["model.d_model"]
        config.model.n_experts = job["model.n_experts"]
        model = config.model
        law = config.optimizer.lr_law
        n_active = 2 * model.d_model * model.vocab_size + 13 * model.n_blocks * model.d_model**2
        rate = law.constant + law.n_active * np.log(n_active) + law.n_experts * np.log(model.n_experts)
        for n_tokens in job["n_tokens"]:
            rows.append(
                dict(
                    n_active=float(n_active),
                    n_tokens=float(n_tokens),
                    n_experts=float(model.n_experts),
                    d_model=model.d_model,
                    n_blocks=model.n_blocks,
                    width_per_block=model.d_model / model.n_blocks,
                    vocab_size=model.vocab_size,
                    seq_len=config.data.seq_len,
                    final_norm=str(config.model.final_norm),
                    peak_learning_rate=float(np.exp(rate)),
                    corpus_fingerprint=CORPUS,
                    config=config_file,
                    overrides=" ".join(f"{field}={value!r}" for field, value in job.items()),
                )
            )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    sizes = [np.array(columns.pop(name)) for name in ("n_active", "n_tokens", "n_experts")]
    loss = joint_loss(*sizes, TINY) * np.exp(noise * np.random.default_rng(seed).normal(size=len(rows)))
    return runs_of("the demo", *sizes, loss, Table("the demo", columns, list(range(len(rows))))), columns


def write_demo_csv(path, noise=0.01, seed=0, **more):
    """A runs.csv as the demo leaves it; more columns by name."""
    runs, columns = demo_runs(noise, seed)
    return write_csv(path, runs, **(columns | more))


def write_demo_law(path, **changes):
    """A law.json as `fit law` makes it of the demo's runs, with TINY's coefficients: nothing is fitted. `changes` go
    into its `models`."""
    runs, columns = demo_runs()
    sizes = {name: getattr(runs, name) for name in ("n_active", "n_tokens", "n_experts")}
    rows = list(range(len(runs)))
    table = Table("the demo", columns | {name: values.tolist() for name, values in sizes.items()}, rows)
    ranges = {name: [values.min(), values.max()] for name, values in sizes.items()}
    flops = training_flops(runs.n_active, runs.n_tokens)
    record = dict(
        form="joint",
        coefficients=TINY,
        settings={},
        runs=dict(ranges=ranges | dict(training_flops=[flops.min(), flops.max()])),
        models=models_of(table).to_dict() | changes,
    )
    pathlib.Path(path).write_text(json.dumps(record))
    return str(path)


def models_of(table):
    """The models of a law that is fitted to all runs of a table."""
    return models.from_table(table, np.arange(len(table)))


def bootstrap(draws, **more):
    """A bootstrap of these draws [draws][coefficients], of 10th and 90th percentile."""
    return Bootstrap(form="errors", percentiles=(10.0, 90.0), draws=tuple(map(tuple, draws)), **more)


def sweep_runs(widths=(16, 24, 32), budgets=(327_680, 655_360, 1_310_720), noise=0.01, trunk=0.0, seed=0, **more):
    """Runs of a laptop's sweep, E in 1, 2, 4, 8, with losses from TINY, an error of each run and one of each trunk; the
    column `run` tells the trunks. more: further columns."""
    rows = [
        (2 * d * 257 + 13 * d**3 / 8, n, e, f"jobs/d{d}-e{e}/branch-{n}")
        for d in widths
        for e in (1, 2, 4, 8)
        for n in budgets
    ]
    n_active, n_tokens, n_experts = (np.array([row[i] for row in rows], float) for i in range(3))
    rng = np.random.default_rng(seed)
    shared = np.repeat(rng.normal(size=4 * len(widths)), len(budgets))
    loss = joint_loss(n_active, n_tokens, n_experts, TINY) * np.exp(trunk * shared + noise * rng.normal(size=len(rows)))
    table = Table("a sweep", dict(run=[row[3] for row in rows], **more), list(range(2, len(rows) + 2)))
    return runs_of("a sweep", n_active, n_tokens, n_experts, loss, table)


CHINCHILLA = dict(A=482.01, B=2085.43, E=1.8172, alpha=0.3478, beta=0.3658)


def dense_runs(n=60, noise=0.003, seed=0, **columns):
    """Runs of a Chinchilla law; more columns by name."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.uniform(np.log(5e7), np.log(5e9), n))
    tokens = np.exp(rng.uniform(np.log(1e9), np.log(1e11), n))
    c = CHINCHILLA
    loss = (c["E"] + c["A"] / size ** c["alpha"] + c["B"] / tokens ** c["beta"]) * np.exp(noise * rng.normal(size=n))
    return runs_of("dense", size, tokens, np.ones(n), loss, Table("dense", columns, list(range(2, n + 2))))


def fit_law(tmp_path, path, *flags):
    """The record that `fit law` writes of the runs in `path`, of form joint unless a flag says otherwise; it prints all
    that is known of the fit."""
    from fit import __main__ as command_line

    out = tmp_path / "law.json"
    assert command_line.run(["law", f"--runs={path}", f"--out={out}", "--form=joint", "--verbose", *flags]) == 0
    return json.loads(out.read_text())


RATES = {"constant": 8.39, "n_active": -0.81, "n_experts": -0.25}


def learning_rate_runs():
    """Losses with a parabola around the rate of RATES, on a grid that does not hit it."""
    lines = ["n_active,n_tokens,n_experts,loss,peak_learning_rate"]
    for n_active in (8e7, 1.2e8, 1.7e8):
        for n_experts in (1, 4, 8, 32):
            best = RATES["constant"] + RATES["n_active"] * np.log(n_active) + RATES["n_experts"] * np.log(n_experts)
            for k in range(-3, 4):
                x = best + 0.13 + k * 0.3466
                loss = 3 + 0.05 * (x - best) ** 2
                lines.append(f"{n_active},2e9,{n_experts},{loss},{np.exp(x)}")
    return "\n".join(lines) + "\n"
