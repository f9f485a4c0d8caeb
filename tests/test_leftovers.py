"""Tests that are killed leave no process behind."""

import os
import signal
import subprocess
import sys

import helpers
import leftovers
import pytest

STARTS = """
import subprocess, sys, time
import helpers, leftovers
leftovers.end_with_this_process()
with helpers.bucket():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    helpers.start("jmoe.train", "--config=configs/quickstart.py", "--workdir=" + sys.argv[1])
    print("started", os.environ[leftovers.VARIABLE], flush=True)
    time.sleep(1000)
""".replace("import subprocess", "import os, subprocess")


@pytest.mark.skipif(sys.platform != "linux", reason="not on Linux: there is no /proc")
def test_killed_tests_leave_no_process_behind(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(helpers.ROOT / "tests" / "support")}
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    process = subprocess.Popen(command, env=environment, cwd=helpers.ROOT, stdout=subprocess.PIPE, text=True)
    mark = process.stdout.readline().split()[1]
    n_started = len(leftovers.marked(mark))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    helpers.wait_until(lambda: not leftovers.marked(mark), seconds=60)
    assert n_started >= 4 and not leftovers.marked(mark)  # a server, a sleeper, what forks, and a trainer
