"""All of fitting is in float64, as `fit law` has it."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def float64():
    with jax.enable_x64(True):
        yield
