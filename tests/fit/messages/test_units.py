"""Numbers as people read them, in words and on axes."""

import numpy as np
import pytest

from fit.messages import units
from fit.render.figures import style


def test_units():
    assert [units.amount(x) for x in (257, 999.96, 9.12e6, 1.72e9, 0)] == ["257", "1K", "9.12M", "1.72B", "0"]
    assert [units.memory(x) for x in (73_100, 24.3e9, 5e11)] == ["73.1 KB", "24.3 GB", "500 GB"]
    assert [units.flops(x) for x in (1e22, 2.5e12, 3e-5)] == ["10²²", "2.5×10¹²", "3×10⁻⁵"]
    assert [units.flops_math(x) for x in (1e22, 2.5e12)] == ["$10^{22}$", r"$2.5\times10^{12}$"]
    assert [units.rounded(x) for x in (5.39e11, 1e22, 99.9)] == [5.3e11, 1e22, 99]


@pytest.mark.parametrize(
    "low, high", [(12e6, 7e9), (1e20, 1e23), (14.9e3, 46e3), (1.1, 1.44), (5e10, 5.4e11), (3, 4e15)]
)
def test_ticks_of_an_axis_are_few_and_spread(low, high):
    for most in (4, 5):
        result = style._ticks(low, high, most)
        assert 2 <= len(result) <= most and np.all((low <= result) & (result <= high))
        assert np.log(result[-1] / result[0]) > 0.25 * np.log(high / low)


def test_templates_write_amounts_and_ends_of_intervals():
    text = units.say("{size:amount} active, {cache:memory}, loss {loss:.2f}", size=1.72e9, cache=24.3e9, loss=[2, 2.5])
    assert text == "1.72B active, 24.3 GB, loss 2.00 to 2.50"


def test_a_tables_cells_stand_below_their_heads():
    rows = [
        dict(run="a", size=2e9, loss=3.14159, end="best"),
        "b was not trained",
        dict(run="", size=None, loss=3, end=""),
    ]
    assert units.table("{run::5} {size:amount:>6} {loss:.2f:>6} {end}", rows, size="active", end="") == [
        "run   active   loss",
        "a         2B   3.14 best",
        "b was not trained",
        "-          -   3.00",
    ]
