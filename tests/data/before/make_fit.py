"""What fit's commands answered at commit 6fca2bb: drawn plans, predictions, tables, texts, laws fitted to a small
table.

XLA_FLAGS=--xla_cpu_use_fusion_emitters=false python tests/data/before/make_fit.py OUT.jsonl

from the root of a checkout of that commit; the flag is one that the tests have had since.

It speaks to fit by its command line alone, so that the same lines can be run at any later commit. Each line of the file
is one command with what it printed, and what it wrote into the files named OUT.
"""

import contextlib
import csv
import io
import json
import math
import os
import pathlib
import random
import sys

# A law of byte models of 10^4 parameters, and its coefficients in four draws.
TINY = dict(a=7.2, alpha=-0.25, delta=-0.12, gamma=0.003, b=48.0, beta=-0.3, omega=0.05, zeta=-0.002)
TINY |= dict(E_start=1.5, E_max=60.0, c=0.8)
LAWS = ("joint-moe-2025", "joint-moe-2025-as-printed", "chinchilla-2022", "chinchilla-refit-2024", "tiny.json")
LAWS += ("fine-grained-dense-2024",)


def loss_of(n_active, n_tokens, n_experts, c):
    """Eq. 6 of the joint law, numbers."""
    e = 1 / (1 / (n_experts - 1 + 1 / (1 / c["E_start"] - 1 / c["E_max"])) + 1 / c["E_max"])
    size = c["a"] * e ** c["delta"] * n_active ** (c["alpha"] + c["gamma"] * math.log(e))
    return size + c["b"] * e ** c["omega"] * n_tokens ** (c["beta"] + c["zeta"] * math.log(e)) + c["c"]


def write_inputs(folder):
    """tiny.json, runs.csv, models.jsonl and rates.csv, as every commit reads them."""
    rng = random.Random(1)
    draws = [[v * (1 + 0.02 * rng.gauss(0, 1)) for v in TINY.values()] for _ in range(12)]
    record = dict(
        form="joint",
        coefficients=TINY,
        settings=dict(holdout="none"),
        runs=dict(
            ranges=dict(
                n_active=[14880, 69696], n_tokens=[327680, 1310720], n_experts=[1, 8], training_flops=[3e10, 6e11]
            )
        ),
        models=dict(
            vocab_size=257,
            width_per_block=8,
            final_norm=True,
            seq_len=64,
            n_experts=[1, 2, 4, 8],
            base_config="configs/quickstart.py",
            overrides={"optimizer.b2": "0.95"},
            learning_rate=dict(constant=3.0, n_active=-0.5, n_experts=-0.25),
            unique_tokens=1_000_000,
        ),
        noise=dict(total=0.011),
        bootstrap=dict(form="errors", by="runs", percentiles=[10, 90], draws=draws),
    )
    (folder / "tiny.json").write_text(json.dumps(record))
    rows = []
    for width in (16, 24, 32):
        for e in (1, 2, 4, 8):
            shared = 0.006 * rng.gauss(0, 1)
            for n_tokens in (327680, 655360, 1310720):
                n_active = 2 * width * 257 + 13 * width**3 // 8
                loss = loss_of(n_active, n_tokens, e, TINY) * math.exp(shared + 0.004 * rng.gauss(0, 1))
                rows.append((n_active, n_tokens, e, loss, f"jobs/d{width}-e{e}/branch-{n_tokens}"))
    write_csv(folder / "runs.csv", ("n_active", "n_tokens", "n_experts", "loss", "run"), rows)
    models = [
        dict(n_active=10 ** rng.uniform(4, 11), n_tokens=10 ** rng.uniform(5, 13), n_experts=2 ** rng.randrange(7))
        for _ in range(40)
    ]
    (folder / "models.jsonl").write_text("".join(json.dumps(m | dict(note="x")) + "\n" for m in models))
    rates = [
        (n, e, d, rate, 3 + math.log(rate / (0.3 * n**-0.4 * e**-0.2)) ** 2 / 50 + 0.001 * rng.gauss(0, 1))
        for n in (10_000, 100_000)
        for e in (1, 8)
        for d in (10**6, 10**7)
        for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    ]
    write_csv(folder / "rates.csv", ("n_active", "n_experts", "n_tokens", "peak_learning_rate", "loss"), rates)


def write_csv(path, names, rows):
    with open(path, "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([names, *rows])


def drawn_plans(count=60, seed=2):
    """Commands of plans: laws and constraints drawn; those of the tiny law at its own size."""
    rng = random.Random(seed)
    power = lambda low, high: f"{10 ** rng.uniform(low, high):.6g}"
    for i in range(count):
        law = LAWS[i % len(LAWS)]
        tiny = law == "tiny.json"
        flags = [f"--law={law}"]
        flops = rng.random() < 0.85
        if flops:
            flags.append(f"--flops={power(9.5, 14) if tiny else power(17, 25)}")
        if not flops or rng.random() < 0.5:
            flags.append(f"--memory_gb={power(-4.5, -2.5) if tiny else power(-0.5, 3)}")
        if not flops or rng.random() < 0.3:
            flags.append(f"--max_tokens={power(5, 8) if tiny else power(9, 13)}")
        if flops and rng.random() < 0.4:
            flags.append(f"--inference_tokens={power(4, 8) if tiny else power(8, 13)}")
        for name, chance, value in (
            ("kv_tokens", 0.4, power(1, 4) if tiny else power(3, 7)),
            ("devices", 0.2, rng.choice([2, 8])),
            ("bytes_per_parameter", 0.2, rng.choice([1, 4])),
            ("bytes_per_kv_element", 0.2, 1),
            ("vocab_size", 0.2, rng.choice([257, 32000])),
            ("width_per_block", 0.2, rng.choice([16, 128])),
        ):
            if rng.random() < chance:
                flags.append(f"--{name}={value}")
        if law.startswith(("joint", "tiny")) and rng.random() < 0.3:
            flags.append("--experts=" + rng.choice(["1", "8", "2,4,64", "1,16,256"]))
        yield ["plan", *flags, "--json"]


def commands():
    yield from drawn_plans()
    yield ["plan", "--law=joint-moe-2025", "--flops=1e22", "--memory_gb=80", "--kv_tokens=16384"]
    yield ["plan", "--law=tiny.json", "--flops=1e12", "--max_tokens=2e6"]
    yield ["plan", "--law=tiny.json", "--flops=1e12", "--emit_config=OUT.py"]
    for law in LAWS[:5]:
        yield ["predict", f"--law={law}", "--runs=models.jsonl", "--out=OUT.jsonl"]
    yield ["predict", "--law=clark-2022-rl", "--runs=models.jsonl", "--out=OUT.jsonl"]
    yield ["predict", "--law=tiny.json", "--n_active=4e4", "--n_tokens=1e6", "--n_experts=8"]
    for law in ("joint-moe-2025", "chinchilla-2022", "tiny.json"):
        yield from (["table", f"--law={law}", f"--which={which}", "--json"] for which in "124")
    yield ["table", "--law=tiny.json", "--which=5", "--json"]
    yield ["table", "--law=joint-moe-2025", "--which=2"]
    yield ["lr", "--runs=rates.csv", "--with_tokens", "--out=OUT.json"]
    for form, *flags in (
        ("joint", "--bootstrap=6", "--holdout=largest-compute:3"),
        ("joint", "--fix=E_max=60", "--weight_decay=1e-6", "--select=rmse", "--holdout=lowest-loss:4"),
        ("chinchilla", "--bootstrap=6", "--bootstrap_form=replacement", "--weights=inverse-loss"),
        ("clark", "--starts=32"),
    ):
        yield ["law", f"--form={form}", "--runs=runs.csv", "--out=OUT.json", "--starts=16", *flags]


def answers(wanted):
    """One dictionary for each command: command, code, printed, wrong (of stderr the last line), wrote."""
    from fit import __main__ as command_line

    for command in filter(wanted, commands()):
        out = next((a.partition("=")[2] for a in command if "=OUT." in a), None)
        printed, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(wrong):
            code = command_line.run(command)
        answer = dict(command=" ".join(command), code=code, printed=printed.getvalue())
        if code:
            answer["wrong"] = wrong.getvalue().splitlines()[-1]
        if out and not code:
            answer["wrote"] = pathlib.Path(out).read_text()
            os.unlink(out)
        for name in ("printed", "wrote"):
            if answer.get(name, "").startswith(("{", "[")):
                answer[name] = [json.loads(part) for part in parts_of(answer[name])]
        yield answer


def parts_of(text):
    """The lines of JSONL; else the whole text, which is one value."""
    return text.splitlines() if text.startswith("{") and text.splitlines()[0].endswith("}") else [text]


def machine():
    """What decides the last bits of compiled code: the processor and what it can do."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})


def run(folder, wanted=lambda command: True):
    """[machine, *answers] of the commands that are wanted, run in `folder`, to which their inputs are written."""
    write_inputs(folder)
    with contextlib.chdir(folder):
        return [dict(machine=machine()), *answers(wanted)]


if __name__ == "__main__":
    import tempfile

    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "tests")]
    import conftest  # noqa: F401, the compiler's settings that the tests have

    target = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as made:
        os.environ["JMOE_CACHE"] = made
        target.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in run(pathlib.Path(made))))
