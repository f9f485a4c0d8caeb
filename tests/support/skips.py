"""A plugin of pytest: the closing line counts the skipped tests by reason, and none may be skipped for want of a part
that is installed.

The reason of a skip is "SHORT: more"; SHORT is "without PART" where something is not installed. JMOE_PARTS lists the
parts that are, such as "chromium,Slurm": .ci/run installs them and sets it.
"""

import collections
import os

import pytest


def short_reasons(reporter) -> collections.Counter:
    """How many tests, or modules as a whole, were skipped for each reason, up to its first colon."""
    skipped = collections.Counter()
    for report in reporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):  # (path, line, reason); an expected failure has a text
            reason = report.longrepr[2].removeprefix("Skipped: ")
            skipped[reason.partition(":")[0]] += 1
    return skipped


def not_to_be_skipped(skipped: collections.Counter) -> list[str]:
    """The reasons that JMOE_PARTS rules out."""
    parts = [part.strip() for part in os.environ.get("JMOE_PARTS", "").split(",")]
    return [f"without {part}" for part in parts if skipped[f"without {part}"]]


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # only where the results are collected
    if reporter and session.exitstatus == pytest.ExitCode.OK and not_to_be_skipped(short_reasons(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.stats:
        return
    skipped = short_reasons(reporter)
    reasons = ", ".join(f"{number} {reason}" for reason, number in skipped.most_common())
    reporter.write_line(f"{skipped.total()} skipped: {reasons}" if skipped else "nothing skipped")
    wrong = not_to_be_skipped(skipped)
    if wrong:
        reporter.write_line(f"error: skipped {', '.join(wrong)}, though JMOE_PARTS={os.environ['JMOE_PARTS']}")
