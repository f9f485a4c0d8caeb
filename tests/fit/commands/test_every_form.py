"""Every command of `fit` on a law of every form, fitted to a small table: an answer, or a sentence on why not.

What a form, its separate laws or its draws lack must not end a command with a traceback.
"""

import csv
import json
import re

import fit_command
import numpy as np
import pytest

from fit import __main__ as command_line

OF_MIXTURES = ("joint", "joint_coupled", "comprehensive", "fine_grained", "sparsity", "clark")
DENSE = ("chinchilla", "chinchilla_coupled")
LAWS = (*OF_MIXTURES, *DENSE, "additive_as_coupled", "one_number", "no_draws")
NOT_CHINCHILLA = {"comprehensive", "fine_grained", "sparsity"}
FIGURES = ("1a", "2a", "2b", "3", "4", "5", "memory", "compute")  # of other laws a report has them
# by tests/fit/render and test_python.py; additive_as_coupled is of the coupled form
REPORTED_ELSEWHERE = ("joint", "joint_coupled", "chinchilla")
# {command: laws of which it is refused}; a law that does not read the tokens plans nothing
REFUSED = {
    **dict.fromkeys(("plan", "next", "compare", "page", "table 1", "table 2"), {"clark"}),
    **dict.fromkeys(("plot 1a", "plot 2a", "plot 3", "plot 4", "plot memory", "plot compute"), {"clark"}),
    "table 4": NOT_CHINCHILLA | {"clark"},
    "table 5": {"clark", "no_draws"},
    "speedup": NOT_CHINCHILLA | {"clark"},
    "plot 2b": NOT_CHINCHILLA | {"clark", "one_number"},
}


def rows():
    """36 runs of one shape with all columns that a form reads; the losses are those of no form in particular."""
    rng = np.random.default_rng(0)
    made = []
    for width in (256, 512, 1024, 2048):
        for n_experts, split in ((1, 1), (4, 1), (16, 2)):
            for i, n_tokens in enumerate((1e9, 4e9, 1.6e10)):
                n_active = 13 * width**3 / 64 + 2000 * width
                experts = n_experts / split
                loss = 1.6 + 400 * n_experts**-0.1 / n_active**0.34 + 400 / n_tokens**0.28
                made.append(
                    dict(
                        n_active=n_active,
                        n_total=(4 + 9 * experts) * width**3 / 64 + 2000 * width,
                        n_tokens=n_tokens,
                        n_experts=n_experts,
                        top_k=split,
                        granularity=split,
                        sparsity=1 - split / n_experts,
                        shared_share=0 if n_experts == 1 else 0.25 * i,
                        d_model=width,
                        n_blocks=width // 64,
                        width_per_block=64,
                        vocab_size=1000,
                        loss=loss * np.exp(0.003 * rng.normal()),
                    )
                )
    return made


def write(path, kept):
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, list(kept[0]))
        writer.writeheader()
        writer.writerows(kept)
    return path


@pytest.fixture(scope="module")
def laws(tmp_path_factory):
    """{law: (law.json, its runs)}, each fitted when it is asked for."""
    folder = tmp_path_factory.mktemp("forms")
    tables = {
        "every": write(folder / "every.csv", rows()),
        "dense": write(folder / "dense.csv", [row for row in rows() if row["n_experts"] == 1]),
        "one_number": write(folder / "one.csv", [row for row in rows() if row["n_experts"] == 4]),
    }
    fitted = {}

    def law(name):
        if name in fitted:
            return fitted[name]
        path = folder / f"{name}.json"
        if name == "additive_as_coupled":
            record = json.loads(law("joint")[0].read_text())
            record |= dict(form="joint_coupled", coefficients=record["coefficients"] | dict(k=1.0))
            record["bootstrap"]["draws"] = [[*draw, 1.0] for draw in record["bootstrap"]["draws"]]
            path.write_text(json.dumps(record))
            fitted[name] = path, tables["every"]
            return fitted[name]
        table = tables["dense"] if name in DENSE else tables.get(name, tables["every"])
        form = "joint" if name == "no_draws" else name
        flags = [] if name == "one_number" else [f"--form={form}"]
        draws = 0 if name == "no_draws" else 2
        flags += [f"--bootstrap={draws}"]
        assert command_line.run(["law", f"--runs={table}", f"--out={path}", *flags]) == 0
        fitted[name] = path, table
        return fitted[name]

    return law


def commands(name, law, table, folder):
    """(name, arguments) of every command that takes a law."""
    runs = f"--runs={table}"
    yield "plan", ["plan", law, "--flops=1e21", "--shape=vocab_size:256000"]
    yield "predict", ["predict", law, runs, f"--out={folder}/predicted.csv"]
    for which in "1245":
        yield f"table {which}", ["table", law, f"--which={which}"]
    yield "next", ["next", law, runs, "--flops=1e20", "--target_flops=1e22"]
    yield "compare", ["compare", law.replace("--law=", "--laws=joint-moe-2025,"), "--flops=1e21"]
    yield "speedup", ["speedup", law, runs]
    yield "page", ["page", law, f"--out={folder}/page.html"]
    if name not in REPORTED_ELSEWHERE:
        yield "report", ["report", law, runs, f"--out={folder}/report.html"]
    for figure in FIGURES if name == "clark" else ("2b", "4"):
        points = [runs] if figure in ("2a", "5", "compute") else []
        yield f"plot {figure}", ["plot", law, f"--figure={figure}", f"--out={folder}/{figure}.svg", *points]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.filterwarnings("ignore")
def test_every_command_answers_or_says_why_not(laws, capsys, tmp_path, name):
    path, table = laws(name)
    capsys.readouterr()
    for command, arguments in commands(name, f"--law={path}", table, tmp_path):
        code = command_line.run(arguments)
        said = capsys.readouterr()
        refused = name in REFUSED.get(command, ())
        assert code == (2 if refused else 0), (command, said.err)
        if refused:
            assert f"{path}" in said.err and len(said.err.splitlines()) < 5, command


def test_separate_laws_of_an_additive_law_that_is_written_as_a_coupled_one(laws):
    """Its separate laws have no k: they are those of the additive law, with k = 1."""
    tables = []
    for name in ("joint", "additive_as_coupled"):
        tables.append(fit_command.answer("table", f"--law={laws(name)[0]}", "--which=4")["rows"])
    additive, coupled = tables
    assert [row["n_experts"] for row in additive] == [1, 4, 16]
    for row, other in zip(additive, coupled, strict=True):
        assert row["separate_m"] is not None
        assert other == row | dict(k=1.0, separate_k=1.0)


def test_an_additive_law_that_is_chosen_says_k_of_its_separate_laws(laws, tmp_path):
    """As of itself: whichever form predicts larger runs better."""
    out = tmp_path / "law.json"
    assert command_line.run(["law", f"--runs={laws('joint')[1]}", f"--out={out}"]) == 0
    record = json.loads(out.read_text())
    assert record["form"] == "joint_coupled" and record["separate"]
    for separate in record["separate"].values():
        assert 0 < separate["coefficients"]["k"] <= 1
    assert not re.search("NaN|Infinity", out.read_text())
