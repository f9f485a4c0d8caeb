"""Numbers as people write them, in flags and from Python, and what a prompt completes."""

import pytest

import fit
import jmoe
from fit.options import parse_number
from fit.planning.inputs.options import PlanOptions


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("n_active", "1.5B", 1.5e9),
        ("n_active", "300m", 3e8),
        ("max_tokens", "16 K", 16e3),
        ("flops", "+.5e3", 500),
        ("memory_gb", "80GB", 80),
        ("memory_gb", "1.5TB", 1500),
        ("memory_gb", "80GiB", 80 * 2**30 / 1e9),
        ("hours", "10d", 240),
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


def test_a_prompt_completes_every_function_of_fit():
    assert {"law", "load", "plan", "compare", "predict", "next", "read"} <= set(dir(fit))
    assert "TYPE_CHECKING" not in dir(fit)
    assert fit.__version__ == jmoe.__version__


@pytest.mark.parametrize("chips", ["h100:64", "H100:8x8", "H100:64"])
def test_chips_are_spelt_as_for_the_launcher(chips):
    options = PlanOptions(chips=chips, hours="10d")
    asked = options.constraints().chips
    assert (asked.kind, asked.count, options.hours) == ("H100", 64, 240)


def test_what_python_gives_that_no_command_line_could_is_refused(tmp_path):
    with pytest.raises(fit.UserError, match="flops: found 10+.*, expected a number such as 1e22"):
        fit.plan("joint-moe-2025", flops=10**400)
    with pytest.raises(fit.UserError, match="expected one law or several, found none"):
        fit.page([], tmp_path / "page.html")
