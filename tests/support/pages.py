"""What commands of fit print, a page each, as words without their numbers: tests/data/pages has what was agreed on.

    PYTHONPATH=. python tests/support/pages.py    # writes these files again, to be read before they are committed

Other tests prove the numbers; a page shows that no line is lost, said twice or said where it does not belong.
"""

import contextlib
import io
import pathlib
import re
import tempfile

import fit_runs

from fit import __main__ as command_line

FOLDER = fit_runs.DATA / "pages"
JOINT = "--law=joint-moe-2025"
OWN = "--law=law.json"  # fitted to runs.csv
PAGES = {
    "plan": f"plan {JOINT} --chips=H100:64 --hours=240 --dollars_per_hour=2.5",
    "plan_verbose": f"plan {JOINT} --chips=H100:64 --hours=240 --dollars_per_hour=2.5 --verbose",
    "plan_served": f"plan {JOINT} --flops=1e22 --chips=H100:512 --experts=1,8,32 --serve=batch:8 --mfu=0.4 --verbose",
    "plan_memory": f"plan {JOINT} --flops=1e22 --memory_gb=80 --kv_tokens=16384 --inference_tokens=1e11",
    "plan_like": f"plan {JOINT} --flops=1e22 --like=Qwen3-30B-A3B",
    "plan_target": f"plan {JOINT} --target_loss=2.1 --inference_tokens=1e12 --verbose",
    "plan_epochs": f"plan {JOINT} --flops=1e22 --max_tokens=2e10 --epochs=4",
    "plan_widths": "plan --law=sparsity-2025 --flops=1e21 --shape=used:1,used:2,used:4",
    "plan_dense": "plan --law=chinchilla-2022 --flops=1e20",
    "plan_own": f"plan {OWN} --flops=2e11",
    "compare": "compare --flops=1e22 --memory_gb=80",
    "compare_verbose": "compare --flops=1e20 --like=Qwen3-30B-A3B --verbose",
    "compare_by_hours": "compare --laws=joint-moe-2025,chinchilla-2022 --chips=H100:64 --hours=240",
    "law": "law --runs=runs.csv --out=other.json --form=joint --bootstrap=20 --holdout=largest-compute:3",
    "law_verbose": "law --runs=runs.csv --out=other.json --form=chinchilla --verbose",
    "law_forms": "law --runs=runs.csv --form=joint,chinchilla,clark",
    "next": f"next {OWN} --runs=runs.csv --flops=1e12 --target_flops=1e14",
    "next_coefficients": f"next {OWN} --runs=runs.csv --flops=1e12 --goal=coefficients",
    "speedup": f"speedup {OWN} --runs=runs.csv",
    "predict": f"predict {JOINT} --n_active=1e9 --n_tokens=2e10 --n_experts=8",
    "predict_too_few_tokens": f"predict {JOINT} --n_active=2e9 --n_tokens=200 --n_experts=1",
    "holistic": "holistic --flops=1e21",
    "table": f"table {JOINT} --which=1",
    "laws": "laws",
}


def folder_of_runs(folder: pathlib.Path) -> None:
    """Writes runs.csv, and law.json with draws."""
    fit_runs.write_demo_csv(folder / "runs.csv")
    printed("law --runs=runs.csv --out=law.json --form=joint --bootstrap=20", folder)


def printed(command: str, folder: pathlib.Path) -> str:
    """What a command prints, and then its warnings, run in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert command_line.run(command.split()) == 0, err.getvalue()
    return out.getvalue() + err.getvalue()


NUMBER = r"(?<![\w.-])[+-]?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?([KMBT%]|×10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?(?![\w-])"


def words_of(text: str) -> str:
    """A page of words: numbers are #, and a line that was wrapped is one again."""
    return re.sub(" +", " ", re.sub(NUMBER, "#", re.sub(r"\n {4,}", " ", text)))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder_of_runs(pathlib.Path(made))
        for name, command in PAGES.items():
            (FOLDER / f"{name}.txt").write_text(words_of(printed(command, pathlib.Path(made))), encoding="utf-8")
