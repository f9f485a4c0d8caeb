"""support/skips.py: what is skipped is counted by reason, and a part that is installed may not be missed."""

import os
import subprocess
import sys

import helpers
import pytest

TESTS = """
import pytest

@pytest.mark.parametrize("i", range(3))
def test_pages(i):
    pytest.skip("without chromium: no page is tested")

@pytest.mark.skipif(True, reason="make soak alone: takes minutes")
def test_long():
    pass

def test_short():
    pass
"""


@pytest.mark.parametrize(
    "parts, code, last",
    [
        ("Slurm", 0, "4 skipped: 3 without chromium, 1 make soak alone"),
        ("Slurm, chromium", 1, "error: skipped without chromium, though JMOE_PARTS=Slurm, chromium"),
    ],
)
def test_skips_are_counted_and_an_installed_part_is_tested(tmp_path, parts, code, last):
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "skips", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": str(helpers.ROOT / "tests" / "support"), "JMOE_PARTS": parts}
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == last
