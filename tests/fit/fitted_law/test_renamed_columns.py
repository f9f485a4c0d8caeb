"""A table whose columns have other names gives the law of the table with ours, by --columns and --set."""

import csv
import json

import fit_command
import fit_runs
import numpy as np
import pytest

import fit
from fit.commands import flags


def sweep():
    """The demo's runs as columns, with all that a law keeps of models; two epochs at the most tokens."""
    runs, columns = fit_runs.demo_runs()
    sizes = {name: getattr(runs, name).tolist() for name in ("n_active", "n_tokens", "n_experts", "loss")}
    epochs = np.maximum(runs.n_tokens / 655_360, 1)
    return sizes | columns | dict(epochs=epochs.tolist(), batch_tokens=[1_024] * len(runs), seed=[0] * len(runs))


def mixtures():
    """Runs of 8 experts, of which a token uses 2 that are half as wide as the dense layer, without shapes."""
    runs = fit_runs.dense_runs(12)
    n = len(runs)
    columns = dict(n_active=runs.n_active, n_tokens=runs.n_tokens, loss=runs.loss, n_total=3.1 * runs.n_active)
    return {name: values.tolist() for name, values in columns.items()} | dict(
        n_experts=[8] * n, top_k=[2] * n, granularity=[2] * n, vocab_size=[32_000] * n
    )


TABLES = {"joint": sweep, "chinchilla": mixtures}


def record(law):
    """What law.json holds, without how the table calls its columns."""
    kept = law.to_dict()
    for name in ("columns", "set"):
        kept["settings"].pop(name, None)
    return kept


@pytest.mark.parametrize("form", TABLES)
def test_names_of_columns_do_not_matter(form):
    columns = TABLES[form]()
    theirs = {name: f"their_{name}" for name in columns}
    renamed = {theirs[name]: values for name, values in columns.items()}
    plain = fit.law(columns, form=form, starts=8)
    law = fit.law(fit.read(renamed, columns=theirs), form=form, starts=8)
    assert record(law) == record(plain)
    of_plain = fit.predict(plain, columns)
    assert fit.predict(law, fit.read(renamed, columns=theirs)).columns == of_plain.columns


def test_constants_may_be_set():
    columns = mixtures()
    constants = {name: str(columns[name][0]) for name in ("n_experts", "top_k", "granularity", "vocab_size")}
    others = {name: values for name, values in columns.items() if name not in constants}
    plain = fit.law(columns, form="chinchilla", starts=8)
    law = fit.law(fit.read(others, set=constants), form="chinchilla", starts=8)
    assert record(law) == record(plain)
    assert law.only_n_experts == 8 and law.architecture.top_k == 2


def test_the_commands_read_their_own_table(tmp_path):
    """`fit predict` takes the table that `fit law` took, by the same flag."""
    columns = mixtures()
    theirs = {name: f"x{i}" for i, name in enumerate(columns) if name in flags.NAMES}
    path = tmp_path / "runs.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([theirs.get(name, name) for name in columns])
        writer.writerows(zip(*columns.values(), strict=True))
    named = "--columns=" + ",".join(f"{ours}:{name}" for ours, name in theirs.items())
    kept = fit_runs.fit_law(tmp_path, path, "--form=chinchilla", named)
    assert kept["models"]["n_experts"] == [8] and kept["models"]["vocab_size"] == 32_000
    law = f"--law={tmp_path / 'law.json'}"
    said = fit_command.printed("predict", law, f"--runs={path}", f"--out={tmp_path / 'out.csv'}", named)
    assert "12 measured losses" in said
    assert json.loads((tmp_path / "law.json").read_text())["settings"]["columns"] == theirs
