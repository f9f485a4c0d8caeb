"""Numbers as people write them, in flags and from Python, and what a prompt completes."""

import subprocess
import sys

import helpers
import pytest

import fit
import jmoe
from fit.errors import UserError
from fit.messages.units import parse_number
from fit.planning.options import PlanOptions


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("n_active", "1.5B", 1.5e9),
        ("n_active", "300m", 3e8),
        ("max_tokens", "2T", 2e12),
        ("max_tokens", "16 K", 16e3),
        ("flops", "1e22", 1e22),
        ("flops", "+.5e3", 500),
        ("memory_gb", "80GB", 80),
        ("memory_gb", "80", 80),
        ("memory_gb", "1.5TB", 1500),
        ("memory_gb", "80GiB", 80 * 2**30 / 1e9),
        ("hours", "10d", 240),
        ("hours", "240h", 240),
        ("hours", "2w", 336),
        ("hours", "30min", 0.5),
    ],
)
def test_a_number_is_read_as_people_write_it(name, text, value):
    assert parse_number(name, text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "name, text",
    [("hours", "10GB"), ("memory_gb", "1.5B"), ("flops", "10d"), ("flops", "1e"), ("flops", ""), ("flops", "1,5")],
)
def test_units_of_something_else_are_no_number(name, text):
    assert parse_number(name, text) is None


def test_flags_and_python_take_the_same_words():
    plain = fit.plan("joint-moe-2025", flops=1e21, memory_gb=80, max_tokens=1e11, devices=2)
    typed = fit.plan("joint-moe-2025", flops="1e21", memory_gb="80GB", max_tokens="100B", devices="2")
    assert typed.best == plain.best
    flags = ["--flops=1e21", "--memory_gb=80GB", "--max_tokens=100B", "--devices=2"]
    command = [sys.executable, "-m", "fit", "plan", "--law=joint-moe-2025", *flags]
    said = subprocess.run(command, capture_output=True, text=True, cwd=helpers.ROOT, check=True).stdout
    assert said.strip() == str(plain).strip()


@pytest.mark.parametrize(
    "option, sentence",
    [
        (
            dict(hours="10x", chips="H100:8"),
            "--hours: found '10x', expected a number of hours such as 240, 240h or 10d",
        ),
        (dict(memory_gb="1.5B"), "--memory_gb: found '1.5B', expected a number of GB such as 80, 80GB or 1.5TB"),
        (dict(max_tokens="many"), "--max_tokens: found 'many', expected a number such as 1e22, 1.5B or 300M"),
        (dict(devices="2.5"), "--devices=2.5: expected a whole number from 1 up"),
    ],
)
def test_what_is_no_number_is_a_sentence_that_shows_one(option, sentence):
    limits = option if "chips" in option else option | dict(flops=1e21)
    with pytest.raises(UserError) as refused:
        fit.plan("joint-moe-2025", **limits)
    assert refused.value.sentence.startswith(sentence)


def test_the_published_laws_are_listed_with_their_sources():
    done = subprocess.run([sys.executable, "-m", "fit", "laws"], capture_output=True, text=True, cwd=helpers.ROOT)
    assert done.returncode == 0, done.stderr
    paragraphs = done.stdout.split("\njoint-moe-2025-as-printed\n")[0]
    assert paragraphs.startswith(
        "joint-moe-2025\n    reads n_active, n_tokens, n_experts\n    fitted to n_active 78.7M"
    )
    assert "arXiv 2502.05172" in paragraphs
    for name in ("chinchilla-2022", "kaplan-2020", "jmoe-bytes-2026"):
        assert f"\n{name}\n" in done.stdout


def test_a_prompt_completes_every_function_of_fit():
    assert {"law", "load", "plan", "compare", "predict", "next", "read"} <= set(dir(fit))
    assert "TYPE_CHECKING" not in dir(fit)
    assert fit.__version__ == jmoe.__version__


@pytest.mark.parametrize("chips", ["h100:64", "H100:8x8", "H100:64"])
def test_chips_are_spelt_as_for_the_launcher(chips):
    expected, found = (
        PlanOptions.parse(chips=given, hours=hours).constraints() for given, hours in (("H100:64", 240), (chips, "10d"))
    )
    assert found == expected and found.chips.count == 64


@pytest.mark.parametrize("chips", ["H100:8x", "H100:x8", "H100:0x8", "H100:2x2x2x2", "H100:8.5", "abacus:8"])
def test_other_spellings_of_chips_are_refused(chips):
    with pytest.raises(UserError) as refused:
        fit.plan("joint-moe-2025", chips=chips, hours=1)
    assert refused.value.sentence.startswith(f"--chips={chips}: expected KIND:COUNT, KIND:MACHINESxCOUNT or KIND, of ")
