"""Training runs that are killed with SIGKILL at random moments, saves included, again and again until they are done.

Sixty kills, or as many as are begun within three quarters of an hour: make soak alone. test_train.py makes a few.
"""

import os
import random
import time

import helpers
import pytest
import soak

KILLS = 30
SECONDS = 1_300  # until the last run begins


@pytest.mark.skipif(not os.environ.get("JMOE_SOAK"), reason="make soak alone: takes three quarters of an hour")
@pytest.mark.parametrize("n_processes, most", [(1, 10), (2, 5)])  # a survivor of two takes a minute to notice
def test_a_run_that_is_killed_ends_as_an_undisturbed_one(n_processes, most, tmp_path, text_glob):
    """To the last bit. The seed, which is printed, chooses the kinds of moments."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    config = helpers.write_config(tmp_path, text_glob, helpers.GROWING, 5)
    soak.kill_until_done(config, tmp_path / "undisturbed", 0, n_processes, chance)
    began = time.monotonic()
    hits = []
    n_runs = 0
    while len(hits) < KILLS and time.monotonic() < began + SECONDS:
        n_runs += 1
        workdir = tmp_path / f"killed-{n_runs}"
        hits += soak.kill_until_done(config, workdir, min(most, KILLS - len(hits)), n_processes, chance)
        soak.assert_same_run(tmp_path / "undisturbed", workdir)
    print(*(f"{hits.count(kind)} in a {kind}" for kind in ("start", "step", "save")))
    assert hits
